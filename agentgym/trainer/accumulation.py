"""What FSDP does with each microbatch of an update and what once: reducing gradients, and gathering weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torch import nn
from torch.distributed.fsdp import FSDPModule

from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.parallel import Ranks

T = TypeVar("T")


class Accumulation:
    """Reduced once, the gradients of the microbatches before the last add up on each rank, whole and in float32.

    Gathered once, a layer's weights are whole on each rank from the first microbatch's forward pass to the last one's
    backward pass. Outside of updates, as for scoring, they are given up after each layer.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, trainer: TrainerConfig) -> None:
        """auto is once on a CPU, and for what takes no memory; else it is each, since memory is not estimated here."""
        self._fsdp = model if isinstance(model, FSDPModule) else None
        on_cpu = ranks.device.type == "cpu"
        alone = ranks.data_size * ranks.context.size == 1  # its own share of the gradients is as large as whole ones
        reduce, gather = trainer.reduce_gradients, trainer.gather_weights
        self._reduce_once = reduce == "last" or (reduce == "auto" and (on_cpu or alone))
        self._gather_once = gather == "once" or (gather == "auto" and on_cpu)
        self._given_up = [module for module in self._sharded() if module is not self._fsdp and _is_given_up(module)]

    def over(self, microbatches: Iterable[T]) -> Iterator[T]:
        """Each in turn, for a forward and a backward pass. All ranks must have equally many."""
        every = list(microbatches)
        for number, one in enumerate(every, start=1):
            is_last = number == len(every)
            if self._fsdp is not None and self._reduce_once:  # all its modules, and the all-reduce of hybrid sharding
                self._fsdp.set_requires_gradient_sync(is_last)
            self._keep_gathered(after_forward=True, after_backward=not is_last)
            yield one
        self._keep_gathered(after_forward=False, after_backward=False)

    def give_up(self) -> None:
        """What scoring has left gathered, the last layer's: no backward pass comes that would do it."""
        for module in self._sharded():
            module.reshard()

    def drop(self) -> None:
        """Forget what is not reduced, after an error at any point: the next forward pass begins as the first did."""
        if self._fsdp is None or self._fsdp._get_fsdp_state()._is_root is None:  # it has not computed anything
            return
        self._keep_gathered(after_forward=False, after_backward=False)
        self._fsdp.reset_iter_state()
        for weight in self._weights():  # neither zero_grad nor reset_iter_state reach whole gradients
            weight.unsharded_accumulated_grad = None
            if hasattr(weight, "_unsharded_param"):
                weight._unsharded_param.grad = None

    def _keep_gathered(self, *, after_forward: bool, after_backward: bool) -> None:
        if self._fsdp is not None and self._gather_once:
            self._fsdp.set_reshard_after_backward(not after_backward)
            for module in self._given_up:
                module.set_reshard_after_forward(not after_forward, recurse=False)

    def _sharded(self) -> Iterator[FSDPModule]:
        if isinstance(self._fsdp, nn.Module):
            for module in self._fsdp.modules():
                if isinstance(module, FSDPModule):
                    yield module

    def _weights(self) -> Iterator[Any]:
        for module in self._sharded():
            for group in module._get_fsdp_state()._fsdp_param_groups:
                yield from group.fsdp_params


def _is_given_up(module: FSDPModule) -> bool:
    """Whether its weights are, after a forward pass."""
    return any(group._reshard_after_forward for group in module._get_fsdp_state()._fsdp_param_groups)
