"""OpenEnv servers as environments: over real WebSockets, with a server of ours that says what OpenEnv's says."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from openenv_server import TOOL, Guessing

from agentgym.commands.stopping import run_until_stopped
from agentgym.errors import InfraError, UserError
from agentgym.held_loop import LoopWatch
from agentgym.testing import play
from agentgym.types import Episode, Outcome, Task
from agentgym_envs.openenv.actions import ActionForm
from agentgym_envs.openenv.environment import OpenEnv
from agentgym_envs.openenv.observations import text_of
from agentgym_envs.openenv.wire import Refused


async def opened(url: str, **options: Any) -> tuple[OpenEnv, list[Task]]:
    """The environment and its test tasks. The tasks are drawn in a thread, as the server is in this loop."""
    environment = OpenEnv(**{"url": url, "low": -2, "test_tasks": 8, **options})
    return environment, await asyncio.to_thread(lambda: list(environment.tasks("test")))


def number_of(task: Task) -> int:
    assert isinstance(task.answer, dict)
    return int(task.answer["seed"]) * 7 % 10


async def test_an_episode_in_words_earns_what_the_server_gives() -> None:
    server = Guessing()
    async with server.serving() as url:
        environment, tasks = await opened(url, success_at=0.5, state=True, reset={"level": 2})
        right = number_of(tasks[3])
        said = [f"Not 99 but {(right + 1) % 10}.", "I can't say.", f"It is {right}"]
        episode = await play(environment, tasks[3], said)
    assert episode.outcome is Outcome.SCORED and episode.reward == 0.875 and episode.success is True
    assert episode.info["server"] == "guessing 0.3" and (episode.info["steps"], episode.info["refused"]) == (2, 1)
    assert episode.info["state"]["step_count"] == 2
    assert server.resets[0].keys() == {"seed", "episode_id", "level"} and server.steps[1] == {"guess": right}
    first, *_ = (message["content"] for message in episode.messages)
    assert first.startswith("Guess a number below 10.\nAnswer with a whole number.\n\nIt leaves ")
    assert "That is not an action: it has no number" in episode.messages[4]["content"]


async def test_an_episode_with_tools_calls_those_of_the_server() -> None:
    async with Guessing(action=TOOL).serving() as url:
        environment, tasks = await opened(url)
        numbers = [(number_of(tasks[0]) + 1) % 10, 99, number_of(tasks[0])]
        calls = [
            {"type": "function", "id": "c", "function": {"name": "guess", "arguments": {"number": n}}} for n in numbers
        ]
        said = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls]
        episode = await play(environment, tasks[0], said)
    assert episode.reward == 0.875 and [trace.error for trace in episode.tool_calls] == ["", "arguments", ""]
    assert episode.tool_calls[1].result == "Error: guess: guess: Input should be less than 10"


async def test_what_the_server_refuses_too_often_is_the_policys_fault() -> None:
    async with Guessing().serving() as url:
        environment, tasks = await opened(url, max_refused=2)
        episode = await play(environment, tasks[0], ["50", "60", "1"])
    assert episode.outcome is Outcome.INVALID and episode.reward == -2


async def test_the_splits_have_other_seeds_and_training_another_order_for_each() -> None:
    async with Guessing().serving() as url:
        environment, tests = await opened(url, train_tasks=50)
        train = [
            await asyncio.to_thread(lambda seed=seed: list(environment.tasks("train", seed))) for seed in (0, 0, 1)
        ]
    seeds = [[task.answer["seed"] for task in tasks] for tasks in train]
    assert seeds[0] == seeds[1] != seeds[2] and sorted(seeds[0]) == sorted(seeds[2]) == list(range(50))
    assert min(task.answer["seed"] for task in tests) >= 1_000_000


FAULTS: dict[str, tuple[Any, str]] = {
    "reward is NaN": ({"reward": float("nan")}, "the field `reward` is nan, not a finite number or null"),
    "reward is a text": ({"reward": "high"}, "the field `reward` is 'high', not a finite number or null"),
    "done is a text": ({"done": "no"}, "the field `done` is 'no', not true or false"),
    "no observation": ({"observation": None}, "the field `observation` is None, not an object"),
    "out of range": ({"reward": 7.0, "done": True}, "the sum of the field `reward` is 7, outside of -2 to 1"),
    "done at reset": ({"done": True}, "answered a reset with `done`: the episode is over before an action"),
    "not JSON": ("<html>", "answered a step with what is not JSON: '<html>'"),
    "another answer": ('{"type": "state", "data": {}}', "the field `type` is 'state', not 'observation'"),
    "another schema": (
        '{"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": [{"loc": ["number"], "msg": "required"}]}}',
        "its schema asks for the field 'guess' alone, and it refuses that: number: required",
    ),
    "it failed": (
        '{"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "boom"}}',
        "EXECUTION_ERROR): boom",
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_what_the_server_does_wrong_is_never_the_policys_fault(fault: str) -> None:
    changed, message = FAULTS[fault]

    def change(kind: str, answer: dict[str, Any], client: Any) -> Any:
        if kind != ("reset" if "reset" in fault else "step"):
            return answer
        return changed if isinstance(changed, str) else {**answer, "data": {**answer["data"], **changed}}

    async with Guessing(change=change).serving() as url:
        environment, tasks = await opened(url)
        episode = await play(environment, tasks[0], ["5", "5"], may_break=True)
    assert episode.outcome is Outcome.INFRA_ERROR and episode.reward is None
    assert message in str(episode.error) and "the OpenEnv server guessing 0.3 at http://127.0.0.1:" in str(
        episode.error
    )


async def test_a_lost_session_is_played_again_once_with_the_same_seed() -> None:
    drops = [2]  # steps, counted over all sessions, at which the server is gone

    async def change(kind: str, answer: dict[str, Any], client: Any) -> Any:
        if kind == "step" and len(server.steps) in drops:
            drops.remove(len(server.steps))
            client.transport.abort()
        return answer

    server = Guessing(change=change)
    async with server.serving() as url:
        environment, tasks = await opened(url)
        wrong, right = str((number_of(tasks[1]) + 1) % 10), str(number_of(tasks[1]))
        resumed = await play(environment, tasks[1], [wrong, right])
        assert resumed.reward == 0.875 and server.resets[0] == server.resets[1]
        assert [step["guess"] for step in server.steps] == [int(one) for one in (wrong, right, wrong, right)]
        drops[:] = [5, 7]  # the second loss of one episode is not made good
        lost = await play(environment, tasks[1], [wrong, wrong, right], may_break=True)
    assert lost.outcome is Outcome.INFRA_ERROR and "ended the session in a step" in str(lost.error)


async def test_a_session_that_comes_back_as_another_is_not_continued() -> None:
    async def change(kind: str, answer: dict[str, Any], client: Any) -> Any:
        if kind == "reset" and len(server.resets) == 2:
            answer["data"]["observation"]["hint"] = "It is another."
        if kind == "step" and len(server.steps) == 2:
            client.transport.abort()
        return answer

    server = Guessing(change=change)
    async with server.serving() as url:
        environment, tasks = await opened(url)
        wrong = str((number_of(tasks[1]) + 1) % 10)
        episode = await play(environment, tasks[1], [wrong, wrong], may_break=True)
    assert "begins another episode, so it can't be resumed" in str(episode.error)


async def test_a_server_that_hangs_or_is_gone_is_infrastructure() -> None:
    async def hang(kind: str, answer: dict[str, Any], client: Any) -> Any:
        if kind == "step":
            await client.wait_closed()
        return answer

    async with Guessing(change=hang).serving() as url:
        environment, tasks = await opened(url, answer_s=0.2)
        episode = await play(environment, tasks[0], ["5"], may_break=True)
        assert "did not answer a step within env.options.answer_s = 0.2 s" in str(episode.error)
    gone = await play(environment, tasks[0], ["5"], may_break=True)
    assert gone.error is not None and gone.error.kind == "ConnectionLost" and "cannot be reached" in str(gone.error)


async def test_a_full_server_is_waited_for() -> None:
    server = Guessing(max_sessions=2)
    async with server.serving() as url:
        environment, tasks = await opened(url, sessions=8)  # as many as tasks: a place that is not given back is missed
        episodes = await asyncio.gather(*(play(environment, task, str(number_of(task))) for task in tasks))
    assert [episode.reward for episode in episodes] == [1.0] * 8 and server.most == 2


async def test_a_server_that_starts_again_is_waited_for() -> None:
    lost = [3]  # sessions, one more than a connection and its second try

    class Restarting(Guessing):
        async def _session(self, client: Any) -> None:
            if lost[0]:
                lost[0] -= 1
                client.transport.abort()
            else:
                await super()._session(client)

    async with Restarting().serving() as url:
        environment, tasks = await opened(url)
        episode = await play(environment, tasks[0], [str(number_of(tasks[0]))])
    assert episode.outcome is Outcome.SCORED and not lost[0]


async def test_a_copy_for_another_process_knows_the_server_and_the_range() -> None:
    async with Guessing(version="0.9").serving() as url:
        environment, tasks = await opened(url)
        copy = pickle.loads(pickle.dumps(environment))
        assert (await play(copy, tasks[0], str((number_of(tasks[0]) + 1) % 10))).reward == -0.125
        with pytest.raises(UserError, match=r"has the version '0.9', and env.options.version is '1.0'"):
            await opened(url, version="1.0")


FOLDER = """
import json
async def app(scope, receive, send):
    if scope["type"] == "http":
        action = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
        said = {"/schema": {"action": action}, "/metadata": {"name": "once", "version": "2", "description": "Speak."}}
        body = json.dumps(said.get(scope["path"], {})).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        return await send({"type": "http.response.body", "body": body})
    await receive()
    await send({"type": "websocket.accept"})
    while (got := await receive())["type"] == "websocket.receive":
        message = json.loads(got["text"])
        if message["type"] == "close":
            break
        said = message.get("data", {}).get("message", "")
        data = {"observation": {"length": len(said)}, "reward": float(len(said) == 3), "done": bool(said)}
        await send({"type": "websocket.send", "text": json.dumps({"type": "observation", "data": data})})
    await send({"type": "websocket.close"})
