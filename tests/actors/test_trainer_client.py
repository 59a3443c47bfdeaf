"""The trainer and the reference model in processes of their own."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import InProcess
from safetensors.torch import load_file
from tiny_model import draw_samples, write_model
from waiting import LONG_S, no_child_left

from agentgym.actors.runtime import Runtime
from agentgym.errors import InfraError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService
from agentgym.rl.columns import SampleColumns
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient, trainer_options
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.reference import ReferenceModel
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.weights.config import WeightsConfig
from agentgym.weights.select import TorchStoreConfig
from agentgym.weights.shared_memory import SharedMemoryStore

SAMPLES = draw_samples(4)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_model(tmp_path_factory.mktemp("policy")))


def setup(policy: Path, folder: Path, *, procs: int = 1) -> TrainerSetup:
    return TrainerSetup(
        model_path=str(policy),
        trainer=TrainerConfig(procs=procs, device="cpu", seq_len=64),
        optimizer=OptimizerConfig(lr=1e-2),
        loss=Grpo(),
        total_steps=10,
        folder=str(folder),
    )


def test_the_processes_get_what_torchrun_would_give_them() -> None:
    options = trainer_options(TrainerConfig(procs=2, gpus=(3, 5)), None)
    first, second = (options.environment(rank) for rank in range(2))
    assert (first["RANK"], second["RANK"], first["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["CUDA_VISIBLE_DEVICES"] == second["CUDA_VISIBLE_DEVICES"] == "3,5"


@pytest.mark.slow
async def test_two_processes_train_publish_save_and_come_back(policy: Path, tmp_path: Path) -> None:
    async with no_child_left(), Runtime(log_dir=tmp_path / "logs"):
        store = SharedMemoryStore("test", root=tmp_path)
        trainer = TrainerClient(setup(policy, tmp_path / "titan", procs=2), store=store)
        await trainer.start()
        assert len(set(trainer.pids())) == 2
        await trainer.call(TrainerActor.push_weights, 0)
        first = dict(await store.get(0))
        expected = load_file(policy / "model.safetensors")
        assert {k for k in expected if k != "lm_head.weight"} == {k for k in first if k != "lm_head.weight"}
        assert all(torch.equal(first[k], expected[k]) for k in first if k in expected)

        metrics = await trainer.call(TrainerActor.train_step, SAMPLES)
        assert math.isfinite(metrics["train/grad_norm"]) and metrics["train/grad_norm"] > 0
        await trainer.call(TrainerActor.push_weights, 1)
        assert any(not torch.equal(first[name], tensor) for name, tensor in await store.get(1))
        with pytest.raises(ValueError, match="version 1 is stored already"):
            await trainer.call(TrainerActor.push_weights, 1)
        assert [s.step for s in await trainer.call_all(TrainerActor.get_status)] == [1, 1]

        await trainer.call(TrainerActor.save, str(tmp_path / "checkpoint"))
        before, of_other = await trainer.call_all(TrainerActor.logprobs, SAMPLES)
        assert len(before) == len(SAMPLES) and of_other == []
        await trainer.call(TrainerActor.train_step, SAMPLES)
        assert await trainer.call(TrainerActor.logprobs, SAMPLES) != before
        await trainer.call(TrainerActor.load, str(tmp_path / "checkpoint"))
        assert await trainer.call(TrainerActor.logprobs, SAMPLES) == before
        await trainer.call(TrainerActor.export_hf, str(tmp_path / "hf"))
        exported = load_file(tmp_path / "hf" / "model.safetensors")
        published = dict(await store.get(1))
        assert all(torch.equal(exported[name], tensor) for name, tensor in published.items())
        await trainer.close()
        await store.close()


class Measured(Runtime):
    """It knows the bytes of each call's arguments that it sent, to all processes together."""

    def ask(self, actor: Any, name: str, args: bytes) -> asyncio.Future[Any]:
        self.sent[name] += len(args)
        return super().ask(actor, name, args)


@pytest.mark.hostile
@pytest.mark.parametrize("updates", [{}, {"minibatches": 2, "epochs": 2}])
async def test_each_rank_is_sent_its_rows_alone_and_trains_the_same_bits(
    policy: Path, tmp_path: Path, updates: dict[str, int]
) -> None:
    samples = [replace(sample, returns=sample.advantages) for sample in draw_samples(32, longest=120)]
    async with Measured(log_dir=tmp_path / "logs") as runtime:
        runtime.sent = Counter()
        given = setup(policy, tmp_path / "titan", procs=2)
        given = replace(given, trainer=replace(given.trainer, seq_len=128, rows_per_microbatch=2, **updates))
        given = replace(given, loss=Grpo(aggregation="sequence_mean"), critic=True, keep_logprobs=True)
        trainer = TrainerClient(given)
        await trainer.start()
        await trainer.call(TrainerActor.save, str(tmp_path / "checkpoint"))

        async def whole(method: Any, *args: object) -> Any:
            return (await trainer._started().call(method, *args, timeout_s=LONG_S))[0]

        found: list[list[Any]] = []
        for call in (whole, trainer.call):
            await trainer.call(TrainerActor.load, str(tmp_path / "checkpoint"))
            runtime.sent.clear()
            steps = [await call(TrainerActor.train_step, SampleColumns.of(samples)) for _ in range(2)]
            metrics = [{name: step[name] for name in step if "/time/" not in name} for step in steps]
            scored = [await call(method, samples) for method in (TrainerActor.logprobs, TrainerActor.values)]
            kept = await trainer.call(TrainerActor.trained_logprobs)
            found.append([metrics, scored, kept, runtime.sent["train_step"]])
        (*before, all_bytes), (*after, own_bytes) = found
        assert after == before and found[0][0][0]["train/grad_norm"] > 0
        assert own_bytes < (0.6 if not updates else 1.0) * all_bytes, (own_bytes, all_bytes)
        await trainer.close()


