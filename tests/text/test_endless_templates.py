"""Chat templates that loop or double are refused by name; all others are rendered as transformers renders them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_templates import REAL

from agentgym.errors import UserError
from agentgym.killable import KillableCalls
from agentgym.models.tiny import policy_path
from agentgym.text.chat import ChatRenderer
from agentgym.text.continuation import check_template
from agentgym.text.template import RENDER, ChatTemplate, Refused, Unbounded
from agentgym.text.template_child import render
from agentgym.text.tokenizer import CHATML, TEMPLATES, HuggingFaceTokenizer

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TALK = [{"role": role, "content": text} for role, text in (("user", "one"), ("assistant", "two"), ("user", "three"))]
CALL = {"type": "function", "id": "call00001", "function": {"name": "f", "arguments": {"x": "é <"}}}
CALLED = [
    TALK[0],
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "4", "name": "f", "tool_call_id": "call00001"},
]
TOOL = {"type": "function", "function": {"name": "f", "description": "Does.", "parameters": {"type": "object"}}}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def given(messages: list[Any], tools: Any = None) -> dict[str, Any]:
    return {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True, **SPECIAL}


@pytest.fixture(scope="module")
def calls() -> Iterator[KillableCalls]:
    found = KillableCalls(RENDER, processes=1, cpu_s=0.5, memory_mib=512)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (LOOP, "more than 3 s"),
        (
            "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
            "memory|more than",
        ),
        ("{{ 'a' * 10**11 }}", "memory"),
        ("{% for i in range(3000) %}{{ messages | tojson }}{% endfor %}", "characters"),
        ("{{ messages[0].content * 10**7 }}", "characters"),
    ],
)
def test_a_template_without_an_end_is_refused_by_name(calls: KillableCalls, template: str, why: str) -> None:
    one = ChatTemplate("'some/model'", calls)
    with pytest.raises(Unbounded, match=why) as refused:
        one.render(template, given(TALK))
    assert str(refused.value).startswith("the chat template of 'some/model' loops or doubles")
    assert ChatTemplate("another", calls).render(CHATML, given(TALK)), "others are rendered"
    with pytest.raises(Refused, match="recursion"):
        ChatTemplate("m", calls).render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", given(TALK))


def test_a_template_that_loops_at_a_later_message_is_met_then_and_not_tried_again(calls: KillableCalls) -> None:
    one = ChatTemplate("m", calls)
    template = f"{{% if messages | length > 2 %}}{LOOP}{{% endif %}}{CHATML}"
    assert one.render(template, given(TALK[:1]))
    with pytest.raises(Unbounded):
        one.render(template, given(TALK))
    calls.close()  # a call would start another process
    with pytest.raises(Unbounded):
        one.render(template, given(TALK[:1]))
    assert calls._server is None


def test_the_start_of_a_run_is_refused_with_the_template_and_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "bad.jinja"
    file.write_text("{{ 'a' * 10**11 }}")
    renderer = ChatRenderer(HuggingFaceTokenizer(str(policy_path()), str(file)))
    with pytest.raises(UserError, match=r"bad\.jinja', loops or doubles: .* memory\. Set model\.chat_template to"):
        check_template(renderer, ["user"], turns=1)


def test_a_template_that_is_no_text_is_refused_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.jinja"
    file.write_bytes(b"\xff{{ messages }}")
    with pytest.raises(UserError, match=r"model\.chat_template '.*bad\.jinja' can't be read"):
        HuggingFaceTokenizer(str(policy_path()), str(file))


@pytest.mark.parametrize("name", [*REAL, *TEMPLATES])
def test_a_released_template_writes_what_it_writes_in_transformers(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = REAL.get(name) or TEMPLATES[name]
    for variables in (given(TALK), given(CALLED, [TOOL]), given(TALK[:1], [TOOL])):
        named = {key: value for key, value in variables.items() if key != "messages"}
        try:
            [expected], _ = render_jinja_template([variables["messages"]], chat_template=template, **named)
        except Exception as error:
            with pytest.raises(type(error)):
                render({"template": template, "given": variables})
        else:
            assert render(json.loads(json.dumps({"template": template, "given": variables}))) == expected
