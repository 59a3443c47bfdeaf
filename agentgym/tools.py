"""Tools of an agent: every public method of an episode's world is one.

A toolbox is made of a class once, when a run starts, and bound to the world of each episode. What goes wrong in a
call has one of three owners: the agent, who is told so in one line; the environment, whose episode is left out; or
the time limit, whose owner is declared.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from agentgym.argument_types import ArgumentTypes
from agentgym.errors import UserError, nearest, waited_for
from agentgym.signatures import Refused, Signature, read_signature, to_json_value
from agentgym.types import Json
from agentgym.utf8 import clean, clean_fields

Method = TypeVar("Method")
Schema: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What an agent asks for. call_id: as the agent's format has it, or empty."""

    name: str
    arguments: Mapping[str, Json]
    call_id: str = ""

    def __post_init__(self) -> None:
        clean_fields(self, "name", "arguments", "call_id")


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call that could not be read. text: as it was sampled. fault: one line that says what is wrong with it."""

    text: str
    fault: str

    def __post_init__(self) -> None:
        clean_fields(self, "text", "fault")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the agent is told. error: empty, or one of malformed, unknown_tool, arguments, tool, time_limit."""

    text: str
    error: str = ""

    def __post_init__(self) -> None:
        clean_fields(self, "text")


class ToolError(Exception):
    """Raised by a tool whose call was the agent's mistake: the agent is told the text, and goes on.

    Any other exception of a tool counts as a bug of the environment.
    """


class Tools(Protocol):
    """The tools of one episode."""

    def schemas(self) -> Sequence[Schema]:
        """{"type": "function", "function": {"name", "description", "parameters"}} of each tool.

        The same object as long as they are the same tools.
        """

    def is_parallel_safe(self, name: str) -> bool:
        """Whether calls of this tool may run at the same time as others of their turn."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises only what is the environment's fault; InfraError is the sandbox's."""


@dataclass(frozen=True, slots=True)
class _Marks:
    """What `@tool` declares about a method."""

    timeout_s: float | None = None
    on_timeout: Literal["model", "environment"] = "environment"
    parallel_safe: bool = False


_MARKS = "__agentgym_tool__"


def tool(
    *,
    timeout_s: float | None = None,
    on_timeout: Literal["model", "environment"] = "environment",
    parallel_safe: bool = False,
) -> Callable[[Method], Method]:
    """Mark a method that needs more than the defaults; a public method is a tool without it, too.

    timeout_s: of one call, of an `async def` only. on_timeout: whose fault it is when that is over: the agent is
    told, or the episode is left out as broken. parallel_safe: calls of one turn may run at the same time if all
    their tools say so.
    """
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}; give more than 0")
    if on_timeout not in ("model", "environment"):
        raise ValueError(f"on_timeout is {on_timeout!r}; give 'model' or 'environment'")
    marks = _Marks(timeout_s, on_timeout, parallel_safe)

    def mark(method: Method) -> Method:
        setattr(method, _MARKS, marks)
        return method

    return mark


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    signature: Signature
    marks: _Marks
    types: ArgumentTypes

    def schema(self) -> Schema:
        described: dict[str, Json] = {
            "name": self.name,
            "description": self.signature.description,
            "parameters": self.signature.parameters,
        }
        return {"type": "function", "function": described}


class Toolbox:
    """The tools that a class of worlds offers. Make it with `of`."""

    def __init__(self, world: type) -> None:
        """Raises UserError that names the method which cannot be a tool, and says why."""
        self._world = world
        self.tools = {name: _read_tool(world, name, found) for name, found in _public_methods(world).items()}
        self.schemas: tuple[Schema, ...] = clean(tuple(one.schema() for one in self.tools.values()))
        if not self.tools:
            raise UserError(f"{world.__qualname__} has no public method, so it offers no tool")

    @classmethod
    def of(cls, world: type) -> Toolbox:
        """The toolbox of a class, which is made once. Raises UserError for a method that cannot be a tool."""
        return _toolbox_of(world)

    def bind(self, world: object) -> Tools:
        """The tools of one episode. Raises TypeError for a world of another class."""
        if not isinstance(world, self._world):
            raise TypeError(
                f"the tools are the methods of {self._world.__qualname__}, but the episode's state is {world!r:.80}; "
                "return a world from `start`"
            )
        return _WorldTools(self, world)


