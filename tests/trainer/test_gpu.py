"""The same engine on one GPU: flex attention, bfloat16 products and selective activation checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_model import draw_samples, write_model

from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

pytestmark = pytest.mark.gpu
MakeEngine = Callable[..., TrainingEngine]


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_float32_on_the_gpu_equals_the_cpu(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path, family: str
) -> None:
    path = write_model(tmp_path / "model", family=family)
    cpu = make_engine(path=path).train_step(samples)
    gpu = make_engine(path=path, device="cuda", attention="sdpa").train_step(samples)
    assert gpu["train/loss"] == pytest.approx(cpu["train/loss"], abs=1e-4)
    assert gpu["train/grad_norm"] == pytest.approx(cpu["train/grad_norm"], rel=1e-3)


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # torch warns while it compiles
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_flex_attention_in_bfloat16_is_near_the_cpu_and_resumes(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path, family: str
) -> None:
    path = write_model(tmp_path / "model", family=family, head_dim=16)  # flex attention's least
    cpu = make_engine(path=path).logprobs(samples)
    engine = make_engine(
        path=path,
        device="cuda",
        attention="flex",
        dtype="bfloat16",
        activation_checkpoint="selective",
        rows_per_microbatch=1,
    )
    gpu = engine.logprobs(samples)
    distances = [abs(a - b) for x, y in zip(cpu, gpu, strict=True) for a, b in zip(x, y, strict=True)]
    assert sum(distances) / len(distances) < 0.05
    engine.train_step(samples)
    engine.save(str(tmp_path / "step-1"))
    after = engine.train_step(samples)["train/loss"]
    engine.load(str(tmp_path / "step-1"))
    assert engine.train_step(samples)["train/loss"] == pytest.approx(after, abs=1e-3)


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # torch warns while it compiles
@pytest.mark.parametrize("compiled", [False, True])
def test_no_microbatch_waits_for_the_gpu(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    engine = make_engine(
        path=write_model(tmp_path / "model", head_dim=16),
        device="cuda",
        attention="flex",
        dtype="bfloat16",
        compile=compiled,
        activation_checkpoint="elementwise",
        keep_logprobs=True,
    )
    for seed in range(3):  # in which everything is compiled
        engine.train_step(draw_samples(90, seed=seed))
    accumulate = engine._accumulate

    def watched(*given):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return accumulate(*given)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(engine, "_accumulate", watched)
    engine.train_step(draw_samples(90, seed=3))
