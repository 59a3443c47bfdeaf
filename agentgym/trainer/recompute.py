"""Computes elementwise results again in the backward pass, and keeps those of matrix products and attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from agentgym.trainer.titan import SelectiveAC


class ElementwiseAC(SelectiveAC):  # type: ignore[misc]  # torchtitan has no types
    """torchtitan's policy, without its second half: it also computes every second matrix product again."""

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):  # type: ignore[misc]
        pass

    def _wrap_block(self, module: nn.Module, *, base_fqn: str | None = None) -> nn.Module:
        kept = self.get_save_ops()

        def policy(_: object, operation: object, *arguments: object, **options: object) -> CheckpointPolicy:
            return CheckpointPolicy.MUST_SAVE if operation in kept else CheckpointPolicy.PREFER_RECOMPUTE

        return checkpoint_wrapper(
            module,
            context_fn=lambda: create_selective_checkpoint_contexts(policy),  # type: ignore[no-untyped-call]
            preserve_rng_state=self.config.preserve_rng_state,
            determinism_check=self.config.determinism_check,
            early_stop=False,
        )