"""


async def test_a_folder_is_served_by_a_python_of_its_own_and_ends_with_the_environment(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "openenv.yaml").write_text("spec_version: 1\nname: once\napp: server.app:app\n")
    (tmp_path / "server" / "app.py").write_text(FOLDER)
    variables = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    environment, again = (
        OpenEnv(folder=str(tmp_path), python=sys.executable, variables=variables, low=low) for low in (0.0, -1.0)
    )

    def pid(of: OpenEnv = environment) -> int:
        assert of._server._process is not None
        return of._server._process.pid

    async def episode() -> Episode:
        return await play(environment, tasks[0], "abc")

    try:
        tasks = [task for task, _ in zip(environment.tasks("train"), range(2), strict=False)]
        first = pid()
        assert next(again.tasks("train")) and pid(again) == first  # the plan's and the run's are one
        assert (await episode()).reward == 1.0 and pid() == first
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        assert environment._form().kind and pid() == first  # what runs in the event loop waits for no start
        assert (await episode()).reward == 1.0 and pid() != first  # it is started again
        last = pid()
    finally:
        environment.close()
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)
    (tmp_path / "server" / "app.py").write_text("raise RuntimeError('no such thing')")
    with pytest.raises(UserError, match=r"ended with code 1. It said: RuntimeError: no such thing"):
        next(environment.tasks("train"))


def test_a_server_that_is_slow_to_start_does_not_hold_the_event_loop_but_starts(tmp_path: Path) -> None:
    (tmp_path / "openenv.yaml").write_text("spec_version: 1\nname: slow\napp: server.app:app\n")
    python, said = tmp_path / "python", tmp_path / "said"
    python.write_text(f"#!/bin/sh\nuntil test -e {said}; do sleep 0.01; done\nexit 3\n")
    python.chmod(0o755)

    def say(line: str) -> None:
        if line.startswith(f"starting the OpenEnv server of {tmp_path}"):
            said.touch()

    async def job() -> None:
        next(OpenEnv(folder=str(tmp_path), python=str(python)).tasks("train"))

    with LoopWatch(say, every_s=0.02, report_s=0.1), pytest.raises(UserError, match="ended with code 3"):
        run_until_stopped(job(), say)


def test_what_is_given_wrong_is_named(tmp_path: Path) -> None:
    for given, message in (
        ({}, "give one of env.options.url, env.options.folder and env.options.image"),
        ({"url": "localhost:8000"}, "give http://HOST:PORT"),
        ({"url": "http://localhost:8000x"}, "give http://HOST:PORT"),
        ({"url": "http://x", "low": 1, "high": 1}, "low must be below high"),
        ({"url": "http://x", "total": "mean"}, "no total 'mean'"),
        ({"url": "http://x", "train_tasks": 2_000_000}, "train_tasks is 2000000"),
    ):
        with pytest.raises(UserError, match=message):
            OpenEnv(**given)
    with pytest.raises(UserError, match=r"has no openenv\.yaml"):
        next(OpenEnv(folder=str(tmp_path)).tasks("test"))
    (tmp_path / "openenv.yaml").touch()
    with pytest.raises(UserError, match=r"give env.options.python, a Python that has openenv-core"):
        next(OpenEnv(folder=str(tmp_path)).tasks("test"))


def test_a_url_that_is_no_openenv_server_is_named() -> None:
    with pytest.raises(InfraError, match="cannot be reached"):
        next(OpenEnv(url="http://127.0.0.1:9").tasks("test"))


def schema(required: list[str] | None = None, **fields: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {**fields, "metadata": {"type": "object"}}, "required": required or list(fields)}


def test_the_form_of_an_action_goes_by_its_schema() -> None:
    text = ActionForm.of(schema(answer={"type": "string"}))
    assert (text.kind, text.read(" 4\n", {})) == ("text", {"answer": "4"})
    number = ActionForm.of(schema(column={"type": "integer"}))
    assert number.read("Not 3, but 5.", {"legal_actions": [1, 5]}) == {"column": 5}
    with pytest.raises(Refused, match="3 is not legal now; legal are 1, 5"):
        number.read("3", {"legal_actions": [1, 5]})
    word = ActionForm.of({**schema(move={"$ref": "#/$defs/Move"}), "$defs": {"Move": {"enum": ["left", "right"]}}})
    assert word.read("I do not go Left, but RIGHT", {}) == {"move": "right"} and "left, right" in word.hint
    several = ActionForm.of(schema(command={"type": "string"}, count={"type": "integer"}))
    assert several.kind == "act" and "metadata" not in str(several.tools())
    as_json = ActionForm.of(several.schema, "json")
    assert as_json.read('first {"a": 1}, then {"command": {"b": 1}}', {}) == {"command": {"b": 1}}
    with pytest.raises(UserError, match=r"several fields; give env.options.field"):
        ActionForm.of(several.schema, "text")
    with pytest.raises(UserError, match=r"no field 'comand'. Did you mean 'command'"):
        ActionForm.of(several.schema, "text", "comand")


def test_an_observation_is_read_as_a_text_alone_or_as_its_fields() -> None:
    assert text_of({"question": "How many?", "score": None, "metadata": {"gold": 4}}) == "How many?"
    both = {"output": "ok", "legal_actions": [1, 2], "reward": 1, "metadata": {"grid": [0]}}
    assert text_of(both) == "output: ok\nlegal_actions: [1, 2]"
    assert text_of(both, field="output") == "ok" and "grid" in text_of(both, with_metadata=True)
