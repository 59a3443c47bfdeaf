"""Our losses against TRL's, to 1e-6 in value and gradient, where both have the formula. Skipped where TRL is not there.

python -m venv /tmp/trl && /tmp/trl/bin/pip install -e '.[train]' pytest 'trl==1.16.0'
/tmp/trl/bin/python -m pytest tests/rl/test_trl.py
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from agentgym.components import find
from agentgym.rl.advantages.overlong import SoftOverlong
from agentgym.rl.losses import Loss, TrainedTokens

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTHS = (5, 1, 9, 3, 7, 2)
ROWS, LONGEST = len(LENGTHS), max(LENGTHS)
HORIZON = 32


@dataclass(frozen=True)
class Arguments:
    """Those of TRL's GRPOConfig that its loss reads."""

    delta: object = None
    use_bias_correction_kl: bool = False
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    steps_per_generation: int = 1
    top_entropy_quantile: float = 1.0


class OneProcess:
    """TRL's accelerator and model, as far as its loss uses them."""

    num_processes, sync_gradients, training = 1, False, True

    def gather(self, values: Tensor) -> Tensor:
        return values

    gather_for_metrics = gather

    def reduce(self, values: Tensor, **_: object) -> Tensor:
        return values


SETTINGS: dict[str, object] = {
    "loss_type": "grpo", "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0,
    "max_completion_length": HORIZON, "current_gradient_accumulation_steps": 1, "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None, "use_vllm": False, "vllm_importance_sampling_correction": False,
    "aux_loss_enabled": False, "_entropy_bonus_enabled": False, "entropy_coef": 0.0, "use_adaptive_entropy": False,
}  # fmt: skip
BOUNDS = {"clip_low": 0.2, "clip_high": 0.28, "old": "trainer"}
HIGHER = {"epsilon_high": 0.28}
CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "grpo": ("ppo_clip", {**BOUNDS, "aggregation": "sequence_mean"}, HIGHER),
    "grpo with kl": ("ppo_clip", {**BOUNDS, "aggregation": "sequence_mean", "kl_coef": 0.1}, {**HIGHER, "beta": 0.1}),
    "two-sided": ("ppo_clip", {**BOUNDS, "dual_clip": 1.4}, {**HIGHER, "loss_type": "bnpo", "delta": 1.4}),
    "dr_grpo": ("dr_grpo", {"horizon": HORIZON, "old": "trainer"}, {"loss_type": "dr_grpo"}),
    "dapo": ("dapo", BOUNDS, {**HIGHER, "loss_type": "dapo"}),
    "entropy bonus": ("dapo", {**BOUNDS, "entropy_coef": 0.02}, {**HIGHER, "loss_type": "dapo", "entropy_coef": 0.02}),
    "cispo": ("cispo", {"importance_cap": 1.3, "old": "trainer"}, {"loss_type": "cispo", "epsilon_high": 1.3}),
    "gspo": (
        "gspo",
        {"clip_low": 0.03, "clip_high": 0.04, "old": "trainer"},
        {"importance_sampling_level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04},
    ),
    "sapo": ("sapo", {"old": "trainer"}, {"loss_type": "sapo"}),
    "tis": ("tis", {}, {**HIGHER, "loss_type": "bnpo", "weights": "token"}),
    "mis": ("mis", {}, {**HIGHER, "loss_type": "bnpo", "weights": "sequence_mask"}),
}


def trl() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trl", reason="TRL is not installed; see the top of this file")
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer


def draw() -> dict[str, Tensor]:
    torch.manual_seed(3)

    def noise(scale: float) -> Tensor:
        return torch.randn(ROWS, LONGEST, dtype=torch.float64) * scale

    sampler = -torch.rand(ROWS, LONGEST, dtype=torch.float64) * 3 - 0.4
    old = sampler + noise(0.1)
    return {
        "mask": (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).double(),
        "sampler": sampler,
        "old": old,
        "now": old + noise(0.25),
        "ref": sampler + noise(0.3),
        "entropy": torch.rand(ROWS, LONGEST, dtype=torch.float64),
        "advantages": torch.randn(ROWS, dtype=torch.float64),
    }


