"""A reference model that follows the policy, and is lost meanwhile, goes on with the weights that it had."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_model import draw_samples

from agentgym.actors.endpoint import method_name
from agentgym.actors.process_group import ProcessDied
from agentgym.errors import InfraError
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TitanEngine
from agentgym.trainer.reference import ReferenceModel
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.shared_memory import SharedMemoryStore

SAMPLES = draw_samples(3)
Plan = Mapping[tuple[str, int, str], type[InfraError]]


class InThisProcess(ReferenceModel):
    """Its engine is here, and is lost as planned: at the n-th call of that name, before or after it has run."""

    def __init__(self, setup: TrainerSetup, store: SharedMemoryStore, plan: Plan) -> None:
        super().__init__(setup, store=store, runtime=object())  # type: ignore[arg-type]
        self.plan, self.counts, self.here = dict(plan), dict[str, int](), store
        self.engine: TitanEngine | None = None

    async def _launch(self) -> None:
        self.engine = TitanEngine(self._setup)

    async def _ask(self, method: Any, *args: Any) -> list[Any]:
        name = method_name(method)
        self.counts[name] = self.counts.get(name, 0) + 1
        self._lose(name, "before")
        assert self.engine is not None, "nobody asks one that is lost"
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
    store, policy = SharedMemoryStore("policy", root=tmp_path_factory.mktemp("weights")), TitanEngine(setup)
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
