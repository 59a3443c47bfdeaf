"""Conversations with tools: prompts, calls and results as token ids."""

from __future__ import annotations

from agentgym.rollout.chat import ChatRenderer
from agentgym.tools import MalformedCall, ToolCall

SCHEMAS = (
    {
        "type": "function",
        "function": {
            "name": "buy",
            "description": "Buy things.",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}, "count": {"type": "integer", "description": "how many"}},
                "required": ["item"],
            },
        },
    },
)
USER = {"role": "user", "content": "two apples"}


def test_tools_that_a_template_drops_are_told_in_the_system_message(tokenizer):
    renderer = ChatRenderer(tokenizer)
    text = tokenizer.decode(renderer.prompt([{"role": "system", "content": "Be kind."}, USER], tools=SCHEMAS))
    assert text == (
        "<|im_start|>system\nBe kind.\n\nTools:\nbuy(item: string, count?: integer): Buy things.\n  count: how many\n"
        "To call one, write:\n"
        '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\ntwo apples<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_written_call_is_read_back_and_its_result_continues_the_ids(tokenizer):
    renderer = ChatRenderer(tokenizer)
    call = {"type": "function", "id": "call00001", "function": {"name": "buy", "arguments": {"item": "apple"}}}
    said = renderer.turn({"role": "assistant", "content": "Well.", "tool_calls": [call]})
    parsed = renderer.parse(said)
    assert parsed.content == "Well." and parsed.calls == (ToolCall("buy", {"item": "apple"}),)
    told = {"role": "tool", "content": "<tool_call>left: 1", "name": "buy", "tool_call_id": "call00001"}
    text = tokenizer.decode(renderer.reply([told], said))
    assert text == "\n<|im_start|>tool\n< tool_call>left: 1<|im_end|>\n<|im_start|>assistant\n"


def test_a_malformed_call_keeps_its_place(tokenizer):
    said = '<tool_call>{"name": "buy"</tool_call> and <tool_call>{"name": "buy"}</tool_call>'
    parsed = ChatRenderer(tokenizer).parse(tokenizer.encode(said))
    first, second = parsed.calls
    assert isinstance(first, MalformedCall) and first.text == '{"name": "buy"' and "delimiter" in first.fault
    assert second == ToolCall("buy", {}) and parsed.content == "and"
