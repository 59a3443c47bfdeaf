"""The rows of transformers' caches: joined, selected and cropped.

All rows of a cache end at the same slot and begin where their tokens do, so that slots are as far from each other as
tokens are. Sliding windows are masks here: all keys and values are kept, so every cache of attention can be cropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Change = Callable[[list[Tensor]], Tensor]


class CacheRows:
    """Makes caches for one model. carries: some layers hold a state of the whole row, which can't be cropped."""

    def __init__(self, config: Any) -> None:
        """config: of transformers. Raises ValueError for a model whose caches are not known here."""
        import transformers.cache_utils

        known: Any = transformers.cache_utils
        self._cache_class = known.Cache
        self._attention, self._state = known.DynamicLayer, known.LinearAttentionCacheLayerMixin
        whole = {known.DynamicSlidingWindowLayer: known.DynamicLayer}
        whole |= {known.LinearAttentionAndSlidingWindowAttentionLayer: known.LinearAttentionAndFullAttentionLayer}
        kinds = (known.DynamicLayer, known.LinearAttentionLayer, known.LinearAttentionAndFullAttentionLayer)
        try:
            layers: list[Any] = known.DynamicCache(config=config).layers
        except (KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"transformers makes no cache of its config: {error!r}") from error
        self._layers = [(whole.get(type(one), type(one)), getattr(one, "number_of_states", None)) for one in layers]
        if other := [kind.__name__ for kind, _ in self._layers if kind not in kinds]:
            raise ValueError(f"its cache has layers of the kind {other[0]}")
        self.carries = any(issubclass(kind, self._state) for kind, _ in self._layers)

    def empty(self) -> Any:
        return self._cache_class(
            layers=[kind() if states is None else kind(number_of_states=states) for kind, states in self._layers]
        )

    def joined(self, caches: Sequence[Any], lengths: Sequence[int]) -> Any:
        """All rows of some caches, in their order. lengths: slots of each; None stands for a row without any."""
        most, real = max(lengths), [cache for cache in caches if cache is not None]

        def padded(found: list[Tensor]) -> Tensor:
            tensors, size = iter(found), found[0].shape
            blank = found[0].new_zeros((1, size[1], most, size[3]))
            return torch.cat(
                [
                    blank if cache is None else torch.nn.functional.pad(next(tensors), (0, 0, most - length, 0))
                    for cache, length in zip(caches, lengths, strict=True)
                ]
            )

        return self._mapped(real, padded, torch.cat)

    def selected(self, cache: Any, rows: Sequence[int], begin: int, end: int) -> Any:
        """A copy of some rows, repeated ones too, and of their slots from begin to end. States are whole."""
        return self._mapped([cache], lambda one: one[0][rows, :, begin:end], lambda one: one[0][rows])

    def _mapped(self, caches: Sequence[Any], slots: Change, states: Change) -> Any:
        """A cache of what is made of the same tensor of all caches."""
        made = self.empty()
        for layer, *sources in zip(made.layers, *(cache.layers for cache in caches), strict=True):
            if isinstance(layer, self._attention) and sources[0].is_initialized:
                keys, values = slots([one.keys for one in sources]), slots([one.values for one in sources])
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
            for name, index in self._states_of(sources[0]):
                tensor = states([getattr(one, name)[index] for one in sources])
                layer.lazy_initialization(**{name: tensor, "state_idx": index})
                getattr(layer, name)[index] = tensor
                layer.has_previous_state[index] = True
        return made

    def _states_of(self, layer: Any) -> Iterator[tuple[str, int]]:
        if isinstance(layer, self._state):
            for name in ("conv_states", "recurrent_states"):
                yield from ((name, index) for index, one in getattr(layer, name).items() if one is not None)
