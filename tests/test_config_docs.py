"""What settings are, from the source of their fields and the annotations of parameters."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pytest

from agentgym.components import SEAMS, field_types, find
from agentgym.config import describe, section_of, texts_of
from agentgym.config_docs import field_docs, options_of
from agentgym.hooks import PluginRegistry
from agentgym.recipe import Recipe
from agentgym.rl.losses.gspo import Gspo

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    size: float = 1.0
    """Metres across; a longer text
    goes on in the next line."""
    spokes: int = 3
    bare = 1
    """Not a field's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WideWheel(Wheel):
    size: float = 2.0
    width: float = 0.1
    """Metres from side to side."""
    turns: int = field(default=0, init=False)


def test_a_field_has_the_docstring_below_it_or_that_of_its_base() -> None:
    assert field_docs(Wheel) == {"size": "Metres across; a longer text goes on in the next line."}
    assert field_docs(WideWheel) == {**field_docs(Wheel), "width": "Metres from side to side."}
    assert [one.key for one in describe(WideWheel)] == ["size", "spokes", "width"]  # what can be set


class Annotations:
    def __init__(self, *, source: Annotated[Literal["a", "b"], "where rows come from"] = "a", high: int) -> None: ...


class GoogleStyle:
    def __init__(self, size: int = 3, of: tuple[str, ...] = ("x",)) -> None:
        """Make one.

        Args:
            size (int): How many: at least one.
            of: What they are called.
        """


def unreadable(amount: Decimal, level=1):
    """The type of one exists for type checkers only."""


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (Annotations, [("source", "one of a, b", "a", "where rows come from"), ("high", "int", "", "")]),
        (
            GoogleStyle,
            [("size", "int", "3", "How many: at least one."), ("of", "list of str", "[x]", "What they are called.")],
        ),
        (Wheel, [("size", "float", "1.0", field_docs(Wheel)["size"]), ("spokes", "int", "3", "")]),
        (unreadable, [("amount", "Decimal", "", ""), ("level", "", "1", "")]),
    ],
)
def test_an_option_has_its_type_default_and_own_text(factory, expected) -> None:
    assert [dataclasses.astuple(one) for one in options_of(factory)] == expected


def test_the_texts_of_a_recipe_are_those_of_the_components_that_it_chooses() -> None:
    gspo = texts_of(Recipe, {"loss.name": "gspo", "loss.clip_low": 0.1, "agent.name": "my_agents:Mine"})
    assert gspo["loss.clip_low"] == field_docs(Gspo)["clip_low"] != texts_of(Recipe, {})["loss.clip_low"]
    assert "loss.importance_cap" not in gspo and gspo["rollout.top_k"]


def configs(cls: type) -> Iterator[type]:
    """A config dataclass and those inside it."""
    yield cls
    for hint in field_types(cls).values():
        if section := section_of(hint):
            yield from configs(section)


def every_config() -> Iterator[type]:
    registry = PluginRegistry.discover()
    yield from configs(Recipe)
    for kind, seam in SEAMS.items():
        for name in {*seam.builtin, *registry.names(kind)}:
            yield find(kind, name) if name in seam.builtin else registry.component(kind, name)


def test_every_setting_of_a_recipe_says_what_it_is() -> None:
    short = {
        f"{cls.__qualname__}.{field.name}"
        for cls in every_config()
        for field in dataclasses.fields(cls)
        if len(field_docs(cls).get(field.name, "").split()) < 3
    }
    assert not short, "write a docstring below each of these fields: what it is, its unit, when to change it"


def test_every_config_of_the_source_says_what_its_fields_are() -> None:
    """Those of programs too, which no recipe reaches."""
    bare = [
        f"{path.name}: {node.name}.{ast.unparse(field.target)}"
        for path in (Path(__file__).parents[1] / "agentgym").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and re.search("(Config|Settings|Options)$", node.name)
        for field, below in zip(node.body, [*node.body[1:], None], strict=True)
        if "dataclass" in "".join(map(ast.unparse, node.decorator_list)) and isinstance(field, ast.AnnAssign)
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant))
    ]
    assert not bare, "write a docstring below each of these fields"


def test_every_option_of_our_environments_says_what_it_is() -> None:
    registry = PluginRegistry.discover()
    ours = [
        name
        for name in registry.names("environments")
        if registry.provider("environments", name).distribution == "agentgym"
    ]
    options = [(name, one) for name in ours for one in options_of(registry.environment(name))]
    assert len(options) > 40
    assert not [(name, one.key) for name, one in options if len(one.text.split()) < 3]
