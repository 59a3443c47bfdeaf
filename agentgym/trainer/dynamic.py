"""Tensors that are compiled for any length of their first axis from the start.

torch compiles for the size that it sees first, and once more, for any size, when it sees another: the second
compilation costs a first step as much as the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask


def of_any_rows(layers: Iterable[nn.Module]) -> None:
    """Has compiled layers mark all that they get, [rows, ...]. To be called after FSDP has its hooks, which give a
    layer other tensors than it was called with.
    """

    @torch._dynamo.disable  # type: ignore[untyped-decorator]  # a hook would be compiled as well
    def mark(_: nn.Module, given: tuple[Tensor, ...], named: Mapping[str, object]) -> None:
        of_any_length(len(given[0]), *given, *named.values())

    for layer in layers:
        layer.register_forward_pre_hook(mark, with_kwargs=True)


def of_any_length(length: int, *values: object) -> None:
    """Marks tensors, and those in masks, whose first axis has this length.

    A length of 1 is compiled for itself all the same.
    """
    for tensor in _tensors(values):
        if tensor.dim() and tensor.shape[0] == length:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _tensors(value: object) -> Iterator[Tensor]:
    """Those of a block mask, too, and of the functions that it was made by."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, BlockMask):
        yield from _tensors(value.as_tuple())
    elif isinstance(value, tuple):
        for one in value:
            yield from _tensors(one)
    elif callable(value):
        for cell in getattr(value, "__closure__", None) or ():
            yield from _tensors(cell.cell_contents)
