"""The mismatch between sampler and trainer, split by its causes, and what the trainer does about it.

With m the log-probability that the sampler gave a token, o that of the trainer's weights before the step, x = o - m:

    engine      the mean of k3 = exp(x) - 1 - x over "fresh" tokens, which exactly these weights sampled
    staleness   the mean of k3 over all others, "stale" ones, less the last known engine's

Each mean estimates KL(sampler || trainer) (J. Schulman, "Approximating KL divergence", 2020), and to second order is
that of x^2 / 2. So where the engine's part of x and that of staleness are uncorrelated, they add up, and the difference
is staleness' part: an estimate, which noise can bring below 0.

A corrected token has the weight min(exp(x), cap): truncated importance sampling (E. Ionides, "Truncated importance
sampling", 2008; for samplers of another engine Yao et al., "Your efficient RL framework secretly brings you off-policy
RL training", 2025).

Axis: N trained tokens of a microbatch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from agentgym.errors import InfraError
from agentgym.rl.losses import Loss, TokenLoss, TrainedTokens
from agentgym.rl.losses.kl import k3
from agentgym.rl.losses.mismatch import mismatch
from agentgym.rl.losses.ratio import log_ratio, sequence_sums
from agentgym.trainer.mismatch_config import PARTS, Action, MismatchConfig, Part
from agentgym.trainer.mismatch_watch import CURES
from agentgym.trainer.parallel import Ranks

_FILE = "mismatch.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """KL divergences in nats a token by part; None before there is one. engine_step: the step that engine's is of."""

    engine: float | None = None
    engine_step: int = 0
    staleness: float | None = None

    def of(self, part: Part) -> float | None:
        return self.engine if part == "engine" else self.staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """tokens: as they were sampled. given: as the loss gets them. weights_N: of the losses; None changes nothing."""

    tokens: TrainedTokens
    given: TrainedTokens
    weights_N: Tensor | None

    def weigh(self, loss_N: Tensor) -> Tensor:
        """A token of weight 0 adds nothing, whatever its loss is."""
        if self.weights_N is None:
            return loss_N
        return (loss_N * self.weights_N).masked_fill(self.weights_N == 0, 0.0)

    def true_metrics(self, result: TokenLoss, version: int) -> TokenLoss:
        """The metrics, those of trainer against sampler measured on the tokens as they were sampled."""
        if self.weights_N is None:
            return result
        true = {name: value for name, value in mismatch(self.tokens, version).items() if name in result.metrics}
        return replace(result, metrics=result.metrics | true)


