"""Which matrix products the backward pass computes again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentgym.trainer.config import LORA_TARGETS, LoraConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

RANK, LAYERS = 3, 2  # no other dimension of the tiny model is 3


class Products(TorchDispatchMode):
    """Counts them: of adapters, and of the model's own matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation is torch.ops.aten.mm.default:
            self.counts["adapters" if RANK in args[1].shape else "own"] += 1
        return operation(*args, **(kwargs or {}))


def products(engine: TrainingEngine, samples: list[Sample]) -> Counter[str]:
    engine.train_step(samples)  # what is made once
    counted = Products()
    with counted:
        engine.train_step(samples)
    return counted.counts


@pytest.mark.parametrize(("recompute", "own_again"), [("elementwise", 0), ("selective", len(LORA_TARGETS) // 2)])
def test_products_of_adapters_are_computed_again_and_do_not_count_as_every_second(
    make_engine: Callable[..., TrainingEngine], samples: list[Sample], recompute: str, own_again: int
) -> None:
    settings: dict[str, Any] = {"lora": LoraConfig(rank=RANK), "rows_per_microbatch": 64}  # one microbatch
    all_kept = products(make_engine(**settings), samples)
    some = products(make_engine(**settings, activation_checkpoint=recompute), samples)
    again = 2 * len(LORA_TARGETS) * LAYERS  # x A and (x A) B
    assert some["adapters"] - all_kept["adapters"] == again
    assert some["own"] - all_kept["own"] == own_again * LAYERS


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("recompute", ["elementwise", "selective", "full"])
def test_activation_checkpoints_change_nothing(
    make_engine: Callable[..., TrainingEngine], samples: list[Sample], recompute: str, rank: int
) -> None:
    lora = LoraConfig(rank=rank)
    plain = make_engine(lora=lora).train_step(samples)
    step = make_engine(lora=lora, activation_checkpoint=recompute).train_step(samples)
    assert step["train/loss"] == pytest.approx(plain["train/loss"], abs=1e-6)
    assert step["train/grad_norm"] == pytest.approx(plain["train/grad_norm"], abs=1e-5)
