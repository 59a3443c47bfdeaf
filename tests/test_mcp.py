"""Tools of MCP servers: one in this process, real ones over stdio and streamable HTTP, and what breaks them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mcp_halves
import mcp_shop
import pytest
from mcp.server.lowlevel import Server

from agentgym import Environment, InfraError, Reply, Task, ToolCall, reward
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.mcp import McpServer
from agentgym.policies.scripted import play_script
from agentgym.rollout.scoring import Scorer
from agentgym.types import Outcome

SHOP = str(Path(mcp_shop.__file__))


def stdio(**limits: float | bool) -> McpServer:
    return McpServer.stdio(sys.executable, SHOP, **limits)


@pytest.fixture
def address() -> Iterator[str]:
    yield from served(SHOP)


def served(program: str) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, program, "http"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stderr is not None
        running = next(found for line in server.stderr if (found := re.search(r"running on (http://\S+)", line)))
        yield f"{running[1]}/mcp"
        server.kill()


async def answers(server: McpServer) -> None:
    session = await server.open()
    try:
        schemas = session.schemas()
        assert session.schemas() is schemas
        buy = schemas[0]["function"]
        assert buy["name"] == "buy" and buy["description"] == "Buy things."
        assert buy["parameters"]["properties"] == {
            "item": {"type": "string"},
            "count": {"default": 1, "type": "integer"},
        }
        assert session.is_parallel_safe("look") and not session.is_parallel_safe("buy")
        result = await session.call(ToolCall("buy", {"item": "apple", "count": "2"}))
        assert (result.text, result.error) == ("left: 1", "")
        result = await session.call(ToolCall("buy", {"item": "apple", "count": 9}))
        assert result.error == "tool" and "only 1 of apple" in result.text
        result = await session.call(ToolCall("buy", {"count": "two"}))
        assert result.error == "arguments" and "'two' is not of type 'integer'; 'item' is a required" in result.text
        result = await session.call(ToolCall("bye", {}))
        assert result.error == "unknown_tool" and "Did you mean 'buy'?" in result.text
    finally:
        await session.close()


async def test_a_server_of_this_process_answers(monkeypatch):
    monkeypatch.setitem(mcp_shop.STOCK, "apple", 3)
    await answers(McpServer.of(mcp_shop.server))


async def test_a_process_of_its_own_answers_and_each_session_has_its_own_state():
    await answers(stdio())
    await answers(stdio())


async def test_a_server_behind_an_address_answers(address):
    await answers(McpServer.http(address))


HALVES = str(Path(mcp_halves.__file__))


async def test_half_a_character_in_a_result_costs_neither_the_call_nor_the_session():
    session = await McpServer.stdio(sys.executable, HALVES, call_timeout_s=10.0, shared=True).open()
    for _ in range(2):
        result = await session.call(ToolCall("cut", {}))
        assert (result.text, result.error) == ("half \ufffd", "")
    await session.end()
    for address in served(HALVES):
        session = await McpServer.http(address).open()
        for _ in range(2):  # over HTTP the package keeps nothing of the answer
            result = await session.call(ToolCall("cut", {}))
            assert (result.text, result.error) == ("Error: cut: the tool's answer is not valid UTF-8", "tool")
        await session.close()


async def pid(session) -> Path:
    return Path("/proc", (await session.call(ToolCall("pid", {}))).text)


async def test_a_server_that_dies_is_named_with_its_last_words():
    session = await stdio().open()
    with pytest.raises(InfraError, match=r"mcp_shop.py' died in a call of die.*out of memory"):
        await session.call(ToolCall("die", {}))
    with pytest.raises(InfraError, match="is gone"):
        await session.call(ToolCall("look", {}))
    await session.close()


async def test_a_server_that_hangs_is_given_up_and_killed():
    session = await stdio(call_timeout_s=0.2).open()
    process = await pid(session)
    with pytest.raises(InfraError, match=r"did not answer within 0.2 s in a call of hang"):
        await session.call(ToolCall("hang", {}))
    await session.close()
    assert not process.exists()


async def test_a_cancelled_call_ends_its_session_and_a_shared_one_is_opened_again():
    server = stdio(shared=True)
    session = await server.open()
    process = await pid(session)
    await session.close()
    assert await server.open() is session
    call = asyncio.create_task(session.call(ToolCall("hang", {})))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(InfraError, match="given up"):
        await session.call(ToolCall("look", {}))
    await session.close()
    assert not process.exists()
    again = await server.open()
    assert again is not session and (await again.call(ToolCall("look", {}))).error == ""
    await server.close()


async def test_episodes_that_begin_together_share_one_session_and_its_failure(tmp_path):
    server = stdio(shared=True)
    first, *others = await asyncio.gather(*(server.open() for _ in range(3)))
    assert all(other is first for other in others)
    process = await pid(first)
    await server.close()
    assert not process.exists()
    told = tmp_path / "pid"
    program = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    silent = McpServer.stdio(sys.executable, "-S", "-c", program, shared=True, start_timeout_s=1.0)
    opening = []
    for _ in range(3):
        opening.append(asyncio.create_task(silent.open()))
        await asyncio.sleep(0.3)  # the later ones give up while it is ended
    failed = await asyncio.gather(*opening, return_exceptions=True)
    assert all(isinstance(error, InfraError) and "did not start" in str(error) for error in failed)
    assert not Path("/proc", told.read_text()).exists(), "each of the three gave it up, and none left it"


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (lambda: McpServer.stdio("/no/such/server"), "'/no/such/server' did not start: FileNotFoundError"),
        (
            lambda: McpServer.stdio(sys.executable, "-c", "import sys; sys.exit('no config')"),
            "did not start.*no config",
        ),
        (lambda: McpServer.http("http://127.0.0.1:9/mcp"), "'http://127.0.0.1:9/mcp' did not start"),
        (
            lambda: McpServer.stdio("sh", "-c", "echo no database >&2; exec sleep 60", start_timeout_s=3.0),
            "did not start within 3 s. It said: no database",
        ),
    ],
    ids=["no file", "exits", "no port", "silent"],
)
async def test_a_server_that_does_not_start_is_named(server, reason):
    with pytest.raises(InfraError, match=reason):
        await server().open()


def odd_server(schema, output_schema=None, says=None) -> McpServer:
    """A server of one tool, `odd`, that says what it was given, or something else."""
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

    async def list_tools(context, parameters):
        return ListToolsResult(tools=[Tool(name="odd", input_schema=schema, output_schema=output_schema)])

    async def call_tool(context, parameters):
        text = TextContent(type="text", text=json.dumps(parameters.arguments))
        return CallToolResult(content=[text], structured_content=says)

    return McpServer.of(Server("broken", on_list_tools=list_tools, on_call_tool=call_tool))


LEVELS = {"$defs": {"level": {"enum": [1, 2]}, "more": {"$ref": "#/$defs/level"}, "a/b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("parameter", "given", "taken"),
    [
        ({"type": "integer"}, "2", 2),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": [1, 2.5, None]}, "2.5", 2.5),
        ({"enum": [None, False]}, "None", None),
        ({"enum": [1, "1"]}, "1", "1"),
        ({"const": 3}, "3", 3),
        ({"const": True}, "True", True),
        ({"$ref": "#/$defs/level"}, "1", 1),
        ({"$ref": "#/$defs/more"}, "1", 1),
        ({"$ref": "#/$defs/a~1b"}, "1", 1),
        ({"allOf": [{"$ref": "#/$defs/a~1b"}, {"minimum": 0}]}, "7", 7),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]}, "7", 7),
        ({"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"const": 1}, {"allOf": [{"type": "boolean"}]}]}, "FALSE", False),
        ({"type": "array", "items": {"$ref": "#/$defs/level"}}, "[1, 2]", [1, 2]),
        ({"$ref": "#/$defs/level", "description": "how much"}, "2", 2),
        ({"type": ["string", "integer"]}, "2", "2"),
        ({}, "2", "2"),
        (True, "2", "2"),
        ({"type": "number"}, "1e3", 1000.0),
    ],
)
async def test_a_text_is_taken_for_what_the_schema_asks_for_wherever_it_says_so(parameter, given, taken):
    session = await odd_server({"type": "object", "properties": {"a": parameter}, **LEVELS}).open()
    result = await session.call(ToolCall("odd", {"a": given}))
    await session.close()
    assert result.error == "" and json.loads(result.text) == {"a": taken}
    assert type(json.loads(result.text)["a"]) is type(taken)


@pytest.mark.parametrize("parameter", [{"type": "integer"}, {"enum": [1]}, {"$ref": "#/$defs/level"}])
@pytest.mark.parametrize(
    "given",
    [
        "two",
        "null",
        "1.5",
        "NaN",
        "[1",
        "true",
        pytest.param("[" * 5000, id="deep"),
        pytest.param("9" * 5000, id="long"),
    ],
)
async def test_a_text_that_is_nothing_of_the_kind_is_told_as_it_was_given(parameter, given):
    session = await odd_server({"type": "object", "properties": {"a": parameter}, **LEVELS}).open()
    result = await session.call(ToolCall("odd", {"a": given}))
    await session.close()
    assert result.error == "arguments" and repr(given)[:20] in result.text


async def test_parameters_that_the_schema_has_from_elsewhere_are_typed_too():
    args = {"properties": {"a": {"type": "integer"}}}
    for schema in ({"$ref": "#/$defs/args", "$defs": {"args": args}}, {"allOf": [args]}):
        session = await odd_server({"type": "object", **schema}).open()
        assert json.loads((await session.call(ToolCall("odd", {"a": "2"}))).text) == {"a": 2}
        await session.close()


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"required": 3}, "not a valid JSON schema"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "'#/$defs/gone'"),
        ({"properties": {"a": {"items": {"anyOf": [{"$ref": "#/$defs/gone"}]}}}}, "'#/$defs/gone'"),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "'https://example.com/a.json'"),
        ({"$defs": {"a": {"$ref": "b.json#/c"}}}, "'b.json#/c'"),
        ({"properties": {"a": {"$dynamicRef": "#gone"}}}, "'#gone'"),
    ],
)
async def test_a_schema_that_cannot_be_checked_is_refused_by_name_at_opening(schema, expected):
    for server in (
        odd_server({"type": "object", **schema}),
        odd_server({"type": "object"}, {"type": "object", **schema}),
    ):
        with pytest.raises(UserError, match=re.escape(expected)) as refused:
            await server.open()
        assert "the tool 'odd' of the MCP server 'broken'" in str(refused.value)
    named = {"type": "object", "properties": {"$ref": {"const": {"$ref": "#/gone"}}}}  # names and values, no references
    await (await odd_server(named).open()).close()


async def test_a_schema_that_leads_to_itself_is_left_to_the_server_to_check():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    session = await odd_server(schema).open()
    assert json.loads((await session.call(ToolCall("odd", {"a": "x"}))).text) == {"a": "x"}
    await session.close()


@pytest.mark.parametrize("says", [None, {"left": "three"}, {}])
async def test_a_result_that_breaks_its_output_schema_is_the_servers_fault(says):
    output = {"type": "object", "properties": {"left": {"type": "integer"}}, "required": ["left"]}
    session = await odd_server({"type": "object"}, output, says).open()
    with pytest.raises(InfraError, match=r"the MCP server 'broken' broke its own contract in a call of odd: .*odd"):
        await session.call(ToolCall("odd", {}))
    assert not session.is_broken, "others may share it"
    await session.close()


class Shopping(Environment):
    name = "shopping"
    max_turns = 4

    def __init__(self) -> None:
        self.server = stdio()

    def tasks(self, split, seed=0):
        yield Task(task_id="one", prompt=({"role": "user", "content": "Buy two apples."},))

    async def start(self, context):
        return await self.server.open()

    async def toolbox(self, context):
        return context.state

    async def reply(self, context):
        return Reply(done=True)

    @reward
    def bought(self, episode):
        return float(len(episode.tool_calls))

    async def finish(self, context):
        if context.state is not None:
            await context.state.close()


async def played(*calls: str):
    environment = Shopping()
    functions = [{"name": name, "arguments": {"item": "apple"} if name == "buy" else {}} for name in calls]
    says = [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "", "function": one}]}
        for one in functions
    ]
    scorer = Scorer.of(environment, PluginRegistry([]), {})
    try:
        return await play_script(environment, next(environment.tasks("train")), says, scorer=scorer)
    finally:
        await scorer.close()


async def test_an_episode_has_a_server_of_its_own_which_ends_with_it():
    episode = await played("pid", "buy", "buy")
    assert [trace.result for trace in episode.tool_calls[1:]] == ["left: 2", "left: 1"]
    assert not Path("/proc", episode.tool_calls[0].result).exists()


async def test_a_server_that_dies_is_the_environments_fault_and_never_a_zero():
    episode = await played("buy", "die")
    assert episode.outcome is Outcome.INFRA_ERROR and "out of memory" in episode.error.message
