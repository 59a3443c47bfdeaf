"""Methods as tools: the schema that a model reads, what a call may give, whose fault each failure is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import SandboxUnavailable
from agentgym.testing import run_fast
from agentgym.tools import Toolbox, ToolCall, ToolError, ToolResult, tool


@dataclass
class Parcel:
    weight: float
    fragile: bool = False


class Address(BaseModel):
    """Where to."""

    title: str
    street: str


class Counter:
    """What another world is built upon."""

    def __init__(self) -> None:
        self.stock = {"apple": 3}

    def num_left(self, item: str) -> int:
        """How many are left."""
        return self.stock[item]


class Shop(Counter):
    version = 3

    def buy(self, item: str, count: int = 1, speed: Literal["slow", "fast"] = "slow") -> dict[str, int]:
        """Buy things, as many
        as there are.

        Args:
            item: what to buy
            count (int): how many,
                at least one: not none
            speed: of the delivery

        Returns:
            What is left.
        """
        if self.stock.get(item, 0) < count:
            raise ToolError(f"only {self.stock.get(item, 0)} of {item} left")
        self.stock[item] -= count
        return {"left": self.stock[item]}

    async def send(self, to: Address, parcels: list[Parcel], title: str | None = None, json: int = 1) -> str:
        """Send parcels."""
        return f"{sum(parcel.weight for parcel in parcels)} kg to {to.street}, {title}, {json}"

    @staticmethod
    def double(x: float) -> float:
        """Twice as much."""
        return 2 * x

    @classmethod
    def kind(cls, deep: bool) -> str:
        """What this is."""
        return cls.__name__ if deep else "shop"

    def _secret(self) -> str:
        raise AssertionError("it is private")

    def limited(self, count: Annotated[int, Field(ge=1, le=3)], default: date | None = None) -> list[Any]:
        """At most three."""
        return [count, default]

    def rate(
        self, stars: Literal[1, 2], weight: float | None = 1.0, parts: Literal["1"] | list[int] = "1"
    ) -> list[Any]:
        """Rate it."""
        return [stars, weight, parts]


def ask(world: object, name: str, **arguments: Any) -> ToolResult:
    return asyncio.run(Toolbox.of(type(world)).bind(world).call(ToolCall(name, arguments)))


def parameters(world: type, name: str) -> Any:
    return Toolbox.of(world).schemas[list(Toolbox.of(world).tools).index(name)]["function"]["parameters"]


def test_a_method_becomes_the_schema_that_chat_templates_take() -> None:
    assert [*Toolbox.of(Shop).tools] == ["num_left", "buy", "send", "double", "kind", "limited", "rate"]
    assert Toolbox.of(Shop).schemas[1] == {
        "type": "function",
        "function": {
            "name": "buy",
            "description": "Buy things, as many as there are.",
            "parameters": {
                "type": "object",
                "properties": {
                    "item": {"type": "string", "description": "what to buy"},
                    "count": {"type": "integer", "default": 1, "description": "how many, at least one: not none"},
                    "speed": {
                        "type": "string",
                        "enum": ["slow", "fast"],
                        "default": "slow",
                        "description": "of the delivery",
                    },
                },
                "required": ["item"],
                "additionalProperties": False,
            },
        },
    }
    assert [*parameters(Shop, "buy")][:2] == ["type", "properties"]


def test_titles_are_left_out_and_parameters_called_title_are_not() -> None:
    send = parameters(Shop, "send")
    assert [*send["properties"]] == ["to", "parcels", "title", "json"]
    assert [*send["$defs"]["Address"]["properties"]] == ["title", "street"]
    assert '"title": "' not in json.dumps(send)
    assert "default" in parameters(Shop, "limited")["properties"]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("buy", {"item": "apple", "count": "2"}, '{"left": 1}'),
        ("num_left", {"item": "apple"}, "3"),
        ("double", {"x": "1.5"}, "3.0"),
        ("kind", {"deep": "true"}, "Shop"),
        ("limited", {"count": 2, "default": "2026-05-04"}, '[2, "2026-05-04"]'),
        ("rate", {"stars": "2", "weight": "None", "parts": "1"}, '[2, null, "1"]'),
        (
            "send",
            {"to": {"title": "Dr", "street": "Ö 1"}, "parcels": [{"weight": "1.5"}, {"weight": 2}], "json": 7},
            "3.5 kg to Ö 1, None, 7",
        ),
    ],
)
def test_arguments_are_taken_as_their_types_say(name: str, arguments: dict[str, Any], text: str) -> None:
    assert ask(Shop(), name, **arguments) == ToolResult(text)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "text"),
    [
        ("buy", {"item": "apple", "count": 9}, "tool", "Error: only 3 of apple left"),
        ("bye", {}, "unknown_tool", "Error: no tool 'bye'. Did you mean 'buy'? Available: buy, double, kind, limited"),
        ("_secret", {}, "unknown_tool", "Error: no tool '_secret'."),
        ("version", {}, "unknown_tool", "Error: no tool 'version'."),
        ("buy", {"count": "two", "colour": "red"}, "arguments", "Error: buy: item: Field required; count: "),
        ("buy", {"item": "apple", "self": 1}, "arguments", "Error: buy: self: Extra inputs are not permitted"),
        ("limited", {"count": 4}, "arguments", "Error: limited: count: Input should be less than or equal to 3"),
        ("send", {"to": {"street": "x"}, "parcels": [{}]}, "arguments", "Error: send: to.title: Field required; "),
    ],
)  # fmt: skip
def test_the_agents_mistakes_are_one_line_each(name: str, arguments: dict[str, Any], error: str, text: str) -> None:
    shop = Shop()
    result = ask(shop, name, **arguments)
    assert result.error == error and result.text.startswith(text)
    assert "\n" not in result.text and "http" not in result.text
    assert shop.stock == {"apple": 3}


def unfit(body: str) -> str:
    space: dict[str, Any] = {"Annotated": Annotated, "asyncio": asyncio, "tool": tool, "__name__": "worlds"}
    exec(f"class World:\n{body}", space)
    with pytest.raises(UserError) as error:
        Toolbox.of(space["World"])
    return str(error.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("    def f(self, x: int): pass", "World.f cannot be a tool: it has no docstring"),
        ("    def f(self, x: int):\n        '''Args:\n            x: much'''", "it has no docstring"),
        ("    def f(self, x):\n        'Do.'", "the parameter 'x' has no type"),
        ("    def f(self, *x: int):\n        'Do.'", "the parameter '*x' cannot be given by name"),
        ("    def f(self, **x: int):\n        'Do.'", "the parameter '**x' cannot be given by name"),
        ("    def f(self, x: int, /):\n        'Do.'", "cannot be given by name"),
        ("    @staticmethod\n    def f(x):\n        'Do.'", "the parameter 'x' has no type"),
        ("    @classmethod\n    async def f(cls, x):\n        'Do.'", "the parameter 'x' has no type"),
        ("    def f(self, x: 'Nowhere'):\n        'Do.'", "its types cannot be read: name 'Nowhere'"),
        ("    def f(self, x: asyncio.Event):\n        'Do.'", "its types cannot be checked: "),
        ("    def f(self, x: int):\n        '''Do.\n\n        Args:\n            y: much'''", "describes 'y'"),
        ("    def f(self):\n        'Do.'\n        yield", "it is a generator"),
        ("    @tool(timeout_s=1)\n    def f(self):\n        'Do.'", "which can only end an `async def`"),
        ("    x = 1", "World has no public method"),
    ],
)
def test_a_method_that_cannot_be_a_tool_is_refused_by_name(body: str, reason: str) -> None:
    assert reason in unfit(body)


def test_a_subclass_can_change_and_hide_a_tool() -> None:
    class Kiosk(Shop):
        send = kind = limited = rate = None

        def buy(self, item: str) -> str:
            """Buy one."""
            return item

    assert [*Toolbox.of(Kiosk).tools] == ["num_left", "buy", "double"]
    assert ask(Kiosk(), "buy", item="pear").text == "pear"


def test_a_toolbox_is_made_once_and_takes_its_own_worlds_only() -> None:
    assert Toolbox.of(Shop) is Toolbox.of(Shop)
    assert Toolbox.of(Shop).bind(Shop()).schemas() is Toolbox.of(Shop).bind(Shop()).schemas()
    with pytest.raises(TypeError, match="the methods of Shop, but the episode's state is None; return a world"):
        Toolbox.of(Shop).bind(None)


class Slow:
    """Tools that fail in every way that is not the agent's."""

    @tool(timeout_s=2.0, on_timeout="model")
    async def search(self, words: str) -> str:
        """Search."""
        if words == "own":
            raise TimeoutError("of a library")
        if words == "sandbox":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise asyncio.CancelledError from SandboxUnavailable("the engine is gone")
        await asyncio.sleep(len(words))
        return words

    @tool(timeout_s=2.0)
    async def load(self) -> None:
        """Load."""
        await asyncio.Event().wait()

    @tool(parallel_safe=True)
    def broken(self, how: str) -> object:
        """Break."""
        if how == "result":
            return object()
        raise {"bug": ValueError("a bug"), "infra": InfraError("gone"), "key": KeyError("x")}[how]

    def nothing(self) -> None:
        """Do nothing."""


