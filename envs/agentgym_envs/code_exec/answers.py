"""Finds the code in what an agent says."""

from __future__ import annotations

import re

from agentgym.python_syntax import parse_module

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def find_code(text: str, entry: str, *, any_code: bool = False) -> str | None:
    """The last fenced block that defines `entry`, or the bare text when it does; else None.

    A program (an empty entry) is the last fenced block, or a bare text that is Python; with any_code that is also taken
    where nothing defines the entry: `f = lambda x: x`.
    """
    said = _THOUGHT.sub("", text)
    blocks: list[str] = _FENCE.findall(said)
    for block in reversed(blocks or [said]):
        if entry and defines(block, entry):
            return block.strip("\n") + "\n"
    if entry and not any_code:
        return None
    program = (blocks or [said])[-1].strip("\n") + "\n"
    return program if program.strip() and (blocks or _parses(program)) else None


def defines(code: str, entry: str) -> bool:
    """Whether a line of the code begins the definition of `entry`, a function or a class; it need not compile.

    Of `Solution.method` the class is looked for.
    """
    owner, dot, _ = entry.partition(".")
    name = re.escape(owner)
    begins = rf"class\s+{name}\b" if dot else rf"(?:(?:async\s+)?def\s+{name}\s*\(|class\s+{name}\b)"
    return re.search(rf"^\s*{begins}", code, re.MULTILINE) is not None


def _parses(code: str) -> bool:
    try:
        parse_module(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
