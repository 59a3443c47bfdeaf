"""What of a version of adapters does not fit is refused before anything is merged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentgym.weights.adapters import NOTE, A, AdapterNote, B, checked

WANTED = {"q.weight": (8, 6), "norm.weight": (6,)}
NOTED = AdapterNote(scale=1 / 3, base_dtype="bfloat16", dtype="float32", base="0123")
GIVEN = {NOTE: NOTED.to_tensor(torch.device("cpu")), f"q.{A}": torch.ones(2, 6), f"q.{B}": torch.ones(8, 2)}


def test_a_note_is_read_as_it_was_written_and_whole_adapters_pass() -> None:
    assert AdapterNote.of_tensor(GIVEN[NOTE]) == NOTED
    assert [*checked(WANTED, GIVEN.items())] == [*GIVEN]


@pytest.mark.parametrize(
    "change",
    [
        {f"q.{A}": torch.ones(2, 7)},
        {f"q.{A}": torch.ones(3, 6)},
        {f"q.{B}": torch.ones(9, 2)},
        {f"q.{B}": None},
        {f"k.{A}": torch.ones(2, 6), f"k.{B}": torch.ones(8, 2)},
        {f"norm.{A}": torch.ones(2, 6), f"norm.{B}": torch.ones(6, 2)},
        {"norm.weight": torch.ones(6)},
    ],
)
def test_what_fits_no_matrix_is_refused(change: dict[str, Tensor | None]) -> None:
    given = {name: tensor for name, tensor in (GIVEN | change).items() if tensor is not None}
    with pytest.raises(ValueError, match="fits no weight of this model"):
        checked(WANTED, given.items())
