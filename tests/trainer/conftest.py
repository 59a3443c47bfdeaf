"""A tiny Qwen3 with random weights, and samples for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from agentgym.rl.losses import Loss
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TitanEngine
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample

VOCAB_SIZE = 96
MakeEngine = Callable[..., TitanEngine]


def write_model(
    folder: Path, *, tied: bool = True, dtype: torch.dtype = torch.float32, layers: int = 2
) -> str:
    """Write a Hugging Face folder with random weights, large enough to make logits differ."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(dtype).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


def draw_samples(count: int, *, seed: int = 0, longest: int = 60, version: int = 0) -> list[Sample]:
    """Samples of 2 to `longest` tokens: a prompt, then sampled tokens with some tool text in between."""
    draw = random.Random(seed)
    samples = []
    for number in range(count):
        length = draw.randint(2, longest)
        prompt = draw.randint(1, length - 1)
        mask = [0.0] * prompt + [1.0 if draw.random() < 0.8 else 0.0 for _ in range(length - prompt)]
        mask[-1] = 1.0
        samples.append(
            Sample(
                sample_id=f"sample-{number}",
                token_ids=tuple(draw.randrange(VOCAB_SIZE) for _ in range(length)),
                loss_mask=tuple(mask),
                logprobs=tuple(-draw.uniform(2.0, 7.0) if m else 0.0 for m in mask),
                advantages=tuple(draw.gauss(0, 1) if m else 0.0 for m in mask),
                versions=tuple(version if m else -1 for m in mask),
                ref_logprobs=tuple(-draw.uniform(2.0, 7.0) if m else 0.0 for m in mask),
            )
        )
    return samples


@pytest.fixture
def make_model() -> Callable[..., str]:
    return write_model


@pytest.fixture
def make_samples() -> Callable[..., list[Sample]]:
    return draw_samples


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def make_engine(model_path: str, tmp_path: Path) -> Iterator[MakeEngine]:
    engines: list[TitanEngine] = []

    def make(
        *,
        path: str = model_path,
        loss: Loss | None = None,
        lr: float = 1e-2,
        optimizer: OptimizerConfig | None = None,
        **trainer: object,
    ) -> TitanEngine:
        settings = {"seq_len": 128, "rows_per_microbatch": 2, "logprob_chunk": 64, "device": "cpu"} | trainer
        setup = TrainerSetup(
            model_path=path,
            trainer=TrainerConfig(**settings),
            optimizer=optimizer or OptimizerConfig(lr=lr),
            loss=loss or Grpo(),
            total_steps=20,
            folder=str(tmp_path / "titan"),
        )
        engine = TitanEngine(setup)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def samples() -> list[Sample]:
    return draw_samples(9)
