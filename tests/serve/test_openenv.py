"""Environments as OpenEnv servers: real WebSockets, with the messages that OpenEnv's own client sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from openenv_served import first, served
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.http_server import Bounds, configure, listen, serve_until_cancelled
from agentgym.mcp import McpServer
from agentgym.testing import play
from agentgym.types import Task


async def ask(client: ClientConnection, kind: str, data: Any = None, **more: Any) -> dict[str, Any]:
    await client.send(json.dumps({"type": kind, "data": data, **more} if data is not None else {"type": kind, **more}))
    return json.loads(await client.recv())


async def by_oracle(client: ClientConnection, environment: Environment[Any], task: Task, seed: int) -> dict[str, Any]:
    """The data of the last answer, after the steps that the environment's own oracle takes; `seed` draws the task."""
    begun = (await ask(client, "reset", {"seed": seed, "episode_id": f"e{seed}"}))["data"]
    assert begun["observation"]["messages"] == list(task.prompt) and (begun["reward"], begun["done"]) == (0.0, False)
    solution: Any = environment.solve(task)
    said, answer = next(solution), begun
    while not answer["done"]:
        for call in said.get("tool_calls", ()):
            function = call["function"]
            action = {"type": "call_tool", "tool_name": function["name"], "arguments": function["arguments"]}
            answer = (await ask(client, "step", action))["data"]
        if not said.get("tool_calls"):
            tools = "tools" in begun["observation"]
            message = {"message": said["content"]}
            answer = (
                await ask(client, "step", {"tool_name": "send_message", "arguments": message} if tools else message)
            )["data"]
        with contextlib.suppress(StopIteration):
            observation = answer["observation"]
            told = [{"role": "tool", "content": observation["result"]["data"]}] if "result" in observation else []
            said = solution.send((*told, *observation["messages"]))
    return answer


@pytest.mark.parametrize("name", ["tool_use", "math"])
async def test_an_episode_earns_what_it_earns_here(name: str) -> None:
    environment, tasks = first(name)
    async with served(name) as (address, _), connect(f"ws://{address}/ws") as client:
        for seed, task in enumerate(tasks[:3]):
            last = await by_oracle(client, environment, task, seed)
            here = await play(environment, task, environment.solve(task))
            assert here.success and last["observation"]["metadata"]["success"] is True
            assert last["reward"] == here.reward and last["observation"]["metadata"]["rewards"] == here.rewards
            state = (await ask(client, "state"))["data"]
            assert state["episode_id"] == f"e{seed}" and state["task_id"] == task.task_id and state["step_count"] >= 1


async def test_200_sessions_play_at_once_and_apart() -> None:
    environment, tasks = first("math")

    async def one(address: str, seed: int) -> float:
        async with connect(f"ws://{address}/ws", open_timeout=60) as client:
            await began.wait()
            return float((await by_oracle(client, environment, tasks[seed % 8], seed))["reward"])

    async with served("math") as (address, app):
        began = asyncio.Barrier(200)
        rewards = await asyncio.gather(*(one(address, seed) for seed in range(200)))
        assert min(rewards) > 0 and app.played == 200
        async with connect(f"ws://{address}/ws") as client:  # ended sessions give their places back
            await ask(client, "state")
            assert app.open == 1


