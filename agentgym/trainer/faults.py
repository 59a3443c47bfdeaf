"""A loss that can't be trained on: named, with the microbatch that it was given saved, before any weight changes.

Every rank finds the same fault at the same time. One that raised alone would leave the others waiting for its gradient.

Axis: N trained tokens of a microbatch.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from agentgym.errors import InfraError, UserError
from agentgym.plugin_errors import origin_of
from agentgym.rl.losses import Loss, TokenLoss, TrainedTokens
from agentgym.trainer.parallel import Ranks

FAULTS = (
    "",
    "it returned a loss that is not finite",
    "it returned a loss without a gradient: it must depend on tokens.logprobs",
    "it returned a loss of another shape: it must be one number for each trained token",
    "what it was given is not finite: log-probabilities or advantages",
)
NOT_FINITE, NO_GRADIENT, SHAPE, GIVEN = range(1, len(FAULTS))


class Faults:
    """Looks at each microbatch's loss, and reports once all are done. Nothing waits for the device until then."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._seen: list[tuple[TrainedTokens, Tensor, Tensor]] = []

    def checked(self, tokens: TrainedTokens, result: TokenLoss) -> Tensor:
        """The loss [N] to go on with: zeros with a gradient in the place of one that has none or another shape."""
        loss_N, wanted = result.loss, tokens.logprobs.shape
        fault = SHAPE if loss_N.shape != wanted else 0 if loss_N.requires_grad or not len(loss_N) else NO_GRADIENT
        found = loss_N.new_full((), fault, dtype=torch.int64)
        found = torch.where(loss_N.detach().isfinite().all(), found, NOT_FINITE)
        given = (tokens.logprobs.detach(), tokens.sampler_logprobs, tokens.ref_logprobs, tokens.advantages)
        found = torch.where(torch.stack(given).isfinite().all(), found, GIVEN)
        kept = replace(tokens, logprobs=tokens.logprobs.detach(), entropy=tokens.entropy.detach())
        self._seen.append((kept, loss_N.detach(), found))
        return tokens.logprobs * 0.0 if fault else loss_N

    def report(self, ranks: Ranks, folder: str, step: int) -> None:
        """Raise what was found, on every rank; the microbatch is saved by the rank that had it.

        Raises UserError for the loss, InfraError for what it was given.
        """
        device = ranks.device
        found = torch.stack([one for *_, one in self._seen]) if self._seen else torch.zeros(1, dtype=torch.int64)
        worst = found.max().to(device, torch.float32) * 65536 + ranks.rank
        fault, rank = divmod(int(ranks.reduce(worst[None], dist.ReduceOp.MAX)), 65536)
        if not fault:
            return
        path = Path(folder) / f"bad_batch_step_{step}_rank_{rank}.pt"
        if rank == ranks.rank:
            tokens, loss_N, _ = self._seen[int(found.argmax())]
            path.parent.mkdir(parents=True, exist_ok=True)
            columns = {f.name: getattr(tokens, f.name).cpu() for f in fields(tokens)}
            torch.save({"loss": repr(self._loss), "returned": loss_N.cpu(), "tokens": columns}, path)
        ranks.barrier()
        kind = InfraError if fault == GIVEN else UserError
        name = type(self._loss).__name__ + origin_of(self._loss, " ({})")
        raise kind(
            f"step {step}: the loss {name}: {FAULTS[fault]}. This update changed no weight. The "
            f"microbatch is in {path}; agentgym.trainer.faults.read_batch gives its tokens to call the loss on"
        )


def read_batch(path: Path) -> TrainedTokens:
    """The tokens that `Faults` saved; logprobs are a leaf with a gradient, so that the loss can be called on them."""
    columns = torch.load(path, weights_only=True)["tokens"]
    tokens = TrainedTokens(**columns)
    return replace(tokens, logprobs=tokens.logprobs.requires_grad_())
