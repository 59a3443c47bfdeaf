"""A trainer that is lost at any moment ends with the weights of one that was not, bit for bit."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import draw_samples

from agentgym.actors.endpoint import method_name
from agentgym.actors.process_group import NoAnswer, ProcessDied
from agentgym.errors import InfraError
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.actor import TrainerActor, TrainerBroken
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.journal import Batch, Journal
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.mismatch_config import EngineLimits, MismatchConfig, StalenessLimits
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.shared_memory import SharedMemoryStore

STEPS, SAVED = 4, 2  # and the step with a checkpoint
Plan = Mapping[tuple[str, int, str], type[InfraError]]


class InThisProcess(TrainerKeeper):
    """Its engine is here, and is lost as planned: at the n-th call of that name, before or after it has run."""

    def __init__(
        self,
        model_path: str,
        folder: Path,
        plan: Plan,
        *,
        max_restarts: int = 3,
        mismatch: MismatchConfig = MismatchConfig(),  # noqa: B008
        **options: Any,
    ) -> None:
        setup = TrainerSetup(
            model_path=model_path,
            trainer=TrainerConfig(seq_len=64, device="cpu", max_restarts=max_restarts, mismatch=mismatch),
            optimizer=OptimizerConfig(lr=1e-2),
            loss=Grpo(),
            total_steps=STEPS,
            folder=str(folder / "titan"),
        )
        self.here = SharedMemoryStore("keeper", root=folder)
        super().__init__(setup, journal=Journal(folder / "journal"), store=self.here, runtime=object(), **options)
        self.plan, self.counts, self.engine = dict(plan), dict[str, int](), None

    async def _launch(self) -> None:
        self._count("launch")
        self._lose("launch", "before")
        self.engine = TrainingEngine(self._setup)

    async def _ask(self, method: Any, *args: Any) -> list[Any]:
        name = method_name(method)
        self._count(name)
        self._lose(name, "before")
        answer = await asyncio.to_thread(self._do, name, *args)
        self._lose(name, "after")
        return [answer]

    def _do(self, name: str, *args: Any) -> Any:
        assert self.engine is not None, "nobody asks one that is lost"
        if name == "hold_version":
            (self.engine.version,) = args
        elif name == "push_weights":
            self.engine.publish(*args, lambda weights: asyncio.run(self.here.put(*args, weights)))
        elif name == "save_is_written":
            return self.engine.saver.is_written
        elif name == "finish_save":
            return self.engine.saver.finish()
        else:
            return None if name == "get_status" else getattr(self.engine, name)(*args)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _lose(self, name: str, when: str) -> None:
        if kind := self.plan.pop((name, self.counts[name], when), None):
            self.engine = None
            raise kind(f"planned: {name}, {when}")


async def train(
    trainer: InThisProcess, folder: Path, *, steps_a_push: int = 1, rates: Mapping[int, float] = {}
) -> dict[str, Any]:
    """What is left after a short run: every figure, every published weight, the next step."""
    await trainer.start()
    await trainer.push_weights(0)
    figures = []
    for step in range(1, STEPS + 1):
        if step in rates:
            await trainer.set_rate(rates[step])
        figures.append(await trainer.train_step(draw_samples(3, seed=step)))
        if step % steps_a_push == 0:
            await trainer.push_weights(step // steps_a_push)
        figures.append({"logprobs": await trainer.call(TrainerActor.logprobs, draw_samples(1))})
        if step == SAVED:
            await trainer.call(TrainerActor.save, str(folder / "saved"))
            await trainer.call(TrainerActor.export_hf, str(folder / "hf"))
            trainer.saved(step, folder / "saved")
    return {
        "figures": [{name: value for name, value in row.items() if "/time/" not in name} for row in figures],
        "published": {v: dict(await trainer.here.get(v)) for v in await trainer.here.versions()},
        "version": trainer.engine.version,
        "steps": (trainer.step, trainer.engine.step),
    }


@pytest.fixture(scope="module")
def unhurt(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("unhurt")
    return asyncio.run(train(InThisProcess(model_path, folder, {}), folder))


def assert_same(found: dict[str, Any], expected: dict[str, Any], versions: range) -> None:
    published, wanted = found.pop("published"), {v: expected["published"][v] for v in versions}
    assert published.keys() == wanted.keys()
    assert all(torch.equal(published[v][name], wanted[v][name]) for v in wanted for name in wanted[v])
    assert found == {key: value for key, value in expected.items() if key != "published"}


LOSSES: dict[str, Plan] = {
    "while it starts": {("launch", 1, "before"): ProcessDied},
    "in the first publish": {("push_weights", 1, "before"): ProcessDied},
    "before the first checkpoint": {("train_step", 1, "after"): ProcessDied},
    "before a step": {("train_step", 4, "before"): ProcessDied},
    "inside a step, after the weights changed": {("train_step", 4, "after"): ProcessDied},
    "in a step that hangs": {("train_step", 3, "before"): NoAnswer},
    "of a peer": {("train_step", 3, "after"): TrainerBroken},
    "in a publish, before it was whole": {("push_weights", 4, "before"): ProcessDied},
    "in a publish, once it was whole": {("push_weights", 4, "after"): ProcessDied},
    "in a save": {("save", 1, "before"): ProcessDied},
    "in a save, once it was whole": {("save", 1, "after"): ProcessDied},
    "in an export": {("export_hf", 1, "after"): ProcessDied},
    "between two calls": {("logprobs", 3, "before"): ProcessDied},
    "twice, the second time while it comes back": {
        ("train_step", 4, "after"): ProcessDied,
        ("load", 1, "after"): ProcessDied,
    },
    "at each new step": {("train_step", n, "after"): ProcessDied for n in (1, 3, 6, 8)},
}


@pytest.mark.parametrize("plan", LOSSES.values(), ids=LOSSES)
async def test_a_loss_changes_no_bit(
    plan: Plan, model_path: str, tmp_path: Path, unhurt: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = InThisProcess(model_path, tmp_path, plan, max_restarts=2)
    with caplog.at_level(logging.WARNING):
        found = await train(trainer, tmp_path)
    assert not trainer.plan, "every loss of the plan took place"
    assert trainer.restarts == len(plan)
    lines = [line for record in caplog.records if "mismatch/" not in (line := record.getMessage())]
    assert "is lost and starts again (restart 1 of at most 2" in lines[0] and "planned" in lines[0]
    assert "is back after" in lines[-1]
    assert_same(found, unhurt, range(STEPS + 1))


async def test_steps_that_are_trained_again_have_the_rates_that_they_had(
    model_path: str, tmp_path: Path, unhurt: dict[str, Any]
) -> None:
    found = {}
    for name, losses in (("unhurt", {}), ("hurt", {("train_step", n, "after"): ProcessDied for n in (2, 5)})):
        (folder := tmp_path / name).mkdir()
        trainer = InThisProcess(model_path, folder, losses)
        found[name] = await train(trainer, folder, rates={2: 5e-3, SAVED + 2: 2e-3})
        assert trainer.restarts == len(losses)
    own, plain = ([r["train/lr"] for r in f["figures"] if "train/lr" in r] for f in (found["unhurt"], unhurt))
    assert [a / b for a, b in zip(own, plain, strict=True)] == pytest.approx(
        [1, *[0.5] * SAVED, *[0.2] * (STEPS - SAVED - 1)]
    )
    assert_same(found["hurt"], found["unhurt"], range(STEPS + 1))


async def test_weights_in_the_trainers_own_memory_are_published_again(
    model_path: str, tmp_path: Path, unhurt: dict[str, Any]
) -> None:
    """What other processes read of a dead one is gone, although its file is there."""
    plan = {("train_step", 4, "after"): ProcessDied, ("push_weights", 6, "after"): ProcessDied}
    trainer = InThisProcess(model_path, tmp_path, plan, holds_weights=True)
    found = await train(trainer, tmp_path)
    assert trainer.restarts == 2
    assert_same(found, unhurt, range(3, STEPS + 1))


@pytest.mark.parametrize("holds_weights", [False, True])
async def test_a_loss_changes_no_bit_where_a_push_comes_after_two_steps(
    model_path: str, tmp_path: Path, holds_weights: bool
) -> None:
    """The second step's tokens are of older weights, also when it is trained again; its correction shows it."""
    corrects = MismatchConfig(staleness=StalenessLimits(correct=0.0), engine=EngineLimits(correct=0.0))
    found = {}
    plan = {("train_step", 2, "after"): ProcessDied, ("train_step", 6, "before"): ProcessDied}
    for name, losses in (("unhurt", {}), ("hurt", plan)):
        (folder := tmp_path / name).mkdir()
        trainer = InThisProcess(model_path, folder, losses, mismatch=corrects, holds_weights=holds_weights)
        found[name] = await train(trainer, folder, steps_a_push=2)
        assert trainer.restarts == (2 if losses else 0)
    shares = [row["mismatch/fresh_share"] for row in found["unhurt"]["figures"] if "mismatch/fresh_share" in row]
    assert shares[1] == shares[3] == 0.0 and shares[0] > 0, "the case is there"
    kept = range(1, 3) if holds_weights else range(3)
    assert_same(found["hurt"], found["unhurt"], kept)


