"""Rows are handed out, reused, and moved together with everything that belongs to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentgym.families.registry import read_architecture
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.rows import RowTable


@pytest.fixture
def cache(old_model):
    shape = read_architecture(old_model.folder)
    return KVCache(shape, rows=24, max_len=32, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def table(cache):
    return RowTable(cache)


def fill(table, cache, prompt):
    """Take a row, and mark its cache with its first token, as if the prompt had been computed."""
    row = table.take(prompt)
    table.tickets[row] = prompt[0]
    cache.data[:, :, row, :, : len(prompt)] = float(prompt[0])
    table.computed[row] = table.length[row]
    return row


def assert_in_place(table, cache, ticket):
    row = table.row_of(ticket)
    assert table.tokens[row, 0] == ticket
    assert (cache.data[:, :, row, :, : table.computed[row]] == ticket).all()


def test_what_runs_moves_together_with_its_cache(table, cache):
    assert [fill(table, cache, [ticket, 1, 2]) for ticket in range(10, 30)] == list(range(20))
    for ticket in [*range(10, 18), *range(20, 28)]:
        table.free(table.row_of(ticket))
    assert table.span == 20
    table.compact()
    assert (table.num_running, table.span) == (4, 9)  # a few idle rows are cheaper than a move
    for ticket in (18, 19, 28, 29):
        assert_in_place(table, cache, ticket)


def test_a_continuation_takes_the_row_of_what_it_continues(table, cache):
    for ticket in (10, 11, 12):
        fill(table, cache, [ticket, 1, 2])
    table.free(table.row_of(12))
    table.free(table.row_of(10))
    row = table.take([12, 1, 2, 5, 6])
    assert (table.length[row], table.computed[row]) == (5, 3)
    assert (cache.data[:, :, row, :, :3] == 12).all()
    same_again = table.take([10, 1, 2])
    assert table.computed[same_again] == 2, "all but its last token"


def test_another_prompt_takes_the_row_that_was_used_longest_ago(table, cache):
    for ticket in range(10, 34):
        fill(table, cache, [ticket, 1, 2])
    for ticket in (20, 15, 33):
        table.free(table.row_of(ticket))
    row = fill(table, cache, [50, 7])
    assert row == 5  # the first idle place, though the row that is given up is 20's
    kept = np.flatnonzero(~table.running)
    assert sorted(table.tokens[kept, 0].tolist()) == [15, 33]
    assert_in_place(table, cache, 50)
    row = table.take([15, 1, 2, 3])
    assert table.computed[row] == 3


def test_a_ticket_that_does_not_run_is_a_key_error(table, cache):
    row = fill(table, cache, [10, 1])
    table.free(row)
    with pytest.raises(KeyError):
        table.row_of(10)
