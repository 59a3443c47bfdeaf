"""Rollout workers: the same run as without them, whatever happens to one."""

from __future__ import annotations

import asyncio
import pickle
import re
import signal
from array import array
from dataclasses import dataclass
from pathlib import Path

import pytest
from in_process import InProcess
from same_run import differences

from agentgym.actors.options import ActorOptions
from agentgym.actors.remote import Routes
from agentgym.actors.runtime import Runtime
from agentgym.errors import UserError
from agentgym.models.tiny import policy_path
from agentgym.recipe import Recipe
from agentgym.rollout.activity import Activity
from agentgym.rollout.playing import GroupOrder, pack
from agentgym.rollout.token_prefix import TokenPrefix
from agentgym.run.metrics import generator_with, together
from agentgym.run.rollout_worker import RolloutWorker, WorkerSetup
from agentgym.run.rollout_workers import RolloutWorkers, merged
from agentgym.run.settle import settle_workers
from agentgym.run.train import train
from agentgym.runs.audit import audit
from agentgym.types import Completion, Episode, FinishReason, Group, Task, Turn, VersionSpan

SMALL = ("env.name=math", "env.options.levels=[1]", "eval.at_end=false", "loop.checkpoint_every=2")
TASK = Task(task_id="t", prompt=())
LICENSED = """
from agentgym_envs.math import MathEnvironment

class Licensed(MathEnvironment):
    name = "licensed"

    def __init__(self):
        raise OSError("no license on this host")
"""


@pytest.mark.hostile
@pytest.mark.timeout(900)
async def test_a_deterministic_run_is_the_same_with_any_number_of_workers_of_which_one_is_killed(
    lab, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []
    for workers in (0, 1, 4):
        recipe = lab.recipe(
            *SMALL,
            "launcher.name=local",
            "generator.replicas=2",
            "loop.steps=5",
            "loop.deterministic=true",
            "loop.max_staleness=2",
            "optimizer.lr=1e-3",
            f"rollout.workers={workers}",
        )
        folder = lab.new_run(recipe, f"with{workers}")

        def kill(step: int, folder=folder, workers=workers) -> None:
            if step == 2 and workers == 4:
                lab.processes(folder.path, "worker")[0].send_signal(signal.SIGKILL)

        with folder:
            await train(recipe, folder, lab.reporter(on_step=kill))
        runs.append(folder)
    assert [differences(runs[0], run) for run in runs[1:]] == [[], []]
    assert re.search(r"worker\d is down and starts again", caplog.text), "one was killed, and replaced"
    assert audit(runs[2].path).findings == []


@dataclass
class Routed:
    """Generators of which these replicas are up, as they stay."""

    now: Routes = Routes((None,))
    version: int = 0

    def routes(self) -> Routes:
        return self.now

    async def changed(self) -> None:
        await asyncio.Event().wait()


def setup_of(recipe: Recipe) -> WorkerSetup:
    return WorkerSetup.of(recipe, policy_path())


async def test_a_worker_that_can_not_open_the_environment_says_on_which_host(lab, tmp_path: Path) -> None:
    (tmp_path / "licensed.py").write_text(LICENSED)
    recipe = lab.recipe(*SMALL, "env.options={}", f"env.name={tmp_path}/licensed.py:Licensed", "rollout.workers=1")
    async with Runtime(launcher=InProcess()) as runtime:
        workers = RolloutWorkers(
            setup_of(recipe),
            rollout=recipe.rollout,
            generators=recipe.generator,
            generator=Routed(),  # type: ignore[arg-type]
            runtime=runtime,
            activity=Activity(),
        )
        with pytest.raises(UserError, match=r"the rollout worker worker0 on host .* no license on this host"):
            await workers.start()


async def test_an_order_waits_for_the_routes_that_it_relies_on(lab) -> None:
    recipe = lab.recipe(*SMALL, "rollout.max_retries=0")
    async with Runtime(launcher=InProcess()) as runtime:
        worker = RolloutWorker.launch("worker0", "worker0", setup_of(recipe), options=ActorOptions(), runtime=runtime)
        await worker.start(timeout_s=60)
        await worker.call_one(RolloutWorker.open, timeout_s=60)
        task = Task(task_id="t", prompt=({"role": "user", "content": "1 + 1?"},), answer="2")
        order = GroupOrder(task=task, group_id=7, version=3, size=2, run_seed=0)
        playing = asyncio.create_task(worker.call_one(RolloutWorker.play, order, 0, 2, timeout_s=60))
        await worker.call_one(RolloutWorker.follow, Routes((None,)), 1, timeout_s=60)
        assert await worker.call_one(RolloutWorker.turns, timeout_s=60) == {}, "it has not begun"
        await worker.call_one(RolloutWorker.follow, Routes((None,), failure="all are gone"), 2, timeout_s=60)
        group = pickle.loads(await playing)
        assert (group.group_id, group.start_version) == (7, 3)
        assert ["all are gone" in episode.error.message for episode in group.episodes] == [True, True]
        await worker.stop()


def test_a_group_is_sent_with_the_ids_of_its_contexts_once() -> None:
    ids = array("I", range(10_000))
    completion = Completion(
        completion_ids=(1, 2),
        logprobs=(-0.5, -0.25),
        versions=(VersionSpan(version=0, start=0, end=2),),
        finish_reason=FinishReason.STOP,
    )
    turns = []
    for _ in range(20):
        turns.append(Turn.of(TokenPrefix(ids), completion))
        ids.extend((1, 2, 3))
    group = Group(group_id=1, task=TASK, start_version=0)
    group.episodes = [Episode(episode_id="e", task=TASK, seed=0, turns=turns)]
    sent = pack(group)
    assert pickle.loads(sent) == group
    assert len(sent) < 2 * 4 * len(ids), "linear in its tokens"


def test_what_workers_can_not_do_is_refused_and_what_waits_at_a_replica_is_shared(lab) -> None:
    shared = settle_workers(lab.recipe("rollout.workers=3", "generator.max_waiting=10"))
    assert shared.generator.max_waiting == 2, "a quarter: the controller evaluates"
    with pytest.raises(UserError, match=r"set generator\.replicas alone"):
        settle_workers(lab.recipe("rollout.workers=1", "generator.max_replicas=2"))
    with pytest.raises(UserError, match="give at least 4"):
        settle_workers(lab.recipe("rollout.workers=3", "generator.max_waiting=3"))


def test_figures_of_workers_count_the_dead_and_those_of_the_controller() -> None:
    dead, alive = {"requests_total": 3.0, "in_flight": 9.0}, {"requests_total": 4.0, "in_flight": 2.0, "demand": 3.0}
    there = merged({"worker0": dead, "worker0-1": alive}, {"worker0-1": alive})
    assert there == {"requests_total": 7.0, "in_flight": 2.0, "demand": 3.0}
    here = {"generator/requests_total": 1.0, "generator/in_flight": 1.0, "generator/slots": 8.0}
    found = generator_with(here | {"generator/idle_share": 0.875}, there)
    assert (found["generator/requests_total"], found["generator/in_flight"]) == (8.0, 3.0)
    assert found["generator/idle_share"] == 0.5, "4 of 8 slots"
    assert together({"sandbox/p95_s": 2.0}, {"sandbox/p95_s": 1.0}) == {"sandbox/p95_s": 2.0}
