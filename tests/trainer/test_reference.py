"""A reference model that follows the policy, and is lost meanwhile, goes on with the weights that it had."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from in_process import NoProcesses
from tiny_model import draw_samples

from agentgym.actors.endpoint import method_name
from agentgym.actors.process_group import ProcessDied
from agentgym.errors import InfraError
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.reference import ReferenceModel
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.shared_memory import SharedMemoryStore

SAMPLES = draw_samples(3)
Plan = Mapping[tuple[str, int, str], type[InfraError]]


class InThisProcess(ReferenceModel):
    """Its engine is here, and is lost as planned: at the n-th call of that name, before or after it has run."""

    def __init__(
        self, setup: TrainerSetup, store: SharedMemoryStore, plan: Plan, *, moves: bool = True, early: bool = False
    ) -> None:
        super().__init__(setup, store=store if moves else None, runtime=object(), early=early)  # type: ignore[arg-type]
        self.scored = list[list[str]]()
        self.plan, self.counts, self.here = dict(plan), dict[str, int](), store
        self.engine: TrainingEngine | None = None

    def _new_group(self) -> Any:
        self.counts["group"] = self.counts.get("group", 0) + 1
        return NoProcesses()

    async def _ask(self, method: Any, *args: Any) -> list[Any]:
        name = method_name(method)
        self.counts[name] = self.counts.get(name, 0) + 1
        if name == "setup":
            self.engine = TrainingEngine(self._setup)
            return [None]
        self._lose(name, "before")
        if name == "prepare":
            return [None]
        assert self.engine is not None, "nobody asks one that is lost"
        if name == "logprobs":
            self.scored.append([sample.sample_id for sample in args[0]])
        if name == "follow":
            version, share = args
            args = (await self.here.get(version), share)
        answer = await asyncio.to_thread(getattr(self.engine, name), *args)
        self._lose(name, "after")
        return [answer]

    def _lose(self, name: str, when: str) -> None:
        if kind := self.plan.pop((name, self.counts[name], when), None):
            self.engine = None
            raise kind(f"planned: {name}, {when}")


@pytest.fixture(scope="module")
def setup(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> TrainerSetup:
    return TrainerSetup(
        model_path=model_path,
        trainer=TrainerConfig(seq_len=64, device="cpu", reference_every=2, reference_mix=0.25),
        optimizer=OptimizerConfig(lr=1e-2),
        loss=Grpo(kl_coef=0.1),
        total_steps=6,
        folder=str(tmp_path_factory.mktemp("run") / "trainer"),
    )


@pytest.fixture(scope="module")
def published(setup: TrainerSetup, tmp_path_factory: pytest.TempPathFactory) -> SharedMemoryStore:
    """The weights of a policy after each of six steps."""
    store, policy = SharedMemoryStore("policy", root=tmp_path_factory.mktemp("weights")), TrainingEngine(setup)
    for step in range(1, 7):
        policy.train_step(draw_samples(3, seed=step))
        policy.publish(step, lambda weights, step=step: asyncio.run(store.put(step, weights)))
    policy.close()
    return store


async def answers(reference: InThisProcess) -> list[Any]:
    """What it says after each step."""
    await reference.start()
    said = []
    for step in range(1, 7):
        said.append(await reference.forward(SAMPLES))
        await reference.follow(step)
    return [*said, await reference.forward(SAMPLES)]


@pytest.mark.parametrize(
    "plan",
    [
        {("logprobs", 2, "before"): ProcessDied},
        {("logprobs", 4, "before"): ProcessDied},
        {("follow", 2, "before"): ProcessDied},
        {("follow", 2, "after"): ProcessDied},
        {("export_hf", 2, "after"): ProcessDied},
        {("logprobs", n, "before"): ProcessDied for n in (3, 6, 9)},
    ],
    ids=["before it moved", "after it moved", "in a move", "moved", "kept", "after each move"],
)
async def test_one_that_moves_comes_back_where_it_was(
    plan: Plan, setup: TrainerSetup, published: SharedMemoryStore
) -> None:
    expected = await answers(whole := InThisProcess(setup, published, {}))
    await whole.close()
    found = await answers(lost := InThisProcess(setup, published, plan))
    assert not lost.plan and lost.restarts == len(plan)
    assert found == expected and len({str(one) for one in found}) == 4, "it moved three times"
    await lost.close()
    assert not list(Path(setup.folder).glob("reference*"))


async def test_its_checkpoint_may_be_removed_once_it_runs(
    setup: TrainerSetup, published: SharedMemoryStore, tmp_path: Path
) -> None:
    """As a resumed run does that keeps few: the files beside the weights are copied with each move."""
    saved = tmp_path / "checkpoints" / "step-000002" / "reference"
    shutil.copytree(setup.model_path, saved)
    resumed = replace(setup, model_path=str(saved), folder=str(tmp_path / "trainer"))
    reference = InThisProcess(resumed, published, {("logprobs", 1, "before"): ProcessDied})
    await reference.start()
    shutil.rmtree(saved)
    before = await reference.forward(SAMPLES)
    await reference.follow(2)
    assert await reference.forward(SAMPLES) != before and reference.restarts == 1
    await reference.close()


async def test_without_restarts_nothing_is_kept_and_a_death_is_raised(
    setup: TrainerSetup, published: SharedMemoryStore
) -> None:
    never = replace(setup, trainer=replace(setup.trainer, max_restarts=0))
    reference = InThisProcess(never, published, {("logprobs", 1, "before"): ProcessDied})
    await reference.start()
    await reference.follow(2)
    assert "export_hf" not in reference.counts
    with pytest.raises(ProcessDied, match="planned"):
        await reference.forward(SAMPLES)
    await reference.close()


def near(found: list[tuple[float, ...]], expected: list[tuple[float, ...]]) -> bool:
    return [len(one) for one in found] == [len(one) for one in expected] and all(
        one == pytest.approx(other, abs=1e-5) for one, other in zip(found, expected, strict=True)
    )


async def test_what_ended_is_scored_as_soon_as_it_fills_the_rows_and_the_rest_in_the_step(
    setup: TrainerSetup, published: SharedMemoryStore
) -> None:
    samples = draw_samples(12)
    names = [sample.sample_id for sample in samples]
    reference = InThisProcess(setup, published, {}, moves=False, early=True)
    await reference.start()
    expected = await reference.forward(samples, trained_only=True)
    assert len(set(map(str, expected))) == len(samples), "a wrong order would show"
    room, first = 4 * 64, 0
    while room > 0:  # rows_per_microbatch rows of seq_len
        room -= len(samples[first].token_ids)
        first += 1
    assert 1 < first < 11
    for sample in samples[:11]:
        reference.begin([sample])
    await asyncio.sleep(0.2)  # the task begins
    assert reference.scored == [names, names[:first]]
    reference.forget([samples[1]])
    assert near(await reference.forward(samples[::-1], trained_only=True), expected[::-1])
    assert reference.scored[2:] == [[names[11], *names[10 : first - 1 : -1], names[1]]]
    assert near(await reference.forward(samples, trained_only=True), expected)
    assert reference.scored[-1] == names, "nothing is kept"
    reference.begin(samples)
    every = await reference.forward(samples)  # of all tokens, which are not scored early
    assert sum(map(bool, chain(*every))) == sum(len(sample.token_ids) - 1 for sample in samples)
    await reference.close()


async def test_one_that_is_lost_while_it_scores_early_scores_again_or_says_so_in_the_step(
    setup: TrainerSetup, published: SharedMemoryStore
) -> None:
    samples = draw_samples(24)
    found = []
    for plan in ({}, {("logprobs", 1, "before"): ProcessDied}):
        reference = InThisProcess(setup, published, plan, moves=False, early=True)
        await reference.start()
        reference.begin(samples)
        found.append(await reference.forward(samples, trained_only=True))
        assert not reference.plan and reference.scored[-1] == [sample.sample_id for sample in samples]
        await reference.close()
    assert found[0] == found[1]
    reference = InThisProcess(setup, published, {("logprobs", 1, "before"): InfraError}, moves=False, early=True)
    await reference.start()
    reference.begin(samples)
    await asyncio.sleep(0.05)
    with pytest.raises(InfraError, match="planned"):
        await reference.forward(samples, trained_only=True)
    await reference.close()


async def test_one_that_moves_or_shares_its_gpu_scores_in_the_step_alone(
    setup: TrainerSetup, published: SharedMemoryStore
) -> None:
    samples = draw_samples(24)
    for moves, early in ((True, True), (False, False)):
        reference = InThisProcess(setup, published, {}, moves=moves, early=early)
        await reference.start()
        reference.begin(samples)
        await asyncio.sleep(0.05)
        assert reference.scored == []
        await reference.forward(samples, trained_only=True)
        assert len(reference.scored) == 1
        await reference.close()


@pytest.mark.parametrize(("plan", "groups"), [({}, 1), ({("prepare", 1, "before"): ProcessDied}, 2)])
async def test_processes_that_are_prepared_are_those_that_start_unless_they_are_lost_before(
    plan: Plan, groups: int, setup: TrainerSetup, published: SharedMemoryStore
) -> None:
    prepared = InThisProcess(setup, published, plan)
    await prepared.prepare()
    assert "setup" not in prepared.counts and prepared.engine is None
    await prepared.start()
    assert (prepared.counts["group"], prepared.counts["setup"]) == (groups, 1)
    await prepared.forward(SAMPLES)
    await prepared.close()