@pytest.mark.slow
async def test_a_reference_gives_the_logprobs_of_the_first_weights(policy: Path, tmp_path: Path) -> None:
    async with Runtime(log_dir=tmp_path / "logs", launcher=InProcess()):
        trainer = TrainerClient(setup(policy, tmp_path / "titan"))
        reference = ReferenceModel(setup(policy, tmp_path / "titan"))
        await asyncio.gather(trainer.start(), reference.start())
        before = await trainer.call(TrainerActor.logprobs, SAMPLES)
        summed = await trainer.call(TrainerActor.forward_backward, SAMPLES)
        assert math.isfinite(summed["train/loss"]) and await trainer.call(TrainerActor.logprobs, SAMPLES) == before
        assert (await trainer.call(TrainerActor.optimizer_step))["train/grad_norm"] > 0
        assert (await trainer.call(TrainerActor.get_status)).step == 1
        assert await reference.forward(SAMPLES) == before != await trainer.call(TrainerActor.logprobs, SAMPLES)
        with pytest.raises(InfraError, match="no weight store"):
            await trainer.call(TrainerActor.push_weights, 1)
        await asyncio.gather(trainer.close(), reference.close())


@pytest.mark.slow
async def test_the_death_of_a_trainer_process_names_it_at_once(policy: Path, tmp_path: Path) -> None:
    async with Runtime(log_dir=tmp_path / "logs", launcher=InProcess()):
        trainer = TrainerClient(setup(policy, tmp_path / "titan"))
        await trainer.start()
        victim = trainer.pids()[0]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(InfraError, match=rf"process {victim} \(rank 0\) of trainer died"):
            await asyncio.wait_for(trainer.call(TrainerActor.train_step, SAMPLES), LONG_S)
        await trainer.close()


@pytest.mark.slow
async def test_a_model_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    async with no_child_left(), Runtime(log_dir=tmp_path / "logs", launcher=InProcess()):
        trainer = TrainerClient(setup(tmp_path / "nothing", tmp_path / "titan"))
        with pytest.raises(ValueError, match="nothing"):
            await trainer.start()


@pytest.mark.slow
@pytest.mark.hostile
async def test_a_trainer_publishes_through_torchstore_too(policy: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchstore")
    async with Runtime(log_dir=tmp_path / "logs") as runtime:
        store = await WeightsConfig(store=TorchStoreConfig()).open("trainer-test", runtime=runtime)
        trainer = TrainerClient(setup(policy, tmp_path / "titan"), store=store)
        await trainer.start()
        await trainer.call(TrainerActor.push_weights, 4)
        read = dict(await store.get(4))
        expected = load_file(policy / "model.safetensors")
        assert all(torch.equal(read[name], expected[name]) for name in read)
        await trainer.close()
        await store.close()


@pytest.mark.slow
@pytest.mark.hostile  # it starts five processes
async def test_two_ranks_send_torchstore_what_they_hold_and_readers_get_the_gathered_bits(
    policy: Path, tmp_path: Path
) -> None:
    torchstore = pytest.importorskip("torchstore")
    async with Runtime(log_dir=tmp_path / "logs") as runtime:
        store = await WeightsConfig(store=TorchStoreConfig(volumes=2)).open("sharded", runtime=runtime)
        trainer = TrainerClient(setup(policy, tmp_path / "titan", procs=2), store=store)
        await trainer.start()
        await trainer.call(TrainerActor.train_step, SAMPLES)
        await trainer.call(TrainerActor.push_weights, 4)
        with pytest.raises(ValueError, match="version 4 is stored already"):
            await trainer.call(TrainerActor.push_weights, 4)
        await trainer.call(TrainerActor.export_hf, str(tmp_path / "gathered"))
        expected = load_file(tmp_path / "gathered" / "model.safetensors")
        client = await torchstore.client(store.name)
        for name, weight in expected.items():
            volumes = await client._controller.locate_volumes.call_one(f"4/{name}")
            put = {volume: [tuple(one.local_shape) for one in info.tensor_slices] for volume, info in volumes.items()}
            assert put == {rank: [(len(weight) // 2, *weight.shape[1:])] for rank in ("0", "1")}, name

        generators = GeneratorService(
            config=GeneratorConfig(replicas=1, device="cpu", dtype="float32", max_model_len=64),
            store=store,
            model_path=str(policy),
        )
        await generators.start()
        await generators.update_weights(4)
        prompt = (5, 6, 7)
        sampled = await generators.generate(
            GenerateRequest(prompt_ids=prompt, sampling=SamplingParams(max_tokens=9, seed=1))
        )
        size = len(prompt) + len(sampled.completion_ids)
        columns = dict.fromkeys(("logprobs", "advantages", "ref_logprobs"), (0.0,) * size)
        mask, versions = (0.0, 0.0, 0.0) + (1.0,) * (size - 3), (4,) * size
        tokens = prompt + tuple(sampled.completion_ids)
        both = replace(SAMPLES[0], token_ids=tokens, loss_mask=mask, versions=versions, **columns)
        scored = await trainer.call(TrainerActor.logprobs, [both])
        assert scored[0][3:] == pytest.approx(sampled.logprobs, abs=1e-3)
        read = dict(await store.get(4))
        assert read.keys() == expected.keys() and all(torch.equal(read[name], expected[name]) for name in expected)
        await generators.close()
        await trainer.close()
        await store.close()