async def test_one_that_is_lost_while_nobody_calls_it_is_revived_with_its_weights_published(
    model_path: str, tmp_path: Path, unhurt: dict[str, Any]
) -> None:
    trainer = InThisProcess(model_path, tmp_path, {("get_status", 2, "before"): ProcessDied}, holds_weights=True)
    await trainer.start()
    await trainer.push_weights(0)
    await trainer.train_step(draw_samples(3, seed=1))
    await trainer.push_weights(1)
    await trainer.revive()
    assert trainer.restarts == 0, "it answers"
    await asyncio.gather(trainer.revive(), trainer.revive())
    assert trainer.restarts == 1 and await trainer.here.versions() == [1]
    published = dict(await trainer.here.get(1))
    assert all(torch.equal(published[name], tensor) for name, tensor in unhurt["published"][1].items())


async def test_who_waits_for_a_lost_trainer_goes_on_when_it_is_back_and_not_after_the_call_that_it_broke(
    model_path: str, tmp_path: Path
) -> None:
    class Gated(InThisProcess):
        gates = (asyncio.Event(), asyncio.Event())

        async def _ask(self, method: Any, *args: Any) -> list[Any]:
            if method_name(method) == "train_step":
                begun.set()
                await self.gates[self.counts.get("train_step", 0)].wait()
            return await super()._ask(method, *args)

    begun = asyncio.Event()
    trainer = Gated(model_path, tmp_path, {("train_step", 1, "before"): ProcessDied})
    await trainer.start()
    step = asyncio.create_task(trainer.train_step(draw_samples(3)))
    await begun.wait()
    revived = asyncio.create_task(trainer.revive())
    await asyncio.sleep(0)
    trainer.gates[0].set()
    await asyncio.wait_for(revived, 60)
    assert trainer.restarts == 1 and not step.done()
    trainer.gates[1].set()
    await step
    await trainer.close()


