"""A trainer whose real processes are killed ends with the weights of one that was left alone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch
from deadly import DeadlyLoss, DeadlyStore
from scripted import Scripted, fingerprint, scripted_tokens
from tiny_model import draw_samples, write_model
from waiting import LONG_S, no_child_left

from agentgym.actors.network import LOOPBACK
from agentgym.actors.runtime import Runtime
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.journal import Journal
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.reference import ReferenceModel
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.weights.nccl import NcclStore

pytestmark = pytest.mark.hostile

BATCHES = [draw_samples(3, seed=step) for step in range(4)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("policy"))


def make_setup(policy: str, folder: Path, procs: int = 1) -> TrainerSetup:
    return TrainerSetup(
        model_path=policy,
        trainer=TrainerConfig(procs=procs, device="cpu", seq_len=64),
        optimizer=OptimizerConfig(lr=1e-2),
        loss=DeadlyLoss(folder=str(folder)),
        total_steps=4,
        folder=str(folder / "titan"),
    )


def left_alone(setup: TrainerSetup) -> dict[str, torch.Tensor]:
    engine = TrainingEngine(setup)
    for version, samples in enumerate(BATCHES):
        engine.version = version
        engine.train_step(samples)
    weights = {name: tensor.clone() for name, tensor in engine.hf_weights()}
    engine.close()
    return weights


async def kill_once_there(path: Path, trainer: TrainerKeeper) -> None:
    """As soon as something begins to exist; a save may be quicker, then the kill comes behind it."""
    pids = trainer.pids()
    async with asyncio.timeout(LONG_S):
        while not path.exists() and not path.with_suffix("").exists():
            await asyncio.sleep(0)
    os.kill(pids[0], signal.SIGKILL)


async def test_a_kill_in_a_step_in_a_save_and_in_a_publication_changes_no_bit(policy: str, tmp_path: Path) -> None:
    async with no_child_left(), Runtime(log_dir=tmp_path / "logs") as runtime:
        store = DeadlyStore("recovery", root=tmp_path)
        setup = make_setup(policy, tmp_path)
        trainer = TrainerKeeper(setup, journal=Journal(tmp_path / "journal"), store=store, runtime=runtime)
        await trainer.start()
        await trainer.push_weights(0)
        for step, samples in enumerate(BATCHES, start=1):
            if step == 3:
                (tmp_path / "step").touch()
            await trainer.train_step(samples)
            if step == 4:
                (tmp_path / "publish").touch()
            await trainer.push_weights(step)
            if step == 2:
                saved = tmp_path / "saved"
                async with asyncio.TaskGroup() as both:
                    both.create_task(kill_once_there(tmp_path / "saved.partial", trainer))
                    both.create_task(trainer.call(TrainerActor.save, str(saved)))
                trainer.saved(step, saved)
        assert trainer.restarts == 3
        assert not [*tmp_path.glob("step"), *tmp_path.glob("publish"), *store.folder.glob("*.part")]
        published = dict(await store.get(4))
        await trainer.close()
        wanted = left_alone(setup)
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in published.items()) and published
        await store.close()


async def test_a_lost_rank_and_a_lost_reference_come_back(policy: str, tmp_path: Path) -> None:
    async with no_child_left(), Runtime(log_dir=tmp_path / "logs") as runtime:
        setup = make_setup(policy, tmp_path, procs=2)
        trainer = TrainerKeeper(setup, journal=Journal(tmp_path / "journal"), runtime=runtime)
        reference = ReferenceModel(make_setup(policy, tmp_path), runtime=runtime)
        await asyncio.gather(trainer.start(), reference.start())
        before = await reference.forward(BATCHES[0])
        os.kill(reference.pids()[0], signal.SIGKILL)
        (tmp_path / "step").touch()  # of rank 1 alone: rank 0 waits for it
        await trainer.train_step(BATCHES[0])
        assert [status.step for status in await trainer.call_all(TrainerActor.get_status)] == [1, 1]
        assert await reference.forward(BATCHES[0]) == before
        assert (trainer.restarts, reference.restarts) == (1, 1)
        await asyncio.gather(trainer.close(), reference.close())


async def test_a_trainer_killed_before_the_generators_have_its_weights_comes_back_with_them(
    policy: str, tmp_path: Path
) -> None:
    """Nobody calls it meanwhile, as in a synchronous loop, and a replica comes back at the same time."""
    async with no_child_left(), Runtime(log_dir=tmp_path / "logs") as runtime:
        store = NcclStore("recovery", keep=2, address=LOOPBACK, root=tmp_path)
        journal = Journal(tmp_path / "journal")
        trainer = TrainerKeeper(
            make_setup(policy, tmp_path), journal=journal, store=store, runtime=runtime, holds_weights=True
        )
        config = GeneratorConfig(engine=Scripted(), max_respawns=1, probe_every_s=0.3, probe_timeout_s=60)
        generators = GeneratorService(
            config=config, store=store, model_path=policy, runtime=runtime, revive=trainer.revive
        )
        try:
            await asyncio.gather(trainer.start(), generators.start())
            await trainer.push_weights(0)
            await generators.update_weights(0)
            await trainer.train_step(BATCHES[0])
            await trainer.push_weights(1)
            os.kill(trainer.pids()[0], signal.SIGKILL)
            os.kill(generators.pids()[0], signal.SIGKILL)
            await generators.update_weights(1)
            async with asyncio.timeout(LONG_S):
                while len(generators.pids()) < 2:
                    await asyncio.sleep(0.1)
            request = GenerateRequest(prompt_ids=(1, 2), sampling=SamplingParams(max_tokens=4, seed=3))
            mark = fingerprint(await store.get(1))
            expected = scripted_tokens((1, 2), 3, mark, 4, Scripted().vocab_size)
            answers = await generators.generate_everywhere(request)
            assert [answer.completion_ids for answer in answers] == [expected] * 2
            assert (trainer.restarts, generators.get_metrics()["generator/respawns_total"]) == (1, 1)
        finally:
            await generators.close()
            await trainer.close()
            await store.close()
