"""Parts of a benchmark's list that are lines of a shell. benchmarks/ is on the path of who asks for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def shell(name: str, text: str, limit_s: float = 60.0) -> Any:
    """A part whose row is the first line that it printed."""
    from many_gpus import Part  # type: ignore[import-not-found]

    def read(said: str, _: Path) -> list[tuple[str, str, str]]:
        return [("said", said.splitlines()[0], "")]

    return Part(name=name, limit_s=limit_s, command=["sh", "-c", text], read=read)
