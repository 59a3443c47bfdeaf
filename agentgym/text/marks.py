"""Texts that only the template may write, broken up in what messages say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentgym.text.tool_formats.base import replaced


class Marks:
    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = tuple(dict.fromkeys(mark for mark in marks if mark))
        self._firsts = {mark[0] for mark in self._marks}

    def broken_up(self, text: str) -> str:
        """A space after the first character of each mark."""
        for first in self._firsts:
            if first in text:
                break
        else:
            return text
        for mark in self._marks:
            if mark in text:
                text = text.replace(mark, f"{mark[:1]} {mark[1:]}")
        return text

    def all_broken_up(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        """Breaks up the marks in all texts of a call."""
        for mark in self._marks:
            call = cast("Mapping[str, Any]", replaced(call, mark, f"{mark[:1]} {mark[1:]}"))
        return call
