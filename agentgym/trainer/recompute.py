"""What the backward pass computes again: elementwise results, and on request every second matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts

from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.titan import FullAC, SelectiveAC

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.linear.default)
CHANGED = (torch.ops.aten.topk.default,)  # transformers' routers divide it in place, and what is kept can't change


class ElementwiseAC(SelectiveAC):  # type: ignore[misc]  # torchtitan has no types
    """Keeps the results of matrix products and attention.

    Those of adapters are computed again: beside each product of the model they have one of the same size, which costs
    a hundredth of it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):  # type: ignore[misc]
        """rank: of the adapters; 0 is none."""

        rank: int = 0

    every_second = False

    def _wrap_block(self, module: nn.Module, *, base_fqn: str | None = None) -> nn.Module:
        kept = self.get_save_ops()
        return checkpoint_wrapper(
            module,
            context_fn=lambda: create_selective_checkpoint_contexts(  # type: ignore[no-untyped-call]
                policy(kept, every_second=self.every_second, rank=self.config.rank)
            ),
            preserve_rng_state=self.config.preserve_rng_state,
            determinism_check=self.config.determinism_check,
            early_stop=False,
        )


class EverySecondAC(ElementwiseAC):
    """torchtitan's selective policy: it also computes every second of the model's products again."""

    @dataclass(kw_only=True, slots=True)
    class Config(ElementwiseAC.Config):
        pass

    every_second = True


def recompute(model: nn.Module, trainer: TrainerConfig, folder: str) -> None:
    """Wraps each of its `layers` as trainer.activation_checkpoint says. folder: for torchtitan's files."""
    ways = {
        "elementwise": ElementwiseAC.Config(rank=trainer.lora.rank),
        "selective": EverySecondAC.Config(rank=trainer.lora.rank),
        "full": FullAC.Config(),
    }
    if trainer.activation_checkpoint in ways:
        ways[trainer.activation_checkpoint].build(dump_folder=folder).apply(model)


def policy(kept: set[object], *, every_second: bool, rank: int) -> Callable[..., CheckpointPolicy]:
    """The recomputation policy of one pass through a block. kept: operations whose results stay."""
    products = {False: 0, True: 0}  # so far, in the first pass and in the one that computes again

    def decide(
        context: SelectiveCheckpointContext, operation: object, *arguments: object, **options: object
    ) -> CheckpointPolicy:
        if operation not in kept or operation in CHANGED:
            return CheckpointPolicy.PREFER_RECOMPUTE
        if operation in PRODUCTS:
            factor = arguments[1]
            assert isinstance(factor, torch.Tensor)
            if rank in factor.shape:
                return CheckpointPolicy.PREFER_RECOMPUTE
            products[context.is_recompute] += 1
            if every_second and products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE

    return decide
