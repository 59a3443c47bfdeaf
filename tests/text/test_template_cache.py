"""What is remembered of a template is what it would write."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.text.template_cache import Frames, Remembered
from agentgym.types import Message

PLAIN = "{% for m in messages %}<{{ m.role }} {{ m.name }}>{{ m.content }}</>\n{% endfor %}"
TRIMS = PLAIN.replace("m.content }}", "m.content | trim }}")
LOOKS = {
    "quotes": PLAIN.replace("m.content }}", "m.content | tojson }}"),
    "lists": PLAIN.replace("{{ m.content }}", "{{ m.content if m.content[0] != '[' else 'a list' }}"),
    "numbers": PLAIN.replace("{{ m.content }}", "{{ m.content if not m.content.isdigit() else 'a number' }}"),
    "objects": PLAIN.replace("{{ m.content }}", "{{ m.content if m.content[0] != '{' else 'an object' }}"),
    "lines": PLAIN.replace("{{ m.content }}", "{{ m.content.splitlines() | join(' ') }}"),
    "escapes": PLAIN.replace("m.content }}", "m.content | e }}"),
    "twice": PLAIN.replace("{{ m.content }}", "{{ m.content }}, {{ m.content }}"),
    "drops": PLAIN.replace("{{ m.content }}", ""),
    "last first": "{% for m in messages | reverse %}{{ m.content }};{% endfor %}",
}


class Template:
    def __init__(self, source: str) -> None:
        self._template = jinja2.Environment().from_string(source)
        self.rendered = 0

    def render(self, messages: Any) -> str:
        self.rendered += 1
        return self._template.render(messages=messages)


def told(*texts: str, role: str = "tool") -> list[Message]:
    return [{"role": role, "content": text, "name": f"tool {n}"} for n, text in enumerate(texts)]  # type: ignore[typeddict-item]


texts = st.lists(st.text(max_size=12) | st.sampled_from(["1", "[2]", '{"x": 1}', " ", "\u2028"]), max_size=3)


@settings(max_examples=80)
@given(st.sampled_from([PLAIN, TRIMS, *LOOKS.values()]), st.lists(texts, min_size=3, max_size=6))
def test_it_writes_what_the_template_writes(source: str, talks: list[list[str]]) -> None:
    frames, truth = Frames(Template(source).render), Template(source)
    for talk in talks:
        assert frames.render(told(*talk)) == truth.render(told(*talk))


@pytest.mark.parametrize("source", [PLAIN, TRIMS])
def test_a_proved_shape_is_not_rendered_again(source: str) -> None:
    template = Template(source)
    frames = Frames(template.render)
    for n in range(3):
        frames.render(told(f"{n} left", "ok"))
    known = template.rendered
    assert frames.render(told("none left", "ok")) == Template(source).render(told("none left", "ok"))
    assert template.rendered == known
    frames.render(told("none left", "ok", role="user"))
    for spaced in ("none left ", " none left", ""):
        assert frames.render(told(spaced, "ok")) == Template(source).render(told(spaced, "ok"))
    assert template.rendered == known + 4, "another role is another shape, and a space at the end may be trimmed"


@pytest.mark.parametrize("source", LOOKS.values(), ids=LOOKS)
def test_a_template_that_looks_at_texts_is_always_asked(source: str) -> None:
    template = Template(source)
    frames = Frames(template.render)
    for n in range(8):
        frames.render(told(f"{n} left", "ok"))
    assert template.rendered > 8


def test_what_is_remembered_is_bounded() -> None:
    some: Remembered[int] = Remembered(3)
    for n in range(10):
        assert some.keep(n, n) == n
    assert [some.get(n) for n in range(10)] == [None] * 9 + [9]
