"""A Docker sandbox that lacks a wall: its container's settings, or the agent's sources, are changed."""

from __future__ import annotations

import ast
import binascii
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from agentgym.types import Json
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.profile import container_settings

Settings = dict[str, Any]
Patch = tuple[str, str]  # what stands in the agent, and what stands there instead


@dataclass(frozen=True, kw_only=True)
class Weakening:
    """What is taken away, and the trials that must then get through.

    alone: each trial gets a container of its own, because what it leaves would disturb the next.
    at_once: the trials run side by side, without a next-call check. patient: on a busy machine a trial may take
    longer than its own limits say; not where it is the limit that matters. wall_s: what it may take at first.
    """

    name: str
    breaks: tuple[str, ...]
    host: Callable[[Settings], None] | None = None
    patches: tuple[Patch, ...] = ()
    alone: bool = False
    at_once: bool = False
    patient: bool = True
    wall_s: float = 15.0
    slots: int = 4

    def settings(self, config: DockerConfig, image: str, owner: str, remapped: bool) -> dict[str, Json]:
        """The settings of a container that lacks the wall."""
        settings = container_settings(config, image, owner, remapped)
        if self.host is not None:
            self.host(settings)
        if self.patches:
            command = cast(list[str], settings["Cmd"])
            command[command.index("-c") + 1] = _patched(command[command.index("-c") + 1], self.patches)
        return settings


def _patched(program: str, patches: tuple[Patch, ...]) -> str:
    """The agent's program with other sources. Raises AssertionError when what is to be replaced is not there."""
    first, _, rest = program.partition("\n")
    packed = ast.literal_eval(first.removeprefix("PACKED = "))
    sources = ast.literal_eval(zlib.decompress(binascii.a2b_base64(packed)).decode())
    for old, new in patches:
        assert any(old in source for source in sources.values()), f"the agent has no {old!r}"
        sources = {name: source.replace(old, new) for name, source in sources.items()}
    again = binascii.b2a_base64(zlib.compress(repr(sources).encode(), 9), newline=False)
    return f"PACKED = {again!r}\n{rest}"