def fails(name: str, **arguments: Any) -> BaseException:
    with pytest.raises(Exception) as error:
        run_fast(Toolbox.of(Slow).bind(Slow()).call(ToolCall(name, arguments)))
    return error.value


def test_a_time_limit_is_the_fault_of_whom_it_says() -> None:
    call = Toolbox.of(Slow).bind(Slow()).call
    assert run_fast(call(ToolCall("search", {"words": "a"}))) == ToolResult("a")
    told = ToolResult("Error: search: it took longer than its limit of 2 s", "time_limit")
    assert run_fast(call(ToolCall("search", {"words": "abc"}))) == told
    assert isinstance(fails("load"), TimeoutError)
    assert str(fails("search", words="own")) == "of a library"
    assert isinstance(fails("search", words="sandbox"), SandboxUnavailable)


@pytest.mark.parametrize(
    ("how", "kind"), [("bug", ValueError), ("infra", InfraError), ("key", KeyError), ("result", TypeError)]
)
def test_what_a_tool_raises_is_not_the_agents_fault(how: str, kind: type[Exception]) -> None:
    assert isinstance(fails("broken", how=how), kind)


def test_only_tools_that_say_so_run_together() -> None:
    tools = Toolbox.of(Slow).bind(Slow())
    assert [tools.is_parallel_safe(name) for name in ("broken", "load", "unknown")] == [True, False, True]
    assert asyncio.run(tools.call(ToolCall("nothing", {}))).text == "done"


def test_deep_and_wide_arguments_are_refused_and_nothing_breaks() -> None:
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    assert ask(Shop(), "double", x=deep).error == "arguments"
    wide = ask(Shop(), "num_left", **{"item": "apple"}, **{f"x{n}": n for n in range(1000)})
    assert wide.error == "arguments"
