"""Finds the Python that runs the code: the system's, else the one that runs us."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from agentgym.errors import InfraError
from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.host.command import run_command

OLDEST = (3, 9)
TIMEOUT_S = 20.0
_ASK = (
    "import json, os, sys; print(json.dumps([list(sys.version_info[:3]), os.path.realpath(sys.executable), "
    "sorted({os.path.realpath(p) for p in (sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__))})]))"
)


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter. folders: what it reads, which may lie anywhere."""

    path: str
    version: tuple[int, int, int]
    folders: tuple[str, ...]

    @property
    def version_text(self) -> str:
        return ".".join(str(part) for part in self.version)


async def find_python(wanted: str | None) -> Python:
    """The wanted interpreter, or the first that will do. Raises SandboxUnavailable."""
    candidates = [wanted] if wanted is not None else ["/usr/bin/python3", "/usr/local/bin/python3", *_ours()]
    tried: list[str] = []
    for path in candidates:
        try:
            found = await _ask(path)
        except (OSError, ValueError, InfraError) as error:
            tried.append(f"{path}: {error}")
            continue
        if found.version[:2] >= OLDEST:
            return found
        tried.append(f"{path}: version {found.version_text}")
    raise SandboxUnavailable(
        f"no Python {OLDEST[0]}.{OLDEST[1]} or later to run code with; tried " + "; ".join(tried) + ". "
        "Install python3, or name one with sandbox.options.python."
    )


def _ours() -> Iterable[str]:
    base = getattr(sys, "_base_executable", "")  # of a virtual environment, what it was made from
    return [path for path in (base, sys.executable) if path]


async def _ask(path: str) -> Python:
    """What an interpreter reports of itself. Raises OSError, ValueError or InfraError."""
    printed = await run_command([path, "-I", "-c", _ASK], TIMEOUT_S)
    version, executable, folders = json.loads(printed.splitlines()[-1] if printed else "")
    return Python(executable, (version[0], version[1], version[2]), tuple(folders))
