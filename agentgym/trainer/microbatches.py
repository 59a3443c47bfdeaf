"""The parts of a batch that are computed one after the other, on the device before the first of them is.

What is sent to a device waits until it has computed all that it was told to, and the device then waits for what comes
after. So all parts are sent at once, and nothing that the device computes decides what is launched next.

Axes: R rows, L tokens of a row, N wanted entries of a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from agentgym.rl.packing import TrainBatch
from agentgym.trainer.context import Context

Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """token_ids, positions: [R, L]. batch_entries: the wanted entries, [N], in the flattened rows of the whole batch.

    entries, labels: the wanted entries in the flattened rows of this part, and the tokens to score there. Where ranks
    share rows, they are of this rank's tokens alone, and here, [N], says which of the wanted ones these are.
    columns: others of the batch, at the wanted entries, [N] each. routes: [R, L, width], where the batch has them.
    """

    token_ids: Tensor
    positions: Tensor
    batch_entries: Tensor
    entries: Tensor
    labels: Tensor
    columns: Tensors
    here: Tensor | None = None
    routes: Tensor | None = None


def microbatches(
    batch: TrainBatch,
    parts: Iterable[slice],
    wanted_RL: Tensor,
    columns_RL: Tensors,
    *,
    context: Context,
    device: torch.device,
) -> list[Microbatch]:
    """parts: of the batch's rows. wanted_RL: which entries are scored."""
    index_RL = torch.arange(wanted_RL.numel()).view(wanted_RL.shape)
    rows: list[Tensors] = []
    columns: list[Tensors] = []
    for part in parts:
        indices_N, entries_N = index_RL[part][wanted_RL[part]], wanted_RL[part].flatten().nonzero()[:, 0]
        labels_N = batch.labels.flatten()[indices_N]
        found = {"token_ids": batch.token_ids[part], "positions": batch.positions[part], "batch_entries": indices_N}
        if batch.routes.shape[2]:
            found["routes"] = batch.routes[part]
        if context.size > 1:
            found["here"], entries_N = context.entries(entries_N, batch.row_length)
            labels_N = labels_N[found["here"]]
        rows.append(found | {"entries": entries_N, "labels": labels_N})
        columns.append({name: column.flatten()[indices_N] for name, column in columns_RL.items()})
    there = sent([*rows, *columns], device)
    both = zip(there[: len(rows)], there[len(rows) :], strict=True)
    return [Microbatch(**of_rows, columns=of_columns) for of_rows, of_columns in both]


def sent(parts: Sequence[Tensors], device: torch.device) -> Sequence[Tensors]:
    """The same tensors on the device, by one copy for each data type, which nobody waits for."""
    if device.type == "cpu":
        return parts
    there = {dtype: one.pin_memory().to(device, non_blocking=True) for dtype, one in joined(parts).items()}
    return split(there, parts)


def joined(parts: Sequence[Tensors]) -> dict[torch.dtype, Tensor]:
    """All tensors of a data type one after the other, [their elements]."""
    found: dict[torch.dtype, list[Tensor]] = {}
    for part in parts:
        for tensor in part.values():
            found.setdefault(tensor.dtype, []).append(tensor.flatten())
    return {dtype: torch.cat(tensors) for dtype, tensors in found.items()}


def split(buffers: Mapping[torch.dtype, Tensor], like: Sequence[Tensors]) -> list[dict[str, Tensor]]:
    """Views of what `joined` made of `like`, in its form."""
    taken = dict.fromkeys(buffers, 0)
    parts: list[dict[str, Tensor]] = []
    for part in like:
        parts.append({})
        for name, tensor in part.items():
            begin = taken[tensor.dtype]
            taken[tensor.dtype] = end = begin + tensor.numel()
            parts[-1][name] = buffers[tensor.dtype][begin:end].view(tensor.shape)
    return parts
