"""What runs in vLLM's own process: loading new weights into the model, and ending with the parent.

vLLM mixes `WorkerExtension` into its worker; the methods are called by name through `collective_rpc`.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from agentgym.errors import InfraError
from agentgym.generators.vllm.settings import STARTED_BY
from agentgym.generators.vllm.staging import Staging
from agentgym.weights.adapters import Base, MergedWeights, Origin
from agentgym.weights.reading import check_kept, open_weights

AS_IN_CHECKPOINT = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
"""How layers compute that keep their weights as a checkpoint has them, on a GPU."""
EXPERTS = "w13_weight"
"""The attribute of vLLM's layers of experts that has their first matrices."""


class _ModelRunner(Protocol):
    """The part of vLLM's model runner that is used here."""

    def get_model(self) -> nn.Module: ...

    def reload_weights(self, weights_iterator: Iterator[tuple[str, Tensor]], *, is_checkpoint_format: bool) -> None: ...


class _ModelConfig(Protocol):
    """model: the folder that vLLM started from."""

    model: str
    dtype: torch.dtype
    enable_cumem_allocator: bool


class _ParallelConfig(Protocol):
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The merged weights that a model holds. parameters: the model's names of those that depend on adapters."""

    origin: Origin
    parameters: frozenset[str]


class WorkerExtension:
    """Names begin with agentgym_, since they share the worker's namespace."""

    model_runner: _ModelRunner
    model_config: _ModelConfig
    parallel_config: _ParallelConfig
    device: torch.device
    agentgym_staging: Staging | None = None
    agentgym_base: Base | None = None
    agentgym_held: Held | None = None

    def agentgym_prepare(self, path: str) -> None:
        """Begin to open stored weights; generation goes on. `agentgym_prepared` says when they can be loaded."""
        alone = self.parallel_config.world_size == 1  # several ranks' own messages must not meet ours
        self.agentgym_staging = Staging(
            Path(path),
            self.device,
            receive=alone,
            base=self.agentgym_own_base(),
            held=None if self.agentgym_held is None else self.agentgym_held.origin,
        )

    def agentgym_read_base(self, path: str) -> None:
        """Begin to read what the adapters of later versions are merged into. path: of a version that is not loaded."""
        alone = self.parallel_config.world_size == 1
        Staging(Path(path), self.device, receive=alone, base=self.agentgym_own_base(), ahead=True)

    def agentgym_prepared(self) -> str | None:
        """None while weights are opened, then empty, or why they can't be."""
        staging = self.agentgym_staging
        return staging.failure if staging is not None and staging.done else None

    def agentgym_load_weights(self, path: str, *, lost: bool = False) -> None:
        """Load stored weights under Hugging Face names. The engine must be paused.

        lost: whether the model has lost those that it had, as it does when it sleeps.
        """
        staging, self.agentgym_staging = self.agentgym_staging, None
        held, self.agentgym_held = self.agentgym_held, None  # what fails leaves a part of two versions
        if staging is not None and staging.path == Path(path):
            stored = staging.weights()
        else:
            stored = self.agentgym_own_base().whole(open_weights(Path(path)), self.device)
        model, in_place = self.model_runner.get_model(), self.agentgym_loads_in_place()
        device = None if in_place and not self.model_config.enable_cumem_allocator else self.device
        as_here = partial(moved, device=device, dtype=self.model_config.dtype)
        if not in_place:
            self.model_runner.reload_weights(as_here(stored), is_checkpoint_format=True)
            repack_tied_head(model)
        elif isinstance(stored, MergedWeights):
            self.agentgym_held = load_merged(model, stored, as_here, None if lost else held)
        else:
            load_in_place(model, as_here(stored))
        check_kept(Path(path), self.device)

    def agentgym_own_base(self) -> Base:
        """What adapters are merged into."""
        if self.agentgym_base is None:
            self.agentgym_base = Base(Path(self.model_config.model))
        return self.agentgym_base

    def agentgym_loads_in_place(self) -> bool:
        """Whether weights load in place: with CUDA, unless weights are processed after loading; on CPUs vLLM packs
        them.
        """
        cuda = self.device.type == "cuda" and torch.version.hip is None  # nobody tried it on AMD's
        return cuda and as_in_checkpoint(self.model_runner.get_model())


