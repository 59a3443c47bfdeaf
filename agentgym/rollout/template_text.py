"""What a template writes around the contents of messages, rendered once for conversations of one shape.

A template is a program: rendering it takes a hundred times as long as putting texts together. So a shape (roles,
names, tools) is rendered with marks for contents, and the result is kept where contents that are hard to copy (quotes,
white space, braces) show that the template only copies them, trims them, or writes them as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from agentgym.errors import UserError

Copy = Callable[[str], str]

_MAX_SHAPES = 4096
_MARKS = tuple(f"QX{n}XQ" for n in range(64))
_HARD = ('  a "b" \\ c\n\n', "{{ x }} 'd' <e>&é世🙂\t", "[1, 2]", '{"f": [null]}', "\n\n- g\n", "7", "Thought: h")


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_ascii_json(text: str) -> str:
    return json.dumps(text)[1:-1]


_COPIES: tuple[Copy, ...] = (lambda text: text, str.strip, _as_json, _as_ascii_json)


@dataclass(frozen=True, slots=True)
class _Shape:
    """pieces: the texts before, between and after the contents."""

    pieces: tuple[str, ...]
    copy: Copy

    def filled(self, contents: Sequence[str]) -> str:
        texts = [self.pieces[0]]
        for content, piece in zip(contents, self.pieces[1:], strict=True):
            texts += (self.copy(content), piece)
        return "".join(texts)


class TemplateText:
    """The shapes that one template was asked for."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape | None] = {}

    def filled(self, key: Hashable, contents: Sequence[str], render: Callable[[Sequence[str]], str]) -> str:
        """What `render` gives for these contents. key: of all else that its result depends on."""
        if key not in self._shapes:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = _learn(len(contents), render)
        shape = self._shapes[key]
        if shape is None or not all(map(_is_plain, contents)):
            return render(contents)
        return shape.filled(contents)


def _is_plain(content: str) -> bool:
    """Whether no template looks at it: some ask whether there is a text, or take thoughts and results apart."""
    return bool(content) and not content.isspace() and "think>" not in content and "tool_resp" not in content


def _learn(num: int, render: Callable[[Sequence[str]], str]) -> _Shape | None:
    """None where contents are not only copied."""
    try:
        return _learned(num, render) if num <= len(_MARKS) else None
    except UserError:  # which the contents themselves will raise
        return None


def _learned(num: int, render: Callable[[Sequence[str]], str]) -> _Shape | None:
    text, pieces = render(_MARKS[:num]), []
    for mark in _MARKS[:num]:
        piece, found, text = text.partition(mark)
        if not found or mark in text:
            return None
        pieces.append(piece)
    pieces.append(text)
    tried = [[hard if n == at else mark for n, mark in enumerate(_MARKS[:num])] for at in range(num) for hard in _HARD]
    tried += [[hard] * num for hard in _HARD]
    rendered = [render(contents) for contents in tried]
    for copy in _COPIES:
        shape = _Shape(tuple(pieces), copy)
        if all(shape.filled(contents) == its for contents, its in zip(tried, rendered, strict=True)):
            return shape
    return None
