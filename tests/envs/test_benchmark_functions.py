"""Calls are checked against the packages' own schemas before a function runs."""

from __future__ import annotations

import pytest

from agentgym.tools import ToolCall, ToolError
from agentgym_envs.benchmarks.arguments import Refused, take
from agentgym_envs.benchmarks.functions import Functions, FunctionTools

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "name": {"type": "string"},
        "gift": {"type": "boolean", "default": None},
        "size": {"enum": ["s", "m"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "to": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "anything": {},
    },
    "required": ["count"],
}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"count": 3}, {"count": 3}),
        ({"count": "3"}, {"count": 3}),
        ({"count": 3.0}, {"count": 3}),
        ({"count": 1, "price": 2}, {"count": 1, "price": 2}),
        ({"count": 1, "gift": "True"}, {"count": 1, "gift": True}),
        ({"count": 1, "gift": None}, {"count": 1, "gift": None}),
        ({"count": 1, "tags": '["a"]'}, {"count": 1, "tags": ["a"]}),
        ({"count": 1, "name": "7"}, {"count": 1, "name": "7"}),
        ({"count": 1, "anything": [{}]}, {"count": 1, "anything": [{}]}),
    ],
)
def test_arguments_that_fit_are_taken_with_their_types(given, taken) -> None:
    result = take(SCHEMA, given)
    assert result == taken and [type(value) for value in result.values()] == [type(value) for value in taken.values()]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "count: is missing"),
        ({"count": True}, "count: True is not an integer"),
        ({"count": 2.5}, "count: 2.5 is not an integer"),
        ({"count": "many"}, "count: 'many' is not an integer"),
        ({"count": None}, "count: None is not an integer"),
        ({"count": 10**400}, "count: the number is too large"),
        ({"count": "1" + "0" * 400}, "count: the number is too large"),
        ({"count": 1, "price": float("nan")}, "price: nan is not a number"),
        ({"count": 1, "price": "NaN"}, "price: 'NaN' is not a number"),
        ({"count": 1, "name": 7}, "name: 7 is not a text"),
        ({"count": 1, "size": "xl"}, "size: 'xl' is not one of s, m"),
        ({"count": 1, "tags": ["a", 1]}, "tags[1]: 1 is not a text"),
        ({"count": 1, "tags": "[" * 100_000}, f"tags: '{'[' * 56}... is not a list"),
        ({"count": 1, "to": {}}, "to.city: is missing"),
        ({"count": 1, "to": {"city": 1}}, "to.city: 1 is not a text"),
        ({"colour": "red", "count": "x"}, "colour: there is no such argument; count: 'x' is not an integer"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_one_line(given, fault) -> None:
    with pytest.raises(Refused) as refused:
        take(SCHEMA, given)
    assert str(refused.value) == fault


async def test_each_kind_of_mistake_is_told_and_named() -> None:
    def run(name, arguments):
        if arguments["count"] == 2:
            raise ToolError("Error: two is too many")
        return f"{name} {arguments['count']}"

    functions = Functions([{"name": "buy", "description": "", "parameters": SCHEMA}])
    tools = FunctionTools(functions, run, always=[("secret", {"count": "x"})])
    results = [
        await tools.call(ToolCall(name, arguments))
        for name, arguments in (
            ("buy", {"count": "1"}), ("buy", {"count": 2}), ("buy", {"count": "x"}), ("by", {}),
            ("secret", {"count": "x"}), ("secret", {"count": 1}),
        )
    ]  # fmt: skip
    assert [(result.text.partition(".")[0], result.error) for result in results] == [
        ("buy 1", ""),
        ("Error: two is too many", "tool"),
        ("Error: buy: count: 'x' is not an integer", "arguments"),
        ("Error: no tool 'by'", "unknown_tool"),
        ("secret x", ""),
        ("Error: no tool 'secret'", "unknown_tool"),
    ]
    assert tools.schemas() is FunctionTools(functions, run).schemas()
