"""mini-swe-agent in a task's own container: its commands have the task's user and folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harbor_tasks import remove, task_images, write_tasks

from agentgym.rollout.config import RolloutConfig
from agentgym.testing import ScriptedGenerator, play_agent
from agentgym.types import Stop
from agentgym_envs.harbor.environment import Harbor
from agentgym_plugins.agents.mini_swe import MiniSwe
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from tests.sandboxes.images import static_busybox

pytestmark = [pytest.mark.agents, pytest.mark.docker, pytest.mark.usefixtures("engine")]

LIMITS = RolloutConfig(max_turns=10, max_turn_tokens=4000, max_episode_tokens=200_000, episode_time_s=300)


def runs(command: str) -> str:
    return f"THOUGHT: go on.\n\n```mswea_bash_command\n{command}\n```"


SUBMITS = runs("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Path]:
    busybox = static_busybox(tmp_path)
    if busybox is None:
        pytest.skip("there is no static busybox")
    made: list[str] = []
    yield write_tasks(tmp_path / "tasks", task_images(busybox, None, tmp_path, made))
    for image in reversed(made):
        remove(image)


async def test_a_task_is_solved_by_its_commands_which_run_as_the_tasks_user_in_its_folder(tasks: Path) -> None:
    environment = Harbor(path=str(tasks / "other-user"))
    [task] = environment.tasks("test")
    looks = (runs("id -un; pwd; echo $GREETING; false"), runs("cat /nowhere"))
    policy = ScriptedGenerator([*looks, *map(runs, oracle(environment, task)), SUBMITS])
    agent = MiniSwe(processes=1)
    async with DockerBackend(DockerConfig(pool_size=1, spares=0, spare_sessions=0, reap_every_s=1e6)) as sandbox:
        episode = await play_agent(agent, environment, policy, sandbox=sandbox, config=LIMITS)
        await agent.close()
    assert (episode.stop, episode.reward) == (Stop.DONE, 1.0), episode.info
    first, second = episode.tool_calls[:2]
    assert (first.name, first.result) == ("bash", "app\n/app\nhi\n\n[exit code 1]")
    seen = policy.tokenizer.decode(policy.requests[1].prompt_ids)
    assert "<returncode>1</returncode>" in seen and "app\n/app\nhi" in seen and "[exit code" not in seen
    assert "No such file" in second.result


def oracle(environment: Harbor, task: object) -> list[str]:
    said = list(environment.solve(task))
    return [call["function"]["arguments"]["command"] for one in said for call in one.get("tool_calls", ())]
