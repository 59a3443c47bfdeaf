"""The codec of values: exact types both ways, one text for a value, and any tree read safely."""

from __future__ import annotations

import json
from random import Random

from agentgym_sandboxes.agent import values
from agentgym_sandboxes.host import trees
from fuzz import mutation
from fuzz.plain import equal, near_miss, random_value, rebuilt, typed_text
from fuzz.running import Target


def round_trip(random: Random) -> None:
    """A value comes back equal and of equal types, through the text that goes over the pipe."""
    value = random_value(random)
    line = values.text(values.encode(value)).encode()
    assert b"\n" not in line
    tree = json.loads(line, object_pairs_hook=_refuse)
    assert typed_text(values.decode(tree)) == typed_text(value)


def _refuse(pairs: object) -> None:
    raise AssertionError("a tree holds a JSON object")


def injective(random: Random) -> None:
    """Different values have different texts; the same value has one, however its sets were built."""
    value = random_value(random)
    other = near_miss(random, value) if random.random() < 0.7 else random_value(random)
    one, two = values.text(values.encode(value)), values.text(values.encode(other))
    assert (one == two) == (typed_text(value) == typed_text(other)), (one, two)
    assert values.text(values.encode(rebuilt(random, value))) == one


def compared(random: Random) -> None:
    """Trees are the same exactly when the values are, by a comparison that never heard of trees."""
    value = random_value(random)
    other = near_miss(random, value) if random.random() < 0.8 else rebuilt(random, value)
    same = trees.same(values.encode(other), values.encode(value))
    assert same == equal(other, value), (other, value)


def rendered(random: Random) -> None:
    """Any value and any garbage is shown in a line that is as short as it should be, and can be written."""
    tree = mutation.random_tree(random)
    if random.random() < 0.7:
        tree = values.encode(random_value(random))
    for _ in range(random.randint(0, 2)):
        tree = mutation.spoil_tree(random, tree)
    shown = trees.render(_loaded(tree), random.choice((4, 80)))
    assert len(shown) <= 80 and "\n" not in shown
    shown.encode()


def any_tree(random: Random) -> None:
    """Any JSON for a tree: a value that can be encoded again, or ValueError."""
    tree = mutation.random_tree(random)
    if random.random() < 0.7:
        tree = values.encode(random_value(random))
        for _ in range(random.randint(1, 4)):
            tree = mutation.spoil_tree(random, tree)
    try:
        value = values.decode(_loaded(tree))
    except ValueError:
        return
    try:
        again = values.encode(value)
    except values.NotPlain:
        return
    assert typed_text(values.decode(again)) == typed_text(value)


def shared(random: Random) -> None:
    """Containers that are held twice stay one, also in rings."""
    nodes: list[list[object]] = [[index] for index in range(random.randint(1, 6))]
    for _ in range(random.randint(0, 10)):
        random.choice(nodes).append(random.choice([*nodes, (random.choice(nodes),), {"k": random.choice(nodes)}]))
    tree = json.loads(values.text(values.Writer([]).tree(nodes)))
    assert _shape(values.Reader([]).read(tree)) == _shape(nodes)


def _shape(value: object) -> str:
    """A text of an object graph: each list and dict by its number in the order of first sight."""
    seen: dict[int, int] = {}

    def walk(item: object) -> str:
        if isinstance(item, (list, dict)):
            if id(item) in seen:
                return f"#{seen[id(item)]}"
            seen[id(item)] = len(seen)
        if isinstance(item, dict):
            return "{" + ",".join(f"{key}:{walk(held)}" for key, held in item.items()) + "}"
        if isinstance(item, (list, tuple)):
            return f"{type(item).__name__}({','.join(map(walk, item))})"
        return repr(item)

    return walk(value)


def _loaded(tree: object) -> values.Tree:
    """The tree as it would be read from a pipe; where that fails, it would not come so far."""
    try:
        loaded: values.Tree = json.loads(mutation.as_text(tree))
    except (ValueError, RecursionError):
        return None
    return loaded


TARGETS = [
    Target(name="values-round-trip", case=round_trip),
    Target(name="values-injective", case=injective),
    Target(name="values-compared", case=compared),
    Target(name="values-rendered", case=rendered),
    Target(name="values-any-tree", case=any_tree),
    Target(name="values-shared", case=shared, weight=0.5),
]
