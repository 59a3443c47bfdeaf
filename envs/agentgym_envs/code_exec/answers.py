"""Finds the code in what an agent says."""

from __future__ import annotations

import re

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def find_code(text: str, entry: str) -> str | None:
    """The last fenced block that defines `entry`, or the bare text when it does; else None."""
    said = _THOUGHT.sub("", text)
    blocks: list[str] = _FENCE.findall(said)
    for block in reversed(blocks or [said]):
        if defines(block, entry):
            return block.strip("\n") + "\n"
    return None


def defines(code: str, entry: str) -> bool:
    """Whether a line of the code begins the definition of `entry`; it need not compile."""
    return re.search(rf"^\s*(?:async\s+)?def\s+{re.escape(entry)}\s*\(", code, re.MULTILINE) is not None
