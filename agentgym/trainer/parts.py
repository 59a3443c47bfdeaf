"""What this rank holds of each published weight, so that weights sharded over ranks are stored without a gather."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, product
from math import prod
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Shard, _StridedShard

from agentgym.errors import InfraError
from agentgym.trainer.export import parts_of
from agentgym.trainer.lora import full
from agentgym.trainer.parallel import Ranks
from agentgym.weights.store import Part

Shape: TypeAlias = "tuple[int, ...]"
Block: TypeAlias = "tuple[tuple[int, int], ...]"  # the first and the end, by axis
_SOURCE_BITS = 40  # a row's number is below its weight's


def own_parts(model: nn.Module, adapter: Any, dtype: torch.dtype) -> Iterator[Part]:
    """All parts of all weights under Hugging Face names, alike on every rank but for their values.

    Rank 0 has the values of what is not sharded. A weight of more than two axes is gathered, which is collective: go
    through all of them on every rank.
    """
    for prefix, module in parts_of(model):
        state, sources = _numbered(prefix, module)
        for name, key in adapter.to_hf({key: key for key in state}).items():
            for hf_name, numbers in adapter.separated(name, state[key]):
                yield from _parts(hf_name, numbers, sources, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutParts:
    """Where the parts go; put returns the names of all weights. See `weights.store.TakesParts`."""

    put: Callable[[Iterator[Part]], list[str]]
    commit: Callable[[list[str]], None]


def publish_parts(parts: Iterator[Part], ranks: Ranks, to: PutParts) -> None:
    """Every rank puts its parts; rank 0 commits when all have. Collective, also after an error."""
    names: list[str] | None = None
    try:
        try:
            names = to.put(parts)
        finally:
            deque(parts, maxlen=0)
            complete = all(ranks.gathered(names is not None))
        if not complete:
            raise InfraError("another rank of the trainer could not store its part of the weights")
        if ranks.rank == 0:
            to.commit(names or [])
    finally:
        ranks.barrier()


def _numbered(prefix: str, module: nn.Module) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The module's state with the numbers of rows in place of the weights, and the weights that they number.

    The state's hooks, which rename weights and take fused ones apart, are applied to the numbers: applied to the
    weights, torchtitan's would gather them. A row is all but the last axis; of a vector it is one element.
    """
    state: dict[str, Tensor] = {}
    sources: list[Tensor] = []
    for name, part in reversed([*module.named_modules(remove_duplicate=False)]):
        stem = f"{prefix}{name}." if name else prefix
        for before in part._state_dict_pre_hooks.values():  # FSDP's: shards what a pass has gathered
            before(part, stem, False)
        buffers = {own: one for own, one in part._buffers.items() if own not in part._non_persistent_buffers_set}
        for own, weight in (part._parameters | buffers).items():
            if weight is not None:
                shape = (*weight.shape[:-1], 1) if weight.ndim > 1 else tuple(weight.shape)
                state[stem + own] = torch.arange(prod(shape)).view(shape) + (len(sources) << _SOURCE_BITS)
                sources.append(weight)
        for hook in part._state_dict_hooks.values():
            hook(part, state, stem, {})
    return state, sources


def _parts(name: str, numbers: Tensor, sources: list[Tensor], dtype: torch.dtype) -> Iterator[Part]:
    """numbers: of the weight's rows, as `_numbered` has them."""
    rows = numbers.flatten()
    source = sources[int(rows[0]) >> _SOURCE_BITS]
    rows = rows & (1 << _SOURCE_BITS) - 1
    shape = (*numbers.shape[:-1], source.shape[-1]) if source.ndim > 1 else tuple(numbers.shape)
    if not isinstance(source, DTensor) or source.device_mesh.size() == 1 or not 0 < len(shape) < 3:
        whole = full(source, dtype)
        values = (
            whole.reshape(-1, *whole.shape[-1:] if whole.ndim > 1 else ())[rows].view(shape)
            if dist.get_rank() == 0
            else None
        )
        yield Part(name=name, shape=shape, begin=(0,) * len(shape), values=values, index=0, count=1)
        return
    mesh = source.device_mesh
    holders: dict[Block, tuple[int, ...]] = {}
    for coordinate in product(*map(range, mesh.shape)):
        for block in _blocks(source, coordinate, rows):
            holders.setdefault(block, coordinate)
    here = tuple(mesh.get_coordinate() or ())
    for index, block in enumerate(sorted(holders)):
        values = _values(source, here, rows, block).to(dtype) if holders[block] == here else None
        begin = tuple(start for start, _ in block)
        yield Part(name=name, shape=shape, begin=begin, values=values, index=index, count=len(holders))


def _blocks(source: DTensor, coordinate: tuple[int, ...], rows: Tensor) -> Iterator[Block]:
    """What the rank at this place of the mesh holds of the weight that consists of these rows."""
    held, columns = _held(tuple(source.shape), tuple(source.device_mesh.shape), coordinate, tuple(source.placements))
    places = held[rows].nonzero().flatten()
    if len(places) and (not columns or columns[0][0] < columns[0][1]):
        ends = [0, *((places.diff() != 1).nonzero().flatten() + 1).tolist(), len(places)]
        for begin, end in pairwise(ends):
            yield ((int(places[begin]), int(places[end - 1]) + 1), *columns)


def _values(source: DTensor, coordinate: tuple[int, ...], rows: Tensor, block: Block) -> Tensor:
    held, _ = _held(tuple(source.shape), tuple(source.device_mesh.shape), coordinate, tuple(source.placements))
    local = source.to_local().detach()
    begin, end = block[0]
    places = (held.cumsum(0) - 1)[rows[begin:end]].to(local.device)
    return local.reshape(-1, *local.shape[-1:] if local.ndim > 1 else ())[places]


@lru_cache(maxsize=256)
def _held(shape: Shape, mesh: Shape, coordinate: Shape, placements: tuple[Placement, ...]) -> tuple[Tensor, Block]:
    """Which rows of a weight the rank at this place of the mesh holds, [rows], and which columns, if it has any."""
    axes = [torch.arange(size) for size in shape]
    for size, place, placement in zip(mesh, coordinate, placements, strict=True):
        if isinstance(placement, (Shard, _StridedShard)):
            axis = axes[placement.dim]
            # FSDP over tensor parallelism takes a part of each of the latter's parts
            groups = axis.chunk(int(placement.split_factor)) if isinstance(placement, _StridedShard) else [axis]
            chunks = chain.from_iterable(one.chunk(size)[place : place + 1] for one in groups)
            axes[placement.dim] = torch.cat([axis[:0], *chunks])
    columns: Block = ()
    if len(axes) > 1:
        last = axes.pop()
        columns = ((int(last[0]), int(last[-1]) + 1),) if len(last) else ((0, 0),)
        assert columns[0][1] - columns[0][0] == len(last), f"columns of {placements} do not follow each other"
    held = torch.zeros(shape[: len(axes)], dtype=torch.bool)
    held[torch.meshgrid(*axes, indexing="ij")] = True
    return held.flatten(), columns
