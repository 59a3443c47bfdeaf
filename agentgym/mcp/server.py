"""A server, and one session with it as the tools of an episode."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TextIO, TypeVar, cast

from agentgym.argument_types import ArgumentTypes
from agentgym.errors import InfraError, UserError, nearest, pip_install
from agentgym.mcp.lines import over
from agentgym.mcp.messages import readable
from agentgym.mcp.schemas import check_of, faults_of, shown
from agentgym.sandbox import Machine
from agentgym.tools import Schema, ToolCall, ToolResult
from agentgym.utf8 import clean

Answer = TypeVar("Answer")

_LINK = re.compile(r"\s*For further information visit https?://\S+")
_HALF = re.compile(r"hex escape|unicode code point")  # in the words of the package's parser


@dataclass
class McpServer:
    """How a server is reached. Make it with `stdio`, `http` or `of`; then `open` gives the tools of an episode.

    name: as it is called in errors. connect: makes what `mcp.Client` takes, and is given the file for what the server
    says on its standard error. call_timeout_s: of one call; a server that does not answer within it, or dies, broke
    the episode, which is played again. shared: all episodes use one session, which is right where calls change nothing.
    """

    name: str
    connect: Callable[[TextIO], Any]
    call_timeout_s: float = 30.0
    start_timeout_s: float = 30.0
    shared: bool = False
    _session: McpSession | None = field(default=None, init=False, repr=False)

    @classmethod
    def stdio(
        cls, command: str, *arguments: str, env: Mapping[str, str] | None = None, cwd: str | None = None, **limits: Any
    ) -> Self:
        """A server that is started as a process. limits: `call_timeout_s`, `start_timeout_s` and `shared`."""
        _import_mcp()
        given = None if env is None else dict(env)
        return cls(" ".join((command, *arguments)), partial(_process, command, arguments, given, cwd), **limits)

    @classmethod
    def http(cls, url: str, **limits: Any) -> Self:
        """A server behind an address, over streamable HTTP: `http://host:port/mcp`."""
        _import_mcp()
        return cls(url, partial(_as_it_is, url), **limits)

    @classmethod
    def inside(
        cls, machine: Machine, command: str, *arguments: str, name: str = "", limits: Mapping[str, Any] = {}, **how: Any
    ) -> Self:
        """A server that is started in a task's container. how: as `Machine.talk` takes it: user, env, folder, errors.

        Whoever owns the container can kill and replace it: what it says proves nothing."""
        _import_mcp()
        words = (command, *arguments)
        return cls(name or " ".join(words), lambda errors: readable(over(machine.talk(words, **how))), **limits)

    @classmethod
    def of(cls, server: object, **limits: Any) -> Self:
        """A server of this process, an `MCPServer` of the package `mcp`: for tests."""
        _import_mcp()
        return cls(str(getattr(server, "name", "server")), partial(_as_it_is, server), **limits)

    def __getstate__(self) -> dict[str, object]:
        """The state without its session: an environment is sent to the processes that score, which open none."""
        return {**self.__dict__, "_session": None}

    async def open(self) -> McpSession:
        """The tools of one episode; close them when it ends. Raises InfraError where the server does not start.

        Raises UserError for a tool whose schema is not one.
        """
        if not self.shared:
            return await McpSession(self).started()
        if self._session is None or self._session.is_broken:
            self._session = McpSession(self)  # before it has started: episodes that begin together share it
        return await self._session.started()

    async def close(self) -> None:
        """End the session that all episodes share."""
        if self._session is not None:
            await self._session.end()
            self._session = None


class McpSession:
    """One connection to a server, as the `Tools` of an episode."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._client: Any = None
        self._schemas: tuple[Schema, ...] = ()
        self._checks: dict[str, Any] = {}  # validators of arguments, by the tool's name
        self._parallel_safe: set[str] = set()
        self._broken = ""
        self._ending = asyncio.Event()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._errors = cast(TextIO, tempfile.TemporaryFile("w+", errors="replace"))  # noqa: SIM115  closed with the session
        self._task = asyncio.create_task(self._serve())

    async def started(self) -> Self:
        limit_s = self._server.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.shield(self._opened)
        except TimeoutError as error:
            late = InfraError(f"{self._named()} did not start within {limit_s:g} s{self._last_words()}")
            await self.end()
            raise late from error
        except BaseException as error:
            if not (self._server.shared and isinstance(error, asyncio.CancelledError)):  # others may wait for it
                await self.end()
            raise
        return self

    @property
    def is_broken(self) -> bool:
        return bool(self._broken) or self._task.done()

    def schemas(self) -> Sequence[Schema]:
        return self._schemas

    def is_parallel_safe(self, name: str) -> bool:
        """What the server says of the tool: that it only reads."""
        return name in self._parallel_safe or name not in self._checks

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises InfraError where the server died, or did not answer in time; its session is over then."""
        check = self._checks.get(call.name)
        if check is None:
            return ToolResult(f"Error: no tool {call.name!r:.80}.{nearest(call.name, self._checks)}", "unknown_tool")
        arguments = clean(ArgumentTypes(check.schema).typed(call.arguments))
        if faults := faults_of(check, arguments):
            return ToolResult(f"Error: {call.name}: {faults}", "arguments")
        if self.is_broken:
            raise InfraError(f"{self._named()} is gone{self._broken}{self._last_words()}")
        try:
            return _tool_result(await self._ask(call.name, self._client.call_tool(call.name, arguments)))
        except _Refused as refused:
            return ToolResult(f"Error: {call.name}: {refused}", refused.kind)

    async def close(self) -> None:
        """End the session and, where it is one of this episode alone, the server."""
        if not self._server.shared or self.is_broken:
            await self.end()

    async def end(self) -> None:
        self._broken = self._broken or ": its session was closed"
        self._ending.set()
        if not self._opened.done() and not self._task.cancelling():  # a second one would end its cleaning up
            self._task.cancel()
        await asyncio.wait([self._task])
        if not self._opened.done():
            self._opened.set_exception(InfraError(f"{self._named()} did not start{self._broken}"))
        self._opened.exception()  # it was reported already
        self._errors.close()

    async def _serve(self) -> None:
        """Hold the connection: in a task of its own, since its parts must be closed where they were opened."""
        import mcp

        try:
            async with AsyncExitStack() as stack:
                self._client = await stack.enter_async_context(mcp.Client(self._server.connect(self._errors)))
                await self._list()
                self._opened.set_result(None)
                await self._ending.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._broken = self._broken or f": {_reason(error)}"
            if not self._opened.done():
                self._opened.set_exception(self._as_ours(error))

    def _as_ours(self, error: BaseException) -> Exception:
        from mcp_types import METHOD_NOT_FOUND

        if isinstance(cause := _cause(error), UserError):
            return cause
        if getattr(cause, "code", None) == METHOD_NOT_FOUND and "initialize" in str(cause):
            return UserError(
                f"{self._named()} is not a full MCP server: it does not know `initialize` ({cause}). If it is "
                "an OpenEnv server, play it with `--env openenv --env.options.url http://HOST:PORT`, without the /mcp"
            )
        return InfraError(f"{self._named()} did not start: {_reason(error)}{self._last_words()}")

    async def _list(self) -> None:
        tools, cursor = [], None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        self._schemas = tuple(shown(tool) for tool in tools)
        self._checks = {tool.name: check_of(tool, self._server.name) for tool in tools}
        self._parallel_safe = {tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint}

    async def _ask(self, tool: str, call: Awaitable[Answer]) -> Answer:
        """One answer. A call that is given up ends the session: nobody knows what it still does to the server."""
        import mcp
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, PARSE_ERROR, REQUEST_TIMEOUT

        asked = asyncio.ensure_future(call)
        limit_s = self._server.call_timeout_s
        try:
            done, _ = await asyncio.wait([asked, self._task], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if asked in done:
                return self._answer(tool, asked)
            why = "died" if done else f"did not answer within {limit_s:g} s"
            raise InfraError(f"{self._named()} {why} in a call of {tool}{self._last_words()}")
        except mcp.MCPError as error:
            if self.is_broken or error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                self._broken = self._broken or f": {error.message}"
                raise InfraError(
                    f"{self._named()} died in a call of {tool}: {error.message}{self._last_words()}"
                ) from error
            if error.code == INVALID_PARAMS:
                raise _Refused(error.message, "arguments") from error
            if error.code == PARSE_ERROR and _HALF.search(error.message):  # over HTTP the package keeps no more of it
                raise _Refused("the tool's answer is not valid UTF-8", "tool") from error
            raise InfraError(f"{self._named()} failed in a call of {tool}: {error.message}") from error
        finally:
            if not asked.done():
                asked.cancel()
                self._broken = self._broken or f": a call of {tool} was given up"
                self._ending.set()

    def _answer(self, tool: str, asked: asyncio.Future[Answer]) -> Answer:
        """Raises MCPError, and InfraError where the answer is not what the server itself promised."""
        try:
            return asked.result()
        except (RuntimeError, ValueError) as error:  # its outputSchema, or the protocol
            said = str(error).split("\n")[0]
            raise InfraError(f"{self._named()} broke its own contract in a call of {tool}: {said:.500}") from error

    def _named(self) -> str:
        return f"the MCP server {self._server.name!r}"

    def _last_words(self) -> str:
        """The end of what it said on its standard error."""
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        lines = self._errors.read()[-2000:].strip().splitlines()
        return f". It said: {lines[-1][:300]}" if lines else ""


class _Refused(Exception):
    """A call that failed and that the agent may make otherwise. kind: as of a `ToolResult`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def _import_mcp() -> None:
    try:
        import jsonschema  # noqa: F401
        import mcp  # noqa: F401
    except ImportError as error:
        raise UserError(f"tools of MCP servers need more packages: {pip_install('mcp')}") from error


def _process(
    command: str, arguments: Sequence[str], env: dict[str, str] | None, cwd: str | None, errors: TextIO
) -> Any:
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    given = StdioServerParameters(
        command=command, args=list(arguments), env=env, cwd=cwd, encoding_error_handler="replace"
    )
    return readable(stdio_client(given, errlog=errors))


def _as_it_is(server: object, errors: TextIO) -> object:
    return server


def _cause(error: BaseException) -> BaseException:
    """The first error of a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    error = _cause(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _tool_result(answer: Any) -> ToolResult:
    """What the agent reads of a result; links to pages about errors cost tokens and say nothing."""
    parts = [_block(block) for block in answer.content]
    if not parts and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
    text = "\n".join(part for part in parts if part)
    if not answer.is_error:
        return ToolResult(text or "done")
    text = " ".join(_LINK.sub("", text).split())
    return ToolResult(text if text.startswith("Error") else f"Error: {text}", "tool")


def _block(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    if block.type == "resource_link":
        return str(block.uri)
    return f"[{block.type}: this agent reads only text]"
