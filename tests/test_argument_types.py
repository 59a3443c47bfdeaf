"""Texts are read as a schema asks for, whatever the schema is."""

from __future__ import annotations

from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.argument_types import ArgumentTypes

TEXTS = {"1": 1, "-2": -2, "1.5": 1.5, "2.0": 2.0, "true": True, "null": None, "[]": [], "{}": {}}
values = st.sampled_from([*TEXTS.values()])
names = st.sampled_from(["null", "boolean", "integer", "number", "array", "object"])
simple = (
    names.map(lambda one: {"type": one})
    | st.lists(names, min_size=1, max_size=3, unique=True).map(lambda one: {"type": one})
    | values.map(lambda one: {"const": one})
    | st.lists(values, min_size=1, max_size=3).map(lambda one: {"enum": one})
)


def combined(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.sampled_from(["allOf", "anyOf", "oneOf"])
    return st.dictionaries(several, st.lists(part, min_size=1, max_size=3), min_size=1)


schemas = st.recursive(simple, combined, max_leaves=6)
references = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/$defs/gone", "other.json", 3])
odd = st.recursive(
    values | simple | references.map(lambda one: {"$ref": one}),
    lambda part: combined(part) | st.dictionaries(st.sampled_from(["type", "enum", "properties", "$ref"]), part),
    max_leaves=8,
)


@settings(max_examples=300)
@given(schemas, st.sampled_from([*TEXTS]), st.booleans())
def test_what_the_schema_takes_is_read_and_where_it_takes_texts_they_stay(schema: Any, text: str, free: bool) -> None:
    """By the validator, which needs no kinds."""
    if free:
        schema = {"anyOf": [schema, {"type": "string"}]}
    taken = ArgumentTypes({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": schema}}}}).typed({"a": text})["a"]
    if free or jsonschema.Draft202012Validator(schema).is_valid(TEXTS[text]):
        expected = text if free else TEXTS[text]
        assert taken == expected and type(taken) is type(expected)


@given(odd, odd)
def test_any_schema_is_survived(one: Any, other: Any) -> None:
    schema = {"allOf": [one], "properties": {"a": one}, "$defs": {"a": other, "b": one}}
    assert ArgumentTypes(schema).typed({"a": "1", "b": "x"})["b"] == "x"
    ArgumentTypes(one).typed({"a": "1"})


def test_a_schema_that_doubles_at_each_step_takes_no_time() -> None:
    doubled = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2, "allOf": [{"$ref": "#"}] * 2} for n in range(20)}
    schema = {"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {**doubled, "20": {"type": "integer"}}}
    assert ArgumentTypes(schema).typed({"a": "1"}) == {"a": 1}