def end_with(parent: int) -> None:
    """End this process with the one that started vLLM: a killed replica must not keep a GPU occupied.

    Where vLLM runs its worker in yet another process, its engine ends with the worker.
    """
    try:
        watched = os.pidfd_open(parent)  # the process itself: its number could be given to another
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_end_with, args=(watched,), name="parent-watch", daemon=True).start()


def as_in_checkpoint(model: nn.Module) -> bool:
    """Whether no layer quantizes, packs or wraps its weights after they are loaded.

    Mixtures of experts never are: kernels rearrange an expert's weights, and loading in place then corrupts them.
    """
    if any(hasattr(layer, EXPERTS) for layer in model.modules()):
        return False
    methods = (getattr(layer, "quant_method", None) for layer in model.modules())
    return all(method is None or type(method).__name__ in AS_IN_CHECKPOINT for method in methods)


def moved(
    weights: Iterable[tuple[str, Tensor]], *, device: torch.device | None, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """device: to which they come one by one, or None where the model can copy them from the GPU that they are on.

    CUDA refuses such a copy ("invalid argument") into memory that can be given away, as the model's is where vLLM
    sleeps: other GPUs have no access to it.
    """
    return ((name, tensor.to(device=device, dtype=dtype)) for name, tensor in weights)


@torch.no_grad()
def load_in_place(model: nn.Module, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Copy the weights to where the model computes with them; `reload_weights` builds every layer anew and copies it.

    Raises InfraError when a weight of the model is missing.
    """
    check_loaded({name for name, _ in model.named_parameters()}, model.load_weights(weights))  # type: ignore[operator]


@torch.no_grad()
def load_merged(
    model: nn.Module,
    merged: MergedWeights,
    as_here: Callable[[Iterable[tuple[str, Tensor]]], Iterator[tuple[str, Tensor]]],
    held: Held | None,
) -> Held:
    """Loads as `load_in_place` does; from the origin of what the model holds, only what is adapted, since the rest is
    equal.

    as_here: `moved`.
    """
    fixed, adapted = merged.parts()
    same = held is not None and held.origin == merged.origin
    wanted = held.parameters if held is not None and same else {name for name, _ in model.named_parameters()}
    others = () if same else model.load_weights(as_here(fixed))  # type: ignore[operator]
    loaded = frozenset(model.load_weights(as_here(adapted)))  # type: ignore[operator]
    check_loaded(wanted, loaded.union(others))
    return Held(origin=merged.origin, parameters=loaded)


def check_loaded(wanted: Iterable[str], loaded: Iterable[str]) -> None:
    """Raises InfraError where a parameter was not loaded."""
    missing = set(wanted) - set(loaded)
    if missing:
        raise InfraError(f"vLLM left {len(missing)} of its weights as they were: {', '.join(sorted(missing)[:5])}")


def repack_tied_head(model: nn.Module) -> None:
    """Pack lm_head again from the embedding it is tied to.

    On CPU, vLLM 0.32 keeps a packed copy of lm_head, which `reload_weights` leaves as it was: without this
    the logits come from the old head. On GPUs there is no such copy.
    """
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is None or embedding is None or head is embedding or head.weight.device.type != "cpu":
        return
    if head.weight.data_ptr() == embedding.weight.data_ptr():
        head.quant_method.process_weights_after_loading(head)


def _end_with(watched: int) -> None:
    select.select([watched], [], [])
    os._exit(1)


if (parent := int(os.environ.get(STARTED_BY, os.getpid()))) != os.getpid():
    # here and not in a method: vLLM calls none before it has started, and one that is starting has the memory already
    end_with(parent)
