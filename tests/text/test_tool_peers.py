"""Our own parsers against those of the package `renderers`, for the families that both know, and why ours stay."""

from __future__ import annotations

import pytest
from renderers.llama_3 import Llama3Renderer
from renderers.qwen3 import Qwen3Renderer
from renderers.qwen35 import Qwen35Renderer

from agentgym.testing import tool_calls
from agentgym.text.tool_formats.hermes import Hermes, SmolLM2
from agentgym.text.tool_formats.llama_json import LlamaJson
from agentgym.text.tool_formats.qwen_coder import QwenCoder
from agentgym.text.tool_formats.renderers import Characters
from agentgym.tools import ToolCall

TEXTS = [{"name": name, "parameters": {"properties": {key: {"type": "string"} for key in tool_calls.KEYS}}}
         for name in tool_calls.NAMES]  # fmt: skip


def peer(renderer, tokenizer, text):
    """The calls that it reads, and None for each that it finds to be broken; it raises for what is nested deeply."""
    try:
        calls = renderer.parse_response(tokenizer.encode(text), tools=TEXTS).tool_calls
    except RecursionError:
        return [None]
    return [(call.name, call.arguments) if call.status == "ok" else None for call in calls]


def ours(tool_format, text):
    calls = tool_format.parse(text).calls
    return [(call.name, dict(call.arguments)) if isinstance(call, ToolCall) else None for call in calls]


@pytest.mark.parametrize(
    ("made", "tool_format"), [(Qwen3Renderer, Hermes()), (Qwen35Renderer, QwenCoder()), (Llama3Renderer, LlamaJson())]
)
def test_500_calls_are_read_alike(made, tool_format):
    tokenizer = Characters()
    renderer = made(tokenizer)
    for call in tool_calls.calls(500, seed=9):
        text = tool_format.write([call])
        [(name, arguments)], [(own_name, own)] = peer(renderer, tokenizer, text), ours(tool_format, text)
        assert name == own_name and arguments.keys() == own.keys()
        for key, value in arguments.items():
            assert tool_calls.as_text(value).strip() == tool_calls.as_text(own[key]).strip()


def test_500_turns_with_broken_calls_are_read_alike_up_to_a_tag_that_is_never_closed():
    """There it takes the next calls for a part of the broken one; ours begin again at the next tag.

    And a call whose arguments have another name is one without arguments to it.
    """
    tokenizer = Characters()
    renderer = Qwen3Renderer(tokenizer)
    alike = 0
    texts = [Hermes().write(calls, content) for calls, content in tool_calls.turns(500)]
    for text in tool_calls.broken(texts, seed=1):
        mine, its = ours(Hermes(), text), peer(renderer, tokenizer, text)
        alike += mine == its
        assert [call for call in its if call and call[1]] == [call for call in mine if call and call in its and call[1]]
    assert alike >= 470


def tagged(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def function(value):
    return tagged(f"<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>")


WHY_OURS_STAY = {
    "a tag in a text ends the call": (
        Qwen3Renderer,
        Hermes(),
        tagged('{"name": "f", "arguments": {"x": "</tool_call>"}}'),
    ),
    "what is no JSON is taken": (Qwen3Renderer, Hermes(), tagged('{"name": "f", "arguments": {"x": NaN}}')),
    "arguments of another name are lost": (Qwen3Renderer, Hermes(), tagged('{"name": "f", "parameters": {"x": 1}}')),
    "SmolLM2's list is not read": (Qwen3Renderer, SmolLM2(), tagged('[{"name": "f", "arguments": {}}]')),
    "white space of a text is lost": (Qwen35Renderer, QwenCoder(), function("  x = 1")),
    "a tag in a value cuts it": (Qwen35Renderer, QwenCoder(), function("a</parameter> b")),
    "only one call is read": (
        Llama3Renderer,
        LlamaJson(),
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
    ),
    "a broken call is an answer": (Llama3Renderer, LlamaJson(), '{"name": "f", "parameters": {"x": }}'),
}


@pytest.mark.parametrize("why", WHY_OURS_STAY)
def test_a_family_is_read_by_our_own_parser_as_long_as_the_other_one_is_wrong(why):
    """Red here is good news: where no case of a family is left, `renderers` can read it. See ADR 32."""
    made, tool_format, text = WHY_OURS_STAY[why]
    tokenizer = Characters()
    assert peer(made(tokenizer), tokenizer, text) != ours(tool_format, text)
