"""OpenEnv itself, in its own Python: its client and its validator against ours, and a server of it played by ours."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from openenv_served import first, served
from pages import ROOT

from agentgym.testing import play
from agentgym_envs.openenv.environment import OpenEnv

PYTHON = ROOT / ".venv-openenv" / "bin" / "python"
pytestmark = [
    pytest.mark.agents,
    pytest.mark.skipif(not PYTHON.exists(), reason="OpenEnv is not installed: make test-agents"),
]
CLIENT = """
import asyncio, json, sys
from openenv.cli._validation import validate_running_environment
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient

async def main(url, solution):
    report = validate_running_environment(url)
    async with MCPToolClient(base_url=url) as client:
        tools = [tool.name for tool in await client.list_tools()]
    async with GenericEnvClient(base_url=url) as client:
        await client.reset(seed=1, episode_id="mine")
        for name, arguments in solution:
            last = await client.step({"type": "call_tool", "tool_name": name, "arguments": arguments})
        state = await client.state()
        try:
            refused = await client.step({"nonsense": 1})
        except RuntimeError as error:
            refused = str(error)
    many = [GenericEnvClient(base_url=url) for _ in range(50)]
    resets = await asyncio.gather(*(client.reset(seed=seed % 8) for seed, client in enumerate(many)))
    await asyncio.gather(*(client.close() for client in many))
    print(json.dumps([report["passed"], tools, last.reward, last.done, state, refused, len(resets)]))

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""
SERVER = """
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    word: str


class Heard(Observation):
    heard: str


class Echoing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self.seed, self.now = seed, State(episode_id=episode_id, step_count=0)
        return Heard(heard=f"Say {seed}.", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **more):
        self.now.step_count += 1
        right = action.word == str(self.seed)
        return Heard(heard=action.word, done=right or self.now.step_count > 2, reward=1.0 if right else -0.25)

    @property
    def state(self):
        return self.now


app = create_app(Echoing, Say, Heard, env_name="echoing", max_concurrent_envs=4)
"""


async def test_openenvs_own_client_and_validator_take_a_served_environment() -> None:
    environment, tasks = first("tool_use")
    here = await play(environment, tasks[1], environment.solve(tasks[1]))
    solution = []
    for message in here.messages:
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls", ())]
            solution += [[call["name"], call["arguments"]] for call in calls]
    solution.append(["send_message", {"message": here.messages[-1]["content"]}])
    async with served("tool_use") as (address, _):
        words = [str(PYTHON), "-c", CLIENT, f"http://{address}", json.dumps(solution)]
        client = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        printed, _ = await client.communicate()
    passed, tools, reward, done, state, refused, many = json.loads(printed.splitlines()[-1])
    assert passed and "send_message" in tools and done and many == 50
    assert reward == here.reward and here.success
    assert (state["episode_id"], state["step_count"]) == ("mine", len(solution))
    assert "nonsense: Extra inputs are not permitted" in refused and "VALIDATION_ERROR" in refused


async def test_a_server_of_openenv_is_played_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "openenv.yaml").write_text("spec_version: 1\nname: echoing\napp: server.app:app\n")
    (tmp_path / "server" / "app.py").write_text(SERVER)
    environment = OpenEnv(folder=str(tmp_path), python=str(PYTHON), low=-1, state=True, success_at=0.5)
    try:
        tasks = [task for task, _ in zip(environment.tasks("test"), range(8), strict=False)]
        seeds = [str(task.answer["seed"]) for task in tasks]
        episodes = await asyncio.gather(
            *(play(environment, task, ["no", seed]) for task, seed in zip(tasks, seeds, strict=True))
        )
    finally:
        environment.close()
    assert [episode.reward for episode in episodes] == [0.75] * 8 and episodes[0].success
    assert episodes[0].info["state"]["step_count"] == 2
    assert episodes[3].messages[0]["content"].endswith(f"Say {seeds[3]}.")
