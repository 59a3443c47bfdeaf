"""Every format writes what it reads, on a corpus of calls; what is broken is said to be, and never raises."""

from __future__ import annotations

import pytest

from agentgym.testing import ToolFormatConformance
from agentgym.text.tool_formats.base import ToolFormat
from agentgym.text.tool_use import known_formats
from agentgym.tools import MalformedCall

FORMATS = {type(one).__name__: one for one in known_formats()}


class Ours(ToolFormatConformance):
    def make(self) -> ToolFormat:
        return FORMATS[type(self).__name__.removeprefix("Test")]


KINDS = {
    "QwenCoder": {"texts_only": True},
    "Glm45": {"texts_only": True, "strips": True},
    "GptOss": {"keeps_content": False},  # it is a thought there
}
globals().update({f"Test{name}": type(f"Test{name}", (Ours,), KINDS.get(name, {})) for name in FORMATS})


TOO_LARGE = [("Pythonic", f"[f(x={number})]") for number in ("1e999", "-1e999", "[0x" + "f" * 4000 + "]")]
EMPTY = [
    ("DeepSeekV3", "I look. <｜tool▁calls▁begin｜>nothing"),
    ("KimiK2", "I look. <|tool_calls_section_begin|><|tool_calls_section_end|>"),
]


@pytest.mark.parametrize(("name", "text"), [*TOO_LARGE, *EMPTY])
def test_what_json_cannot_write_and_calls_that_never_come_are_malformed(name, text):
    parsed = FORMATS[name].parse(text)
    assert [type(call) for call in parsed.calls] == [MalformedCall]
    assert parsed.content == ("I look." if "I look." in text else "")


def test_a_backslash_in_a_text_is_no_warning():
    [call] = FORMATS["Pythonic"].parse('[f(x="a\\d")]').calls
    assert call.arguments == {"x": "a\\d"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("GptOss", "<|channel|>final<|message|>Write to=functions.f to call it."),
        ("Pythonic", "<think>I could <|tool_call_start|>[f()]<|tool_call_end|></think>No."),
        ("LlamaJson", '<think>I could <|python_tag|>{"name": "f", "parameters": {}}</think>No.'),
        ("Glm45", "<think>I could <tool_call>f\n</tool_call></think>No."),
    ],
)
def test_what_only_looks_like_a_call_stays_in_the_content(name, text):
    parsed = FORMATS[name].parse(text)
    assert (parsed.content, parsed.calls) == (text, ())


def test_many_malformed_calls_are_quoted_as_they_were_sampled():
    parsed = FORMATS["Pythonic"].parse("[f(x='é'), f('é',\r\n 1), g(2)" + ", f(1)" * 20000 + "]")  # took minutes
    assert [getattr(call, "text", "") for call in parsed.calls[:3]] == ["", "f('é',\n 1)", "g(2)"]
    assert len(parsed.calls) == 20003
