"""Engines with the tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_model import draw_samples, write_model

from agentgym.families.quantized import Quantize
from agentgym.rl.losses import Loss
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.config import DType, OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def make_engine(model_path: str, tmp_path: Path) -> Iterator[MakeEngine]:
    engines: list[TrainingEngine] = []

    def make(
        *,
        path: str = model_path,
        loss: Loss | None = None,
        lr: float = 1e-2,
        optimizer: OptimizerConfig | None = None,
        publish_dtype: DType = "float32",
        total_steps: int = 20,
        keep_logprobs: bool = False,
        with_critic: bool = False,
        base_path: str = "",
        quantize: Quantize = "none",
        **trainer: object,
    ) -> TrainingEngine:
        settings = {"seq_len": 128, "rows_per_microbatch": 2, "logprob_chunk": 64, "device": "cpu"} | trainer
        setup = TrainerSetup(
            model_path=path,
            trainer=TrainerConfig(**settings),
            optimizer=optimizer or OptimizerConfig(lr=lr),
            loss=loss or Grpo(),
            total_steps=total_steps,
            folder=str(tmp_path / "titan"),
            publish_dtype=publish_dtype,
            keep_logprobs=keep_logprobs,
            critic=with_critic,
            base_path=base_path,
            quantize=quantize,
        )
        engine = TrainingEngine(setup)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def samples() -> list[Sample]:
    return draw_samples(9)