async def test_one_that_is_always_lost_at_a_step_ends_the_run(model_path: str, tmp_path: Path) -> None:
    trainer = InThisProcess(model_path, tmp_path, {("train_step", n, "before"): ProcessDied for n in (1, 2, 3)})
    trainer._max_restarts = 2
    await trainer.start()
    with pytest.raises(InfraError, match=r"lost 3 times without a new step(?s:.)*max_restarts is 2(?s:.)*planned"):
        await trainer.train_step(draw_samples(3))


async def test_a_step_counts_once_its_batch_is_on_the_disk(model_path: str, tmp_path: Path) -> None:
    trainer = InThisProcess(model_path, tmp_path, {})
    await trainer.start()
    write, may_write = trainer.journal.write, threading.Event()

    def write_late(batch: Batch) -> None:
        assert may_write.wait(60)
        write(batch)

    trainer.journal.write = write_late  # type: ignore[method-assign]
    step = asyncio.create_task(trainer.train_step(draw_samples(3)))
    while not (trainer.engine and trainer.engine.step):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not step.done() and trainer.step == 0
    may_write.set()
    await step
    assert trainer.step == 1 and [*trainer.journal.read(1).samples] == draw_samples(3)

    def full(batch: Batch) -> None:
        raise InfraError("no space is left")

    trainer.journal.write = full  # type: ignore[method-assign]
    with pytest.raises(InfraError, match="no space is left"):
        await trainer.train_step(draw_samples(3))
    assert trainer.step == 1


async def test_a_first_start_that_hangs_is_made_twice_and_not_as_often_as_others(
    model_path: str, tmp_path: Path
) -> None:
    trainer = InThisProcess(model_path, tmp_path, {("launch", 1, "before"): NoAnswer})
    await trainer.start()
    assert (trainer.counts["launch"], trainer.restarts) == (2, 1)
    await trainer.here.close()
    trainer = InThisProcess(model_path, tmp_path, {("launch", n, "before"): NoAnswer for n in (1, 2, 3)})
    with pytest.raises(InfraError, match=r"lost 2 times(?s:.)*raise trainer.step_timeout_s \(600 s\)(?s:.)*planned"):
        await trainer.start()
    assert trainer.counts["launch"] == 2


async def test_without_restarts_a_death_is_what_the_call_raises(model_path: str, tmp_path: Path) -> None:
    trainer = InThisProcess(model_path, tmp_path, {("train_step", 1, "before"): ProcessDied}, max_restarts=0)
    await trainer.start()
    with pytest.raises(ProcessDied, match="planned"):
        await trainer.train_step(draw_samples(3))


async def test_another_process_continues_behind_the_last_checkpoint(
    model_path: str, tmp_path: Path, unhurt: dict[str, Any]
) -> None:
    """As a controller does that was started again: it knows the folder alone."""
    first = InThisProcess(model_path, tmp_path, {})
    await train(first, tmp_path)
    await first.here.close()
    again = InThisProcess(model_path, tmp_path, {("train_step", 1, "after"): ProcessDied})
    await again.start()
    await again.resume(SAVED, tmp_path / "saved", until=STEPS)
    assert (again.step, again.engine.step, again.restarts) == (STEPS, STEPS, 1)
    await again.push_weights(STEPS + 5)
    published = dict(await again.here.get(STEPS + 5))
    assert all(torch.equal(published[name], tensor) for name, tensor in unhurt["published"][STEPS].items())


async def test_a_mismatch_above_its_limit_is_a_warning_of_the_run_once(
    model_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = InThisProcess(model_path, tmp_path, {})
    await trainer.start()
    for step in (1, 2):
        await trainer.push_weights(step - 1)
        metrics = await trainer.train_step(draw_samples(5, seed=step))
        assert metrics["mismatch/engine_kl"] > 0.01, "drawn samples are nobody's"
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line[:27] for line in lines if "engine_kl" in line] == ["step 1: mismatch/engine_kl "]
