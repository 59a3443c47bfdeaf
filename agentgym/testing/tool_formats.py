"""The suite of formats of tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from agentgym.components import find
from agentgym.import_path import import_path_of
from agentgym.testing import tool_calls
from agentgym.testing.suite import Suite, expect, promise, skip
from agentgym.text.tool_formats.base import ToolFormat
from agentgym.tools import MalformedCall, ToolCall

BASE = "agentgym.text.tool_formats.base"
MAX_FAULT_CHARS = 400


class ToolFormatConformance(Suite):
    """Subclass it in a test file, `class TestMine(ToolFormatConformance)`, and define `make`.

    texts_only: the format's values have no quotes, so all of them are read as texts. strips: white space around values
    is lost. keeps_content: what is said before calls is read back as it was.
    """

    texts_only: ClassVar[bool] = False
    strips: ClassVar[bool] = False
    keeps_content: ClassVar[bool] = True

    def make(self) -> ToolFormat:
        """The format under test."""
        raise NotImplementedError("define `make`, which returns the format under test")

    @promise(f"{BASE}:ToolFormat", "Inherit it in a frozen dataclass: its import path is its name in recipes.")
    def test_a_recipe_can_choose_it_by_its_import_path(self) -> None:
        expect(
            "the class at its import path", find("tool_formats", import_path_of(type(self.make()))), type(self.make())
        )

    @promise(f"{BASE}:ToolFormat.write", "The calls as `parse` reads them")
    def test_a_call_is_read_as_it_was_written(self) -> None:
        made = self.make()
        for call in tool_calls.calls(500):
            text = made.write([call])
            expect(f"of {text!r:.300} are read", self._read(made.parse(text).calls), self._read([call]))

    @promise(f"{BASE}:Parsed", "the calls in their order")
    def test_several_calls_keep_their_order(self) -> None:
        made = self.make()
        for calls, content in tool_calls.turns(200):
            text = made.write(calls, content)
            expect(f"of {text!r:.300} are read", self._read(made.parse(text).calls), self._read(calls))

    @promise(f"{BASE}:ToolFormat.write", "behind the content")
    def test_what_was_said_before_calls_is_kept(self) -> None:
        if not self.keeps_content:
            skip("the format keeps what is said before calls in another form")
        made = self.make()
        for calls, content in tool_calls.turns(100):
            expect("the content before calls", made.parse(made.write(calls, content)).content, content)

    @promise(f"{BASE}:Parsed", "What was said outside of calls")
    def test_a_turn_without_calls_is_content(self) -> None:
        for text in ("", "Hello.", "I call it: 3 < 4, [1], {2}.", "two\nlines\n"):
            parsed = self.make().parse(text)
            expect(f"the calls in {text!r}", parsed.calls, ())
            expect("the content of a turn without calls", parsed.content, text)

    @promise(f"{BASE}:ToolFormat.parse", "Never raises and never guesses")
    def test_damaged_texts_never_raise(self) -> None:
        for text in self._damaged():
            try:
                calls = self.make().parse(text).calls
                json.dumps([dict(call.arguments) for call in calls if isinstance(call, ToolCall)], allow_nan=False)
            except Exception as error:
                raise AssertionError(f"{text!r:.300}: {type(error).__name__}: {error}") from error

    @promise(f"{BASE}:ToolFormat.parse", "what cannot be read is a MalformedCall, in its place among the calls")
    def test_damaged_calls_are_malformed(self) -> None:
        made = self.make()
        found = sum(isinstance(call, MalformedCall) for text in self._damaged() for call in made.parse(text).calls)
        assert found >= 20, f"of 1000 damaged texts only {found} calls are malformed; the rest is dropped or guessed"

    @promise("agentgym.tools:MalformedCall", "one line that says what is wrong with it")
    def test_a_fault_is_one_short_line(self) -> None:
        for text in self._damaged():
            for call in self.make().parse(text).calls:
                if isinstance(call, MalformedCall):
                    fault = call.fault
                    assert fault and "\n" not in fault and len(fault) < MAX_FAULT_CHARS, f"the fault is {fault!r:.500}"

    @promise(
        f"{BASE}:ToolFormat.parse_ids", "if a marker is one token, the same characters in other tokens are not a marker"
    )
    def test_typed_markers_are_not_calls(self) -> None:
        made = self.make()
        [call] = tool_calls.calls(1, seed=3)
        text = made.write([call])
        if not any(marker in text for marker in made.markers):
            skip("it writes no markers around a call")
        tokenizer = _MarkerTokens(made.markers)
        expect(
            "the calls of sampled markers",
            self._read(made.parse_ids(tokenizer.encode(text), tokenizer).calls),
            self._read([call]),
        )
        typed = made.parse_ids(tuple(map(ord, text)), tokenizer)
        assert not any(isinstance(one, ToolCall) for one in typed.calls), f"typed, {text!r:.300} is a call"

    def _read(self, calls: Sequence[ToolCall | MalformedCall]) -> list[tuple[str, dict[str, object]]]:
        found = (tool_calls.as_read(call, texts_only=self.texts_only, strips=self.strips) for call in calls)
        return [(name, dict(arguments)) for name, arguments in found]

    def _damaged(self) -> list[str]:
        made = self.make()
        return [
            text
            for seed in (1, 2)
            for text in tool_calls.broken([made.write(*turn) for turn in tool_calls.turns(500)], seed)
        ]


class _MarkerTokens:
    """Each marker is one token, which a character of it is not."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = {0x200000 + number: marker for number, marker in enumerate(markers)}

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        at = 0
        while at < len(text):
            token = next((i for i, marker in self._markers.items() if text.startswith(marker, at)), ord(text[at]))
            ids.append(token)
            at += len(self._markers.get(token, " "))
        return tuple(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self._markers.get(i) or chr(i) for i in token_ids)
