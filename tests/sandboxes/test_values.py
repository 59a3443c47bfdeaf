"""The codec between processes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_sandboxes.docker.agent import values

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
)
keys = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


def typed_text(value: object) -> str:
    """A text that only equal values of equal types share. Written apart from the codec, to check it."""
    kind = type(value).__name__
    if isinstance(value, (set, frozenset)):
        return f"{kind}{sorted(typed_text(item) for item in value)}"
    if isinstance(value, (list, tuple)):
        return f"{kind}{[typed_text(item) for item in value]}"
    if isinstance(value, dict):
        return f"{kind}{[(typed_text(key), typed_text(item)) for key, item in value.items()]}"
    return f"{kind} {value!r}"


@given(plain)
def test_a_value_comes_back_with_its_type_through_json(value: object) -> None:
    tree = json.loads(json.dumps(values.encode(value)))
    assert typed_text(values.decode(tree)) == typed_text(value)


@given(plain)
def test_a_tree_holds_no_json_object(value: object) -> None:
    def refuse(pairs: object) -> None:
        raise AssertionError("an object")

    json.loads(json.dumps(values.encode(value)), object_pairs_hook=refuse)


def test_types_that_are_easily_confused_have_trees_of_their_own() -> None:
    confusable = [
        1,
        1.0,
        True,
        "1",
        b"1",
        [1],
        (1,),
        {1},
        frozenset({1}),
        {1: 1},
        1 + 0j,
        ["t", 1],
        ["i", "0x1"],
    ]
    texts = [values.text(values.encode(value)) for value in confusable]
    assert len(set(texts)) == len(confusable)


def test_a_sets_tree_does_not_hang_on_how_it_was_built() -> None:
    assert values.encode({8, 0, 16}) == values.encode({16, 8, 0})
    assert values.encode({1, "a", (2,)}) == values.encode({(2,), "a", 1})
    assert values.encode({frozenset({1}), frozenset({2})}) == values.encode({frozenset({2}), frozenset({1})})


@pytest.mark.parametrize(
    "value", [object(), max, iter([]), [1, {2: [json]}], type("I", (int,), {})(1), type("T", (type,), {})]
)
def test_only_exact_builtin_types_cross(value: object) -> None:
    with pytest.raises(values.NotPlain):
        values.encode(value)


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: list[object] = []
    for _ in range(60):
        value = [value]
    with pytest.raises(values.NotPlain, match="nested more than 50 deep"):
        values.encode(value)


@pytest.mark.parametrize("tree", [[], [1], ["?"], ["d", 1], ["i"], ["b", "zz"], ["c", 1]])
def test_what_is_no_tree_is_refused(tree: values.Tree) -> None:
    with pytest.raises(ValueError):
        values.decode(tree)
