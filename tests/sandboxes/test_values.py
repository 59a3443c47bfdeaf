"""The codec between processes."""

from __future__ import annotations

import json
from random import Random

import pytest
from fuzz.plain import random_value, typed_text

from agentgym_sandboxes.agent import values


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_is_changed_in_place_to_become_the_value(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        value = random_value(random)
        container: list[object] = ["before"]
        values.Reader([]).fill(container, values.encode([value]))
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
