"""The codec between processes."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_sandboxes.agent import library, values

zones = st.builds(
    timezone, st.timedeltas(timedelta(hours=-20), timedelta(hours=20)), st.text(max_size=3)
) | st.just(UTC)
library_values = (
    st.builds(range, st.integers(), st.integers(), st.integers().filter(bool))
    | st.decimals()
    | st.fractions()
    | st.dates()
    | st.datetimes(timezones=st.none() | zones)
    | st.times(timezones=st.none() | zones)
    | st.timedeltas()
    | st.sampled_from([int, dict, ValueError, type(None), ..., NotImplemented])
)
surrogates = st.text(st.characters(categories=("Cs", "Lu")), max_size=4)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | surrogates
    | st.binary()
    | st.complex_numbers()
    | library_values
)
keys = st.recursive(
    scalars.filter(lambda value: not isinstance(value, Decimal) or not value.is_snan()),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
        | st.dictionaries(keys, inner, max_size=4).map(Counter)
        | st.builds(defaultdict, st.sampled_from([None, int, list]), st.dictionaries(keys, inner, max_size=4))
        | st.builds(deque, st.lists(inner, max_size=4), st.none() | st.integers(4, 9))
        | st.binary().map(bytearray)
        | st.builds(slice, inner, inner, inner)
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
    if isinstance(value, deque):
        return f"{kind}{value.maxlen}{[typed_text(item) for item in value]}"
    if isinstance(value, slice):
        return f"{kind}{[typed_text(item) for item in (value.start, value.stop, value.step)]}"
    if isinstance(value, dict):
        kind += repr(getattr(value, "default_factory", None))
        return f"{kind}{[(typed_text(key), typed_text(item)) for key, item in value.items()]}"
    return f"{kind} {value!r} {getattr(value, 'fold', '')}"


@given(plain)
def test_a_value_comes_back_with_its_type_through_json(value: object) -> None:
    tree = json.loads(values.text(values.encode(value)).encode())
    assert typed_text(values.decode(tree)) == typed_text(value)


@given(plain, plain)
def test_no_two_values_share_a_text(one: object, other: object) -> None:
    same_text = values.text(values.encode(one)) == values.text(values.encode(other))
    assert same_text == (typed_text(one) == typed_text(other))


@given(plain)
def test_a_copy_is_changed_in_place_to_become_the_value(value: object) -> None:
    tree = values.encode([value])
    container: list[object] = ["before"]
    values.Reader([]).fill(container, tree)
    assert typed_text(container) == typed_text([value])


def test_a_list_that_is_there_twice_stays_one_list() -> None:
    row: list[object] = [1]
    grid: list[object] = [row, {"k": row}]
    grid.append(grid)
    tree = values.Writer([]).tree((grid, row))
    shared: list[object] = []
    first, second = values.Reader(shared).read(tree)  # type: ignore[misc]
    assert first[0] is first[1]["k"] is second and first[2] is first
    assert [type(held) for held in shared] == [list, list, dict]


def test_a_reference_to_nothing_is_no_tree() -> None:
    for tree in (["&", 5], ["&", -1], ["&", True], ["&"], ["l", ["&", 1]]):
        with pytest.raises(ValueError):
            values.Reader([]).read(tree)
        with pytest.raises(ValueError):
            values.decode(tree)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists, max_leaves=9))
def test_any_tree_is_read_or_refused(tree: values.Tree) -> None:
    for tag in (*values.MUTABLE, *library.KINDS, "t", "z", "i", "b", "c", "u", "&"):
        with contextlib.suppress(ValueError):
            values.Reader([]).read([tag, *(tree if isinstance(tree, list) else [tree])])


@given(plain)
def test_a_tree_holds_no_json_object(value: object) -> None:
    def refuse(pairs: object) -> None:
        raise AssertionError("an object")

    json.loads(json.dumps(values.encode(value)), object_pairs_hook=refuse)


def test_types_that_are_easily_confused_have_trees_of_their_own() -> None:
    confusable = [
        1, 1.0, True, "1", b"1", [1], (1,), {1}, frozenset({1}), {1: 1}, 1 + 0j, ["t", 1], ["i", "0x1"],
    ]  # fmt: skip
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


@pytest.mark.parametrize(
    "tree",
    [
        [], [1], ["?"], ["d", 1], ["i"], ["b", "zzz"], ["c", 1], ["b", 1], ["range", 1.5, 2, 1],
        ["deque", "x"], ["default", "exec"], ["type", "eval"], ["fraction", 1, 0], ["date", 1, 99, 1],
        ["s", ["l"]], ["d", ["l"], 1], ["timedelta", 1e999, 0, 0], ["decimal", 1], ["decimal", "x"],
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(tree: values.Tree) -> None:
    with pytest.raises(ValueError):
        values.decode(tree)
