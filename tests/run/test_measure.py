"""What an evaluation says of a policy that the machine was too slow for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from bare_gym import bare_gym

from agentgym.env import Environment
from agentgym.recipe import EvalConfig, Recipe
from agentgym.run.evaluate import measure
from agentgym.run.sinks import Sinks
from agentgym.runs.folder import RunFolder
from agentgym.types import Episode, ErrorRecord, Outcome, Stop, Task


class Counting(Environment):
    name = "counting"

    def tasks(self, split, seed=0):
        for number in range(4):
            yield Task(task_id=str(number), prompt=({"role": "user", "content": f"{number}?"},), split=split)


@dataclass
class SlowPlayer:
    """Solves the tasks 0 and 1, and is cut in the middle of the others."""

    greedy: bool = False

    async def play(self, task: Task, *, episode_id: str, seed: int) -> Episode:
        slow = int(task.task_id) > 1
        return Episode(
            episode_id=episode_id, task=task, seed=seed, info={"success": not slow}, reward=float(not slow),
            stop=Stop.TIME if slow else Stop.DONE, outcome=Outcome.INVALID if slow else Outcome.SCORED,
            time_limit="rollout.generate_timeout_s = 60" if slow else "",
        )  # fmt: skip


@pytest.mark.parametrize("scores_cuts", [False, True])
def test_every_evaluation_says_loudly_what_the_machine_cut_and_how_to_raise_the_limit(
    tmp_path: Path, lab, scores_cuts: bool
) -> None:
    recorder = lab.reporter()
    recipe = Recipe(eval=EvalConfig(tasks=4, samples_per_task=1, scores_cuts=scores_cuts))
    gym = bare_gym(Counting(), recipe)
    with RunFolder.create(tmp_path, "one") as folder:
        result = asyncio.run(measure(gym, SlowPlayer(), folder, recorder, Sinks(), step=3, name="step-000003"))
    said = [note for note in recorder.notes if note.startswith("CUT BY TIME: 2 of 4 episodes of step-000003")]
    assert (result.success, result.num_cut, len(said)) == ((0.5, 0, 0) if scores_cuts else (1.0, 2, 1))
    assert scores_cuts or "--rollout.generate_timeout_s 240" in said[0]


class BreakingPlayer(SlowPlayer):
    """What infrastructure broke is not counted."""

    async def play(self, task: Task, *, episode_id: str, seed: int) -> Episode:
        error = ErrorRecord(source="sandbox:docker", kind="ImageUnusable", message="no image was built from it")
        is_broken = task.task_id == "1"
        return Episode(
            episode_id=episode_id, task=task, seed=seed, info={"success": True}, reward=None if is_broken else 1.0,
            stop=Stop.DONE, outcome=Outcome.INFRA_ERROR if is_broken else Outcome.SCORED,
            error=error if is_broken else None,
        )  # fmt: skip


def test_an_evaluation_names_a_task_that_infrastructure_broke_and_why(tmp_path: Path, lab) -> None:
    recorder, gym = lab.reporter(), bare_gym(Counting(), Recipe(eval=EvalConfig(tasks=4, samples_per_task=1)))
    with RunFolder.create(tmp_path, "one") as folder:
        asyncio.run(measure(gym, BreakingPlayer(), folder, recorder, Sinks(), step=3, name="step-000003"))
    [said] = [note for note in recorder.notes if "broken by infrastructure" in note]
    assert said.startswith("1 episodes of 1 tasks") and "is of 1: sandbox:docker: no image was built" in said