@functools.cache
def _toolbox_of(world: type) -> Toolbox:
    return Toolbox(world)


@dataclass(frozen=True, slots=True)
class _WorldTools:
    """A toolbox and the world that its tools change."""

    _toolbox: Toolbox
    _world: object

    def schemas(self) -> Sequence[Schema]:
        return self._toolbox.schemas

    def is_parallel_safe(self, name: str) -> bool:
        found = self._toolbox.tools.get(name)
        return found is None or found.marks.parallel_safe  # an unknown tool changes nothing

    async def call(self, call: ToolCall) -> ToolResult:
        found = self._toolbox.tools.get(call.name)
        if found is None:
            return ToolResult(
                f"Error: no tool {call.name!r:.80}.{nearest(call.name, self._toolbox.tools)}", "unknown_tool"
            )
        try:
            given = found.signature.take(found.types.typed(call.arguments))
        except Refused as refused:
            return ToolResult(f"Error: {call.name}: {refused}", "arguments")
        try:
            value = getattr(self._world, call.name)(**given)
            if inspect.isawaitable(value):
                value = await _within(found.marks.timeout_s, value)
        except ToolError as error:
            return ToolResult(f"Error: {error}", "tool")
        except _LimitOver as over:
            if found.marks.on_timeout == "environment":
                raise TimeoutError(str(over)) from over
            return ToolResult(f"Error: {call.name}: {over}", "time_limit")
        return ToolResult(value if isinstance(value, str) else as_text(value))


def clean_schemas(tools: Tools) -> Sequence[Schema]:
    """The schemas with clean texts; those of a class's methods are cleaned once, when they are read."""
    return tools.schemas() if isinstance(tools, _WorldTools) else clean(tools.schemas())


class _LimitOver(Exception):
    """A tool's own limit, not some other timeout that it met."""


async def _within(limit_s: float | None, value: Awaitable[Any]) -> Any:
    if limit_s is None:
        return await value
    import asyncio  # only here: to import the library needs no event loop

    try:
        async with asyncio.timeout(limit_s) as limit:
            return await value
    except TimeoutError as error:
        if not limit.expired():
            raise
        if (cause := waited_for(error)) is not None:
            raise cause from error
        raise _LimitOver(f"it took longer than its limit of {limit_s:g} s") from error


_AS_JSON = json.JSONEncoder(ensure_ascii=False, default=to_json_value)


def as_text(value: object) -> str:
    """What a tool returned, for the agent: texts as they are, all else as JSON. Raises TypeError or ValueError."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    return _AS_JSON.encode(value)


def _public_methods(world: type) -> dict[str, Any]:
    """The methods by name; those of the base classes first, each in the order of definition."""
    found: dict[str, Any] = {}
    for base in reversed(world.__mro__[:-1]):
        for name, value in vars(base).items():
            if name.startswith("_"):
                continue
            if inspect.isfunction(value) or isinstance(value, (staticmethod, classmethod)):
                found[name] = value
            else:
                found.pop(name, None)  # a subclass can hide a tool: `buy = None`
    return found


def _read_tool(world: type, name: str, defined: Any) -> _Tool:
    function = defined.__func__ if isinstance(defined, (staticmethod, classmethod)) else defined
    marks: _Marks = getattr(defined, _MARKS, None) or getattr(function, _MARKS, None) or _Marks()
    try:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UserError("it is a generator; return the whole result")
        if marks.timeout_s is not None and not inspect.iscoroutinefunction(function):
            raise UserError("it has a time limit, which can only end an `async def`")
        signature = read_signature(function, skip=0 if isinstance(defined, staticmethod) else 1)
    except UserError as error:
        raise UserError(f"{world.__qualname__}.{name} cannot be a tool: {error}") from error
    return _Tool(name, signature, marks, ArgumentTypes(signature.parameters))
