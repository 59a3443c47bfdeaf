"""When FSDP reduces gradients over the ranks: with each microbatch, or once, with the last of an update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torch import nn
from torch.distributed.fsdp import FSDPModule

from agentgym.trainer.config import ReduceGradients
from agentgym.trainer.parallel import Ranks

T = TypeVar("T")


class GradientReduction:
    """Reduced once, the gradients of the microbatches before the last add up on each rank, whole and in float32."""

    def __init__(self, model: nn.Module, ranks: Ranks, when: ReduceGradients) -> None:
        """when: auto is last on a CPU and each on a GPU, whose memory is not estimated here."""
        self._fsdp = model if isinstance(model, FSDPModule) else None
        last = when == "last" or (when == "auto" and ranks.device.type == "cpu")
        self._once = last and ranks.data_size * ranks.context.size > 1

    def over(self, microbatches: Iterable[T]) -> Iterator[T]:
        """Each in turn, for a forward and a backward pass. All ranks must have equally many."""
        every = list(microbatches)
        for number, one in enumerate(every, start=1):
            if self._once and self._fsdp is not None:  # all its modules, and the all-reduce of hybrid sharding too
                self._fsdp.set_requires_gradient_sync(number == len(every))
            yield one

    def drop(self) -> None:
        """Forget what is not reduced, after an error at any point: the next forward pass begins as the first did."""
        if self._fsdp is None or self._fsdp._get_fsdp_state()._is_root is None:  # it has not computed anything
            return
        self._fsdp.reset_iter_state()
        for weight in self._weights():  # neither zero_grad nor reset_iter_state reach whole gradients
            weight.unsharded_accumulated_grad = None
            if hasattr(weight, "_unsharded_param"):
                weight._unsharded_param.grad = None

    def _weights(self) -> Iterator[Any]:
        assert isinstance(self._fsdp, nn.Module)
        for module in self._fsdp.modules():
            if isinstance(module, FSDPModule):
                for group in module._get_fsdp_state()._fsdp_param_groups:
                    yield from group.fsdp_params
