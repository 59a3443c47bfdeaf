"""A model's chat template, rendered in a process that can be killed, within limits of time and memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from agentgym.errors import UserError
from agentgym.killable import CallFailed, KillableCalls

RENDER = "agentgym.text.template_child:render"
CPU_S, WALL_S, MEMORY_MIB = 3.0, 10.0, 1024
_ENDLESS = {
    "cpu_limit": f"it takes more than {CPU_S:g} s",
    "time_limit": f"it takes more than {WALL_S:g} s",
    "MemoryError": f"it takes more than {MEMORY_MIB} MiB of memory",
    "died": "it ends the process that renders it",
}


class Unbounded(UserError):
    """A template without an end."""


class Refused(Exception):
    """What a template says to messages that it does not take."""


class ChatTemplate:
    """name: for errors. calls: renders; None is this process's own. Once a limit was met, it is not tried again."""

    def __init__(self, name: str, calls: KillableCalls | None = None) -> None:
        self._name, self._calls = name, calls
        self._fault = ""

    def render(self, template: str, given: Mapping[str, Any]) -> str:
        """given: its variables. Raises Refused, and Unbounded where it met a limit."""
        kinds: list[str] = []
        while not self._fault:
            try:
                return str((self._calls or _calls()).wait({"template": template, "given": dict(given)}))
            except CallFailed as error:
                said = str(error).partition(": ")[2]
                if error.kind not in _ENDLESS and error.kind != "OverflowError":
                    raise Refused(said) from error
                kinds.append(error.kind)
                if error.kind not in ("time_limit", "died") or len(kinds) > 1:  # else it may have been the machine
                    self._fault = _ENDLESS.get(error.kind, said)
        raise Unbounded(f"the chat template of {self._name} loops or doubles: for one prompt {self._fault}")


@functools.cache
def _calls() -> KillableCalls:
    """One process for all templates, which ends with this one."""
    return KillableCalls(RENDER, processes=1, cpu_s=CPU_S, wall_s=WALL_S, memory_mib=MEMORY_MIB)