class MismatchGuard:
    """Measures a step's microbatches, and treats their tokens by what the steps before have shown.

    Figures are sums over the ranks, and all ranks take those of rank 0, so that all of them act alike.
    """

    def __init__(self, config: MismatchConfig, loss: Loss, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        self._active = loss.has_sampler
        self._known = Figures()
        self._moved = self._moved_in_step = False
        self.forget()

    def published(self) -> None:
        """The weights are those of the version that tokens are compared with."""
        self._moved = self._moved_in_step = False

    def moved(self) -> None:
        """Steps have changed them since."""
        self._moved, self._moved_in_step = True, False

    def stepped(self) -> None:
        """An update has changed the weights."""
        self._moved_in_step = True

    def forget(self) -> None:
        """Drop what microbatches have shown since the last step."""
        device = self._ranks.device
        self._sums = torch.zeros(9, dtype=torch.float64, device=device)
        self._largest = torch.full((2,), -torch.inf, dtype=torch.float64, device=device)
        self._found, self._metrics = self._known, dict[str, float]()

    def treat(self, tokens: TrainedTokens, version: int, *, has_old: bool) -> Treated:
        """A corrected token goes to the loss as if the trainer's old policy had sampled it, and has the weight of this
        policy against the sampler: no ratio counts twice. has_old: tokens.old_logprobs are of before the step.
        """
        if not self._active:
            return Treated(tokens=tokens, given=tokens, weights_N=None)
        same_weights = not self._moved and (has_old or not self._moved_in_step)
        fresh_N = (tokens.versions == version) & same_weights
        stale_N = (tokens.versions >= 0) & ~fresh_N
        self._measure(tokens, fresh_N, stale_N)
        corrects, masks = self._concerned("correct"), self._concerned("mask")
        if not corrects and not masks:
            return Treated(tokens=tokens, given=tokens, weights_N=None)
        classes = {"": torch.zeros_like(fresh_N), "staleness": stale_N, "engine": fresh_N | stale_N}
        far_N = (tokens.old_logprobs - tokens.sampler_logprobs).abs() > self._config.bound
        corrected_N, masked_N = classes[corrects], far_N & classes[masks]
        if self._config.drop == "sequence":
            masked_N = sequence_sums(masked_N.double(), tokens.sample_index) > 0
        return self._treated(tokens, corrected_N, masked_N, classes["engine"])

    def judge(self, step: int) -> None:
        """Judges the figures so far, before the step's update. Raises InfraError, on every rank, above a `stop`."""
        if not self._active:
            return
        sums = self._ranks.same(self._ranks.reduce(self._sums.clone())).tolist()
        largest = self._ranks.same(self._ranks.reduce(self._largest.clone(), dist.ReduceOp.MAX)).tolist()
        self._found, self._metrics = figures(sums, largest, self._known, step)
        for part in PARTS:
            limit, value = self._config.limit(part, "stop"), self._found.of(part)
            if limit is not None and value is not None and f"mismatch/{part}_kl" in self._metrics and value > limit:
                _stop(part, value, limit, step)

    def end_step(self) -> dict[str, float]:
        """The step's metrics; from now on its figures are those that the next one acts by."""
        self._known, metrics = self._found, self._metrics
        self._moved, self._moved_in_step = self._moved or self._moved_in_step, False
        self.forget()
        return metrics

    def save(self, folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(asdict(self._known)) + "\n")

    def load(self, folder: Path) -> None:
        """What `save` wrote into a checkpoint; one of an older version has nothing."""
        path = folder / _FILE
        self._known = Figures(**json.loads(path.read_text())) if path.is_file() else Figures()
        self._moved, self._moved_in_step = True, False  # until it is said of which version these weights are
        self.forget()

    def _is_above(self, part: Part, action: Action) -> bool:
        limit, value = self._config.limit(part, action), self._known.of(part)
        return limit is not None and value is not None and value > limit

    def _measure(self, tokens: TrainedTokens, fresh_N: Tensor, stale_N: Tensor) -> None:
        distance_N = (tokens.old_logprobs - tokens.sampler_logprobs).abs().double()
        k3_N = k3(log_ratio(tokens.old_logprobs.double(), tokens.sampler_logprobs.double()))
        for number, class_N in enumerate((fresh_N, stale_N)):
            columns_3N = torch.stack([torch.ones_like(k3_N), distance_N, k3_N]).masked_fill(~class_N, 0.0)
            self._sums[3 * number : 3 * number + 3] += columns_3N.sum(1)
            if len(class_N):
                nearest = distance_N.masked_fill(~class_N, -torch.inf).max()
                self._largest[number] = torch.maximum(self._largest[number], nearest)

    def _concerned(self, action: Action) -> Part | Literal[""]:
        """Whose tokens: the engine's part is in all that were sampled, that of staleness in stale ones alone."""
        return next((part for part in PARTS if self._is_above(part, action)), "")

    def _treated(self, tokens: TrainedTokens, corrected_N: Tensor, masked_N: Tensor, sampled_N: Tensor) -> Treated:
        ratio_N = log_ratio(tokens.old_logprobs, tokens.sampler_logprobs).exp()
        weights_N = torch.where(corrected_N, ratio_N.clamp(max=self._config.cap), 1.0).masked_fill(masked_N, 0.0)
        columns_3N = torch.stack([corrected_N.double(), masked_N.double(), weights_N.double()])
        self._sums[6:] += columns_3N.masked_fill(~sampled_N, 0.0).sum(1)
        sampler_N = torch.where(corrected_N, tokens.old_logprobs, tokens.sampler_logprobs)
        return Treated(tokens=tokens, given=replace(tokens, sampler_logprobs=sampler_N), weights_N=weights_N)


def figures(sums: list[float], largest: list[float], known: Figures, step: int) -> tuple[Figures, dict[str, float]]:
    """What sums over a step's tokens show, and its metrics; a class without a token has none.

    sums: for fresh and for stale tokens their number, distances and k3; then how many were corrected and masked, and
    the sum of their weights. known: of the steps before.
    """
    fresh, stale, total = sums[:3], sums[3:6], sums[0] + sums[3]
    metrics = {}
    for name, (count, distance, divergence), most in zip(("engine", "stale"), (fresh, stale), largest, strict=True):
        if count:
            metrics[f"mismatch/{name}_kl"] = divergence / count
            metrics[f"mismatch/{name}_abs_mean"] = distance / count
            metrics[f"mismatch/{name}_max"] = most
    found = replace(known, engine=metrics["mismatch/engine_kl"], engine_step=step) if fresh[0] else known
    if total:
        metrics["mismatch/fresh_share"] = fresh[0] / total
    if found.engine is not None:
        metrics["mismatch/engine_age_steps"] = float(step - found.engine_step)
        if stale[0]:
            metrics["mismatch/staleness_kl"] = metrics["mismatch/stale_kl"] - found.engine
            found = replace(found, staleness=metrics["mismatch/staleness_kl"])
    corrected, masked, weights = sums[6:]
    if (weights or masked) and total:
        metrics |= {"mismatch/corrected_share": corrected / total, "mismatch/masked_share": masked / total}
        metrics["mismatch/weight_mean"] = weights / total
    return found, metrics


def _stop(part: Part, value: float, limit: float, step: int) -> NoReturn:
    """Raises InfraError."""
    whose = "that these weights sampled" if part == "engine" else "of other weights, less the engine's part,"
    raise InfraError(
        f"step {step} ends the run: on tokens {whose} generators and trainer differ by {value:.3g} nats a token, which "
        f"is above trainer.mismatch.{part}.stop {limit:g}. This update changed no weight; {CURES[part]}, and go on "
        "with --resume, or raise the limit"
    )
