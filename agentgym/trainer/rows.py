"""Lays samples out in the rows of a trainer, and takes this rank's part of them.

Axes: R rows, L tokens of a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from agentgym.families.architecture import Architecture
from agentgym.families.registry import family_of
from agentgym.rl.packing import TrainBatch, pack, read_by, row_slices
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.microbatches import Microbatch, microbatches
from agentgym.trainer.packing_probe import LENGTHS, why_by_row
from agentgym.trainer.parallel import Ranks
from agentgym.types import Sample

log = logging.getLogger(__name__)


class Rows:
    """one_per_row: no two samples share a row, since the model would mix them."""

    def __init__(self, architecture: Architecture, trainer: TrainerConfig, ranks: Ranks, *, flex: bool) -> None:
        self._architecture, self._trainer, self._ranks = architecture, trainer, ranks
        compiled_once = flex or trainer.context_parallel > 1 or trainer.compile  # for one length
        self._break_even = None if compiled_once else architecture.attention_break_even
        self.one_per_row = False

    def prove(self, logprobs: Callable[[Sequence[Sample]], list[tuple[float, ...]]]) -> None:
        """Measures whether samples can share a row, and says so where they can't. logprobs: of packed samples; it is
        called. Collective.

        Dense families that would be compiled for it are left out: that takes half a minute, and tests prove them. So
        are rows that hold no two documents.
        """
        family = family_of(self._architecture)
        if (self._trainer.compile and family.dense is not None) or self._trainer.seq_len < sum(LENGTHS):
            return

        def score(samples: Sequence[Sample], one_per_row: bool) -> list[tuple[float, ...]]:
            self.one_per_row = one_per_row
            return logprobs(samples)

        why = why_by_row(family, score, vocab_size=self._architecture.vocab_size, dtype=self._trainer.dtype)
        self.one_per_row = bool(why)
        if why and self._ranks.rank == 0:
            log.warning("each sample gets a row of its own: %s", why)

    def pack(self, samples: Sequence[Sample]) -> TrainBatch:
        trainer = self._trainer
        return pack(
            samples,
            seq_len=trainer.seq_len,
            rows_divisible_by=self._ranks.data_size,
            attention_break_even=self._break_even,
            part_rows=trainer.rows_per_microbatch if trainer.compile else 1,  # one row is compiled for itself
            one_per_row=self.one_per_row,
        )

    def read_here(self, lengths: Sequence[int]) -> list[int]:
        """Which samples of these lengths are in this rank's rows."""
        ranks = self._ranks
        place = (self._trainer.seq_len, self._break_even, ranks.data_rank, ranks.data_size, self.one_per_row)
        return read_by(lengths, *place)

    def parts(self, batch: TrainBatch, wanted_RL: Tensor, columns_RL: Mapping[str, Tensor]) -> list[Microbatch]:
        """This rank's rows, in parts of at most rows_per_microbatch * seq_len tokens."""
        size = max(1, self._trainer.rows_per_microbatch * self._trainer.seq_len // batch.row_length)
        ranks = self._ranks
        rows = row_slices(batch.num_rows, size, ranks.data_rank, ranks.data_size)
        return microbatches(batch, rows, wanted_RL, columns_RL, context=ranks.context, device=ranks.device)
