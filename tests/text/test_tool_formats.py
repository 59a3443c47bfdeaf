"""Every format writes what it reads, on a corpus of calls; what is broken is said to be, and never raises."""

from __future__ import annotations

import json

import pytest
from real_templates import told

from agentgym.testing import tool_calls
from agentgym.text.tool_formats.base import ToolFormat
from agentgym.text.tool_use import known_formats
from agentgym.tools import MalformedCall

FORMATS = {type(one).__name__: one for one in known_formats()}
CALLS = tool_calls.calls(500)


@pytest.fixture(params=FORMATS)
def tool_format(request: pytest.FixtureRequest) -> ToolFormat:
    return FORMATS[request.param]


def test_500_calls_are_read_as_they_were_written(tool_format):
    for call in CALLS:
        [read] = tool_format.parse(tool_format.write([call])).calls
        assert told(read, tool_format) == told(call, tool_format)


def test_several_calls_keep_their_order_and_what_was_said_before_them(tool_format):
    for calls, content in tool_calls.turns(200):
        parsed = tool_format.parse(tool_format.write(calls, content))
        assert [told(read, tool_format) for read in parsed.calls] == [told(call, tool_format) for call in calls]
        if type(tool_format).__name__ != "GptOss":  # it is a thought there
            assert parsed.content == content


def test_broken_calls_never_raise(tool_format):
    written = [tool_format.write(calls, content) for calls, content in tool_calls.turns(500)]
    faults = 0
    for seed in (1, 2):
        for text in tool_calls.broken(written, seed):
            for call in tool_format.parse(text).calls:
                if isinstance(call, MalformedCall):
                    assert call.fault and "\n" not in call.fault and len(call.fault) < 400
                    faults += 1
                else:
                    json.dumps(call.arguments, allow_nan=False)
    assert faults > 100


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