async def test_what_is_wrong_is_answered_and_the_session_goes_on() -> None:
    async with served("tool_use") as (address, _), connect(f"ws://{address}/ws") as client:

        async def code(text: str) -> str:
            await client.send(text)
            return json.loads(await client.recv())["data"]["code"]

        assert await code("{") == "INVALID_JSON"
        assert await code("[1]") == "VALIDATION_ERROR"
        assert await code('{"type": "dance"}') == "UNKNOWN_TYPE"
        assert await code('{"type": "step", "data": {"tool_name": "x"}}') == "EXECUTION_ERROR"  # before a reset
        assert await code('{"type": "reset", "data": {"seed": -1}}') == "VALIDATION_ERROR"
        assert await code('{"type": "reset", "data": {"task_id": "of another"}}') == "VALIDATION_ERROR"
        await ask(client, "reset", {"seed": 1, "difficulty": "what trainers send along"})
        assert await code('{"type": "step", "data": {"message": "no tool action"}}') == "VALIDATION_ERROR"
        unknown = (await ask(client, "step", {"tool_name": "nonsense", "arguments": {}}))["data"]
        assert unknown["observation"]["error"]["error_type"] == "tool_not_found" and not unknown["done"]
        for params in ([1], "x"):
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            assert (await ask(client, "mcp", call))["data"]["error"]["code"] == -32602
        done = (await ask(client, "step", {"tool_name": "send_message", "arguments": {"message": ""}}))["data"]
        assert done["done"]
        assert await code('{"type": "step", "data": {"tool_name": "x"}}') == "EXECUTION_ERROR"  # after the end
        await client.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000


async def test_a_session_too_many_is_told_and_no_key_opens_nothing() -> None:
    key = {"Authorization": "Bearer sk-of-the-tests"}
    async with served("math", sessions=1, key="sk-of-the-tests") as (address, _):
        url = f"ws://{address}/ws"
        for headers in ({}, {**key, "Origin": "http://elsewhere.example"}):  # a page in this machine's browser
            with pytest.raises(InvalidStatus, match="403"):
                await connect(url, additional_headers=headers)
        async with connect(url, additional_headers=key) as client:
            await ask(client, "reset", {})
            async with connect(url, additional_headers=key) as late:
                refused = json.loads(await late.recv())["data"]
                assert (refused["code"], refused["max_sessions"]) == ("CAPACITY_REACHED", 1)


async def test_the_http_side_has_what_openenv_validate_asks_for() -> None:
    async with served("math") as (address, _), httpx.AsyncClient(base_url=f"http://{address}") as client:
        assert (await client.get("/health")).json()["status"] == "healthy"
        assert (await client.get("/metadata")).json()["version"] == str(first("math")[0].version)
        assert (await client.get("/schema")).json()["action"]["required"] == ["message"]
        openapi = (await client.get("/openapi.json")).json()
        assert openapi["info"]["version"].startswith("1.") and {"/reset", "/step", "/state"} <= openapi["paths"].keys()
        assert (await client.post("/mcp", json={})).json()["jsonrpc"] == "2.0"
        assert (await client.post("/reset", json={"seed": 2})).json()["reward"] == 0.0


async def test_its_mcp_address_is_told_apart_from_a_full_mcp_server() -> None:
    async with served("tool_use") as (address, _):
        with pytest.raises(UserError, match=r"not a full MCP server: it does not know `initialize` .* `--env openenv"):
            await McpServer.http(f"http://{address}/mcp").open()


async def test_the_server_ends_with_sessions_open() -> None:
    async with served("math") as (address, app):
        client = await connect(f"ws://{address}/ws")
        await ask(client, "reset", {"seed": 1})
    with pytest.raises(ConnectionClosed):
        await client.recv()
    assert not app.open


async def test_a_session_may_think_longer_than_a_request_may_take() -> None:
    async def echo(client: WebSocket) -> None:
        await client.accept()
        await client.send_text(await client.receive_text())

    bounds = Bounds(head_s=0.01, body_s=0.01)  # of the request that became the session
    config = configure(Starlette(routes=[WebSocketRoute("/ws", echo)]), bounds, ws="websockets-sansio", lifespan="off")
    listening, started = listen("127.0.0.1", [0]), asyncio.Event()
    job = asyncio.create_task(serve_until_cancelled(config, listening, started.set))
    await started.wait()
    async with connect(f"ws://127.0.0.1:{listening.getsockname()[1]}/ws") as client:
        await asyncio.sleep(0.05)
        await client.send("late")
        assert await client.recv() == "late"
    job.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await job
