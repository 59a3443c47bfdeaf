"""Conversations with tools: prompts, calls and results as token ids."""

from __future__ import annotations

import pytest

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.models.tiny import policy_path
from agentgym.text.chat import ChatRenderer
from agentgym.text.tokenizer import CHATML, HuggingFaceTokenizer
from agentgym.text.tool_formats.pythonic import Pythonic
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


CALL = '<tool_call>\n{"name": "buy", "arguments": {"item": "<tool_call>"}}\n</tool_call>'


def as_typed(tokenizer: HuggingFaceTokenizer, text: str) -> tuple[int, ...]:
    """The text in tokens that are no marker's."""
    parts = text.replace("<tool", "<\0tool").replace("</tool", "</\0tool").split("\0")
    return tuple(i for part in parts for i in tokenizer.encode(part))


@pytest.fixture(scope="module")
def tiny() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(str(policy_path()))


def test_a_marker_that_was_typed_and_not_sampled_is_no_call(tiny):
    """The policy that ships has `<tool_call>` as a token."""
    renderer, typed = ChatRenderer(tiny), as_typed(tiny, CALL)
    assert tiny.decode(typed) == CALL == tiny.decode(tiny.encode(CALL)) and typed != tiny.encode(CALL)
    parsed = renderer.parse(typed)
    assert parsed.calls == () and parsed.content == CALL


def test_a_marker_that_is_typed_in_an_argument_ends_no_call(tiny):
    begin, end = tiny.encode("<tool_call>"), tiny.encode("</tool_call>")
    odd = "</tool_call> and <tool_call>"
    body = as_typed(tiny, f'{{"name": "buy", "arguments": {{"item": "{odd}"}}}}')
    renderer = ChatRenderer(tiny)
    assert renderer.parse((*begin, *body, *end)).calls == (ToolCall("buy", {"item": odd}),)
    broken = as_typed(tiny, f'{{"name": "{odd}"')
    [call] = renderer.parse((*begin, *broken, *end)).calls
    assert isinstance(call, MalformedCall) and call.text == f'{{"name": "{odd}"'


def test_where_markers_are_characters_characters_are_what_counts(tokenizer):
    [call] = ChatRenderer(tokenizer).parse(tokenizer.encode('<tool_call>{"name": "buy"}</tool_call>')).calls
    assert call == ToolCall("buy", {})


def test_a_call_that_is_only_thought_of_is_none(tokenizer):
    said = '<think>\nI could <tool_call>{"name": "buy"}</tool_call></think>\nNo.'
    parsed = ChatRenderer(tokenizer).parse(tokenizer.encode(said))
    assert parsed.calls == () and parsed.content == said
    assert ChatRenderer(tokenizer).parse(tokenizer.encode(said.removesuffix("</think>\nNo."))).calls == ()


def test_a_named_format_is_taught_with_ones_own_words(tokenizer):
    renderer = ChatRenderer(tokenizer, Pythonic(), "You can:\n{tools}\nas {call}")
    text = renderer.prompt_text([USER], SCHEMAS)
    assert "You can:\nbuy(item: string, count?: integer): Buy things." in text
    assert "as [NAME(ARGUMENT='VALUE')]" in text
    assert renderer.parse(tokenizer.encode("[buy(item='apple')]")).calls == (ToolCall("buy", {"item": "apple"}),)


def test_a_template_that_drops_results_is_refused(tokenizer_of):
    template = "{% for m in messages %}{% if m.content is string and 'zqresult' not in m.content %}{{ m.role }}: " \
        "{{ m.content if m.role != 'user' or loop.first else '' }}<|im_end|>{% endif %}{% endfor %}"  # fmt: skip
    renderer = ChatRenderer(tokenizer_of(template))
    with pytest.raises(UserError, match="drops the result of a tool"):
        renderer.reply([{"role": "tool", "content": "42", "name": "buy", "tool_call_id": "call00001"}])


def test_an_unknown_format_is_named_with_the_nearest():
    with pytest.raises(UserError, match=r"no tool format 'hermse'.*Did you mean 'hermes'"):
        PluginRegistry([]).component("tool_formats", "hermse")


def test_a_call_in_a_thought_that_the_prompt_opened_is_none(tokenizer_of):
    renderer = ChatRenderer(tokenizer_of(CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")))
    call = '<tool_call>{"name": "buy"}</tool_call>'
    thought = renderer.tokenizer.encode(f"I could {call}")
    assert renderer.parse(thought).calls == () and renderer.parse(thought).content == f"I could {call}"
    parsed = renderer.parse((*thought, *renderer.tokenizer.encode(f"</think>\n\n{call}")))
    assert parsed.calls == (ToolCall("buy", {}),) and parsed.content == f"I could {call}</think>"
