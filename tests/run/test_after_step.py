"""What a step leaves on the disk, and when: the loop waits for its episodes only where a checkpoint follows."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from agentgym.run.behind import Behind
from agentgym.run.sinks import Sinks

from agentgym.loops.async_rl import Position, StepRecord
from agentgym.run.train import TrainJob


def job_of(done: list[str], written: threading.Event) -> Any:
    """A job whose episodes are written once `written` is set."""

    async def nothing(*_: object, **__: object) -> dict[str, float]:
        return {}

    async def checkpoint(_: Position) -> None:
        done.append("checkpoint")

    def save_groups(*_: object) -> None:
        assert written.wait(20)
        done.append("episodes")

    job: Any = object.__new__(TrainJob)
    loop = SimpleNamespace(steps=9, checkpoint_every=2, checkpoint_in_background=True, check_sync_every=0, eval_every=0)
    logging = SimpleNamespace(save_episodes=True, trainer_logprobs=False, episodes_every=0)
    job.recipe = SimpleNamespace(loop=loop, logging=logging)
    job.loop = SimpleNamespace(position_at=lambda step, group: Position(step=step, next_group=group), stopping=False)
    job.learner = SimpleNamespace(skipped=lambda _: None, trained_logprobs=())
    job.in_flight, job.store = SimpleNamespace(forget=nothing), None
    job.checkpoints = SimpleNamespace(settle=nothing, metrics=dict, begin=checkpoint, save=checkpoint)
    job.meter = SimpleNamespace(read=lambda *_: {})
    job.generator, job.gym = SimpleNamespace(metrics=nothing), SimpleNamespace(sandbox_metrics=dict)
    job.tasks = job.trainer = SimpleNamespace(metrics=dict)
    job.folder = SimpleNamespace(append_metrics=lambda *_: None, sync_metrics=lambda: None, save_groups=save_groups)
    job.sinks, job.reporter = Sinks(), SimpleNamespace(step=lambda *_: None)
    job.helm = SimpleNamespace(after_step=nothing, stopped="")
    job.journal = SimpleNamespace(mark=lambda position: done.append(f"mark {position['step']}"))
    job.turn, job.behind = asyncio.Lock(), Behind()
    return job


async def step(job: Any, number: int) -> None:
    await job.turn.acquire()
    await job._after_step(StepRecord(step=number, groups=[], skipped=[], staleness=[], next_group=number, metrics={}))


async def test_the_next_step_begins_before_episodes_are_written_and_the_mark_comes_last() -> None:
    done, written = list[str](), threading.Event()
    job = job_of(done, written)
    await asyncio.wait_for(step(job, 1), 10)
    assert done == [] and not job.turn.locked()
    written.set()
    await job.behind.done()
    assert done == ["episodes", "mark 1"]


async def test_a_checkpoint_follows_the_episodes_of_its_step() -> None:
    done, written = list[str](), threading.Event()
    ending = asyncio.create_task(step(job := job_of(done, written), 2))
    await asyncio.sleep(0.2)
    assert done == [] and not ending.done()
    written.set()
    await ending
    await job.behind.done()
    assert done == ["episodes", "checkpoint", "mark 2"]


async def test_no_step_ends_before_what_the_last_one_left_is_written() -> None:
    done, written = list[str](), threading.Event()
    job = job_of(done, written)
    await step(job, 1)
    ending = asyncio.create_task(step(job, 3))
    await asyncio.sleep(0.2)
    assert not ending.done()
    written.set()
    await ending
    await job.behind.done()
    assert done == ["episodes", "mark 1", "episodes", "mark 3"]
