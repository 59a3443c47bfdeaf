"""Calls go to a package's functions as they are, and each kind of mistake is reported."""

from __future__ import annotations

from agentgym.tools import ToolCall, ToolError
from agentgym_envs.benchmarks.functions import Functions, FunctionTools


async def test_each_kind_of_mistake_is_told_and_named() -> None:
    def run(name, arguments):
        if arguments["count"] == 2:
            raise ToolError("Error: two is too many")
        return f"{name} {arguments['count']!r}"

    functions = Functions([{"name": "buy", "description": "", "parameters": {}}])
    tools = FunctionTools(functions, run, hidden={"secret"})
    results = [
        await tools.call(ToolCall(name, arguments))
        for name, arguments in (
            ("buy", {"count": "1"}), ("buy", {"count": 2}), ("by", {}), ("secret", {"count": "x"}),
        )
    ]  # fmt: skip
    assert [(result.text.partition(".")[0], result.error) for result in results] == [
        ("buy '1'", ""),
        ("Error: two is too many", "tool"),
        ("Error: no tool 'by'", "unknown_tool"),
        ("secret 'x'", ""),
    ]
    assert tools.schemas() is FunctionTools(functions, run).schemas()


async def test_what_a_function_does_to_an_argument_stays_with_it() -> None:
    """A right call's list that one episode made longer was the next one's gold."""
    given = {"names": ["a"]}

    def run(name, arguments):
        arguments["names"].append("b")
        return str(arguments["names"])

    tools = FunctionTools(Functions([{"name": "mention", "description": ""}]), run)
    assert (await tools.call(ToolCall("mention", given))).text == "['a', 'b']" and given == {"names": ["a"]}
