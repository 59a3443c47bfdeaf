"""A trainer without memory says who holds it and what to lower, and is not started again for it."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tiny_model import draw_samples, write_model

from agentgym.errors import InfraError
from agentgym.rl.losses import Loss, TokenLoss, TrainedTokens
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import LOST
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.setup import TrainerSetup

GPUS = "CUDA out of memory. Tried to allocate 7.42 GiB. GPU 0 has a total capacity of 79.19 GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hungry(Loss):
    """Once it is given the sample 3, it raises as torch does on a GPU, or asks for more than a host has. how: which."""

    how: str

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        if (tokens.sample_index == 3).any():
            if self.how == "host":
                torch.empty(2**50)
            raise (
                torch.AcceleratorError("CUDA error: out of memory")
                if self.how == "driver"
                else torch.OutOfMemoryError(GPUS)
            )
        return TokenLoss(loss=-tokens.logprobs)


def setup(folder: Path, loss: Loss, **trainer: object) -> TrainerSetup:
    settings = {"device": "cpu", "seq_len": 64, "rows_per_microbatch": 1} | trainer
    return TrainerSetup(
        model_path=write_model(folder / "model"),
        trainer=TrainerConfig(**settings),
        optimizer=OptimizerConfig(lr=1e-2),
        loss=loss,
        total_steps=10,
        folder=str(folder / "titan"),
    )


async def broken_step(setup: TrainerSetup, monkeypatch: pytest.MonkeyPatch) -> InfraError:
    monkeypatch.setenv("RANK", "0")
    trainer = TrainerActor(setup, None)
    try:
        trainer._built = await trainer._run(trainer._build)
        assert (await trainer._run(trainer._engine.train_step, draw_samples(3)))["train/grad_norm"] > 0
        with pytest.raises(InfraError) as caught:
            await trainer._run(trainer._engine.train_step, draw_samples(4))
    finally:
        await trainer.on_stop()
    assert not isinstance(caught.value, LOST), "a lost process is replaced, and the same step made again"
    return pickle.loads(pickle.dumps(caught.value))


async def test_a_gpu_that_is_full_is_reported_with_the_fields_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = setup(tmp_path, Hungry(how="gpu"), activation_checkpoint="selective")
    said = str(await broken_step(wanted, monkeypatch))
    assert "rank 0" in said and "out of memory on the GPU: it tried to allocate 7.42 GiB" in said
    assert "Lower trainer.seq_len (64), " in said and "rows_per_microbatch" not in said, "a row is the least"
    assert "gpu_memory_utilization" not in said, "it trains on a CPU"
    assert "trainer.activation_checkpoint (selective) to full" in said and "--resume" in said


async def test_what_takes_memory_beside_torch_is_no_lost_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = str(await broken_step(setup(tmp_path, Hungry(how="driver")), monkeypatch))
    assert "is out of memory on the GPU: the loss " in said and "CUDA error: out of memory" in said


async def test_a_host_that_is_full_is_reported_with_what_this_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = str(await broken_step(setup(tmp_path, Hungry(how="host")), monkeypatch))
    assert "out of the host's memory (" in said and f"allocate {4 * 2**20}.0 GiB" in said
    assert "GiB available" in said and "held by: " in said and f"(process {os.getpid()})" in said


def test_on_a_gpu_the_memory_of_vllm_is_among_the_fields_to_lower() -> None:
    assert "gpu_memory_utilization" in TrainerConfig(device="cuda").fields_to_lower()
