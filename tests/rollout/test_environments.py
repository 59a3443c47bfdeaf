"""What an environment's class attributes have to be."""

from __future__ import annotations

import pytest

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.rollout.environments import build_environment


class Plain(Environment[None]):
    def tasks(self, split, seed=0):  # type: ignore[no-untyped-def]
        yield from ()


def built(kind: type[Environment[None]]) -> Environment[None]:
    class Lots:
        @hookimpl
        def environments(self) -> dict[str, type[Environment[None]]]:
            return {"lot": kind}

    registry = PluginRegistry([])
    registry.register(Lots(), "lots")
    return build_environment(registry, "lot", {})


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("rewards", lambda self: 1.0, r"`rewards` is a function; it has to be a mapping of names to weights"),
        ("rewards", ["exact"], r"`rewards` is \['exact'\]; it has to be a mapping of names to weights"),
        ("rewards", {"exact": "1"}, r"`rewards` is {'exact': '1'}"),
        ("max_turns", "4", r"`max_turns` is '4'; it has to be a number from 1"),
        ("max_turns", 0, r"`max_turns` is 0; it has to be a number from 1"),
        ("splits", "test", r"`splits` is 'test'; it has to be a tuple of 'train' and 'test'"),
        ("splits", ("eval",), r"`splits` is \('eval',\)"),
        ("tools", object(), r"`tools` is <object .*; it has to be the class of the state, or None"),
        ("version", "2", r"`version` is '2'; it has to be a whole number"),
        ("name", None, r"`name` is None; it has to be a text"),
    ],
)
def test_an_attribute_of_the_wrong_kind_is_refused_by_name(attribute: str, value: object, expected: str) -> None:
    with pytest.raises(UserError, match=f"environment 'lot': {expected}"):
        built(type("Lot", (Plain,), {attribute: value}))


def test_attributes_may_be_set_by_the_object_itself() -> None:
    class Own(Plain):
        def __init__(self) -> None:
            self.rewards, self.max_turns, self.splits = {"exact": 1}, 3, ("test",)  # type: ignore[misc]

    assert built(Own).max_turns == 3