def of_trl(columns: dict[str, Tensor], settings: dict[str, object]) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the log-probabilities [S, T]."""
    base = trl()
    now = columns["now"].clone().requires_grad_()

    class Scored(base):  # type: ignore[misc]
        """A trainer without a model: its log-probabilities are given."""

        def __init__(self) -> None:
            given = {key: value for key, value in settings.items() if key not in ("delta", "weights")}
            self.__dict__.update(SETTINGS | given)
            self.args = Arguments(delta=settings.get("delta"))
            self._entropy_bonus_enabled = "entropy_coef" in settings
            self.use_vllm = self.vllm_importance_sampling_correction = "weights" in settings
            self.model = self.accelerator = OneProcess()
            self._metrics = {"train": defaultdict(list)}

        def _get_per_token_logps_and_entropies(self, *_: object, **__: object) -> tuple[Tensor, Tensor, None]:
            return now, columns["entropy"], None

    mask = columns["mask"]
    ids = torch.zeros(ROWS, LONGEST, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": mask,
        "advantages": columns["advantages"], "old_per_token_logps": columns["old"],
        "ref_per_token_logps": columns["ref"], "num_items_in_batch": mask.sum(),
        "sampling_per_token_logps": columns["sampler"],
    }  # fmt: skip
    ratio = ((columns["old"] - columns["sampler"]) * mask).exp()
    if settings.get("weights") == "token":
        inputs["importance_sampling_ratio"] = ratio.clamp(max=2.0)
    if settings.get("weights") == "sequence_mask":
        whole = ratio.prod(1, keepdim=True)
        inputs["importance_sampling_ratio"] = whole.masked_fill(whole > 2.0, 0.0)
    loss: Tensor = Scored()._compute_loss(None, inputs)
    loss.backward()
    assert now.grad is not None
    return loss.detach(), now.grad


def of_ours(columns: dict[str, Tensor], loss: Loss) -> tuple[Tensor, Tensor]:
    now = columns["now"].clone().requires_grad_()
    here = columns["mask"].bool()
    tokens = TrainedTokens(
        logprobs=now[here],
        entropy=columns["entropy"][here],
        sampler_logprobs=columns["sampler"][here],
        old_logprobs=columns["old"][here],
        ref_logprobs=columns["ref"][here],
        advantages=columns["advantages"][:, None].expand(ROWS, LONGEST)[here],
        versions=torch.zeros(int(here.sum()), dtype=torch.int64),
        sample_index=torch.arange(ROWS)[:, None].expand(ROWS, LONGEST)[here],
    )
    counts = torch.tensor(LENGTHS)[tokens.sample_index].double()
    weights = {
        "token_mean": torch.full_like(counts, 1 / sum(LENGTHS)),
        "sequence_mean": 1 / (ROWS * counts),
        "fixed_horizon": torch.full_like(counts, 1 / (ROWS * loss.horizon)),
    }[loss.aggregation]
    total = (loss(tokens, version=0).loss * weights).sum()
    total.backward()
    assert now.grad is not None
    return total.detach(), now.grad


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_equal_those_of_trl(case: str) -> None:
    name, ours, theirs = CASES[case]
    columns = draw()
    expected = of_trl(columns, theirs)
    loss = find("losses", name)(**ours)
    found = of_ours(columns, loss)
    torch.testing.assert_close(found[0], expected[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(found[1], expected[1], atol=1e-6, rtol=0)
    assert expected[1].abs().max() > 1e-3


def test_the_soft_overlong_punishment_equals_that_of_trl() -> None:
    trl()
    from trl.rewards import get_soft_overlong_punishment

    theirs = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    ours = SoftOverlong(max_tokens=100, cache_tokens=20)
    lengths = range(1, 130)
    assert [ours.punishment(n) for n in lengths] == pytest.approx(theirs([[1] * n for n in lengths]))
