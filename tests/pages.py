"""The blocks and commands of the documentation, and what each is checked by."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_MARK = re.compile(r"<!-- (\w+): (.+?) -->")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_INLINE = re.compile(r"(?<!`)`((?:agentgym|make|python|pytest|pip) [^`\n]+)`(?!`)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. marks: of the HTML comments directly above it, as `<!-- fragment: why -->`."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command line, with the page and line where it is. output: what a `console` block shows below it."""

    name: str
    words: tuple[str, ...]
    output: str = ""


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    start = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r" *```(.*)", line)
        if start is None and fence:
            start, language, lines = number, fence[1].strip(), list[str]()
        elif start is None:
            if line.strip():
                mark = _MARK.fullmatch(line.strip())
                marks = {**marks, mark[1]: mark[2]} if mark else {}
        elif fence:
            block = Block(page=page, line=start, language=language, text="\n".join([*lines, ""]), marks=marks)
            found.append(block)
            start, marks = None, {}
        else:
            lines.append(line)
    assert start is None, f"{page}:{start}: this block never ends"
    return found


def commands(block: Block) -> Iterator[Command]:
    """The command lines of a `sh` block, or of a `console` block with their output."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield Command(name=block.name, words=_words(line), output=output)
    else:
        for number, line in enumerate(lines, block.line + 1):
            if words := _words(line):
                yield Command(name=f"{block.page.name}:{number}", words=words)


def inline_commands(page: Path) -> Iterator[Command]:
    """Commands within a sentence. What a reader must fill in, as `…`, ends the command that is checked."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for shown in _INLINE.findall(text):
        yield Command(name=page.name, words=tuple(shlex.split(re.split(r" (?:…|\.\.\.)", shown)[0])))


def _words(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(_COMMENT.sub("", line)))
