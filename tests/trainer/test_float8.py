"""Float8 products: their rounding, what stays in bfloat16, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_model import write_model

from agentgym.errors import UserError
from agentgym.trainer.config import LoraConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.float8 import check
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torchao's own imports
def test_emulated_float8_trains_near_bfloat16_and_publishes_the_same_kind_of_weights(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    pytest.importorskip("torchao", reason="pip install torchao")
    path = write_model(tmp_path / "model", head_dim=16)
    engines = {name: make_engine(path=path, dtype="bfloat16", float8=name) for name in ("off", "emulated")}
    kinds = {name: type(module).__name__ for name, module in engines["emulated"]._model.named_modules()}
    assert [*kinds.values()].count("Float8Linear") >= 5 and "Float8" not in kinds["lm_head"]
    steps = {name: [engine.train_step(samples) for _ in range(2)] for name, engine in engines.items()}
    for plain, rounded in zip(steps["off"], steps["emulated"], strict=True):
        assert rounded["train/entropy"] == pytest.approx(plain["train/entropy"], rel=0.02)
        assert rounded["train/grad_norm"] == pytest.approx(plain["train/grad_norm"], rel=0.2)
    assert steps["off"][0]["train/grad_norm"] != steps["emulated"][0]["train/grad_norm"]
    weights = {name: dict(engine.hf_weights(torch.bfloat16)) for name, engine in engines.items()}
    assert weights["off"].keys() == weights["emulated"].keys()
    assert {tensor.dtype for tensor in weights["emulated"].values()} == {torch.bfloat16}


def test_a_machine_that_cannot_compute_float8_is_said_in_one_sentence(make_engine: MakeEngine) -> None:
    trainer = TrainerConfig(dtype="bfloat16", float8="rowwise")
    with pytest.raises(UserError, match=r"pip install torchao.* or set trainer.float8 to off"):
        check(trainer, installed=False, capability=(9, 0))
    with pytest.raises(UserError, match=r"8\.9 or more .* this GPU has 8\.0"):
        check(trainer, installed=True, capability=(8, 0))
    with pytest.raises(UserError, match=r"torchao|the trainer is on a CPU"):
        make_engine(dtype="bfloat16", float8="rowwise")
    check(trainer, installed=True, capability=(8, 9))


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16", "lora": LoraConfig(rank=4)},
        {"dtype": "bfloat16", "procs": 2, "tensor_parallel": 2},
        {"dtype": "bfloat16", "float8": "emulated", "compile": True},
    ],
)
def test_what_float8_does_not_go_with_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"set trainer\.float8 to off"):
        TrainerConfig(**{"float8": "rowwise"} | settings)  # type: ignore[arg-type]
