"""Packing loses nothing, cuts nothing, and aligns every label with the entry that predicts it."""

from __future__ import annotations

import random
from itertools import chain, product

import pytest
import torch
from tiny_model import draw_samples

from agentgym.rl.packing import cheapest_row_length, even_slices, first_fit, pack, read_by, row_slices, unpack


def test_every_token_of_every_sample_appears_exactly_once() -> None:
    samples = draw_samples(50)
    batch = pack(samples, seq_len=64)
    seen: dict[tuple[int, int], int] = {}
    for row in range(batch.num_rows):
        for entry in range(batch.row_length):
            index = int(batch.sample_index[row, entry])
            if index >= 0:
                key = (index, int(batch.positions[row, entry]))
                assert key not in seen
                seen[key] = int(batch.token_ids[row, entry])
    assert seen == {(i, t): token for i, s in enumerate(samples) for t, token in enumerate(s.token_ids)}
    assert batch.num_tokens == len(seen)
    assert batch.num_samples == 50


def test_a_label_is_the_next_token_of_the_same_sample_and_carries_its_columns() -> None:
    samples = draw_samples(50, seed=1)
    batch = pack(samples, seq_len=64)
    trained = set()
    for row, entry in batch.loss_mask.nonzero().tolist():
        index = int(batch.sample_index[row, entry])
        sample, token = samples[index], int(batch.positions[row, entry]) + 1
        trained.add((index, token))
        assert int(batch.labels[row, entry]) == sample.token_ids[token]
        assert float(batch.sampler_logprobs[row, entry]) == pytest.approx(sample.logprobs[token])
        assert float(batch.advantages[row, entry]) == pytest.approx(sample.advantages[token])
        assert int(batch.versions[row, entry]) == sample.versions[token]
    assert trained == {(i, t) for i, s in enumerate(samples) for t, m in enumerate(s.loss_mask) if m}
    assert batch.num_trained_tokens == len(trained)


def test_padding_is_no_part_of_any_document() -> None:
    batch = pack(draw_samples(7, seed=2), seq_len=128)
    padding = batch.sample_index < 0
    assert padding.any()
    assert not batch.loss_mask[padding].any()
    assert (batch.positions[padding] == 0).all()


def test_rows_are_filled_first_fit_decreasing() -> None:
    starts, num_rows = first_fit([3, 6, 4, 7], row_length=10)
    assert num_rows == 2
    assert starts == [7, 10, 16, 0]  # 7 then 3 in the first row, 6 then 4 in the second


def test_packing_is_deterministic() -> None:
    first, second = (pack(draw_samples(30), seq_len=64) for _ in range(2))
    assert torch.equal(first.token_ids, second.token_ids)
    assert torch.equal(first.sample_index, second.sample_index)


def test_the_row_length_follows_the_cost_of_attention() -> None:
    lengths = [100] * 8
    assert cheapest_row_length(lengths, 512, attention_break_even=1e-3) == 128
    assert cheapest_row_length(lengths, 512, attention_break_even=1e6) == 448  # 4 and 4: least padding
    assert cheapest_row_length([100], 100, attention_break_even=800) == 100


def test_the_chosen_row_length_is_the_cheapest_by_trying_all() -> None:
    draw = random.Random(3)
    lengths = [draw.randint(20, 200) for _ in range(40)]
    chosen = cheapest_row_length(lengths, 512, attention_break_even=700.0)
    costs = {n: first_fit(lengths, n)[1] * n * (700.0 + n) for n in range(256, 513, 64)}
    costs[chosen] = first_fit(lengths, chosen)[1] * chosen * (700.0 + chosen)
    assert costs[chosen] == min(costs.values())


def test_ranks_get_equally_many_rows_and_all_of_them_together() -> None:
    batch = pack(draw_samples(20), seq_len=64, rows_divisible_by=3)
    assert batch.num_rows % 3 == 0
    rows = list(range(batch.num_rows))
    shares = [[r for part in row_slices(batch.num_rows, 2, rank, 3) for r in rows[part]] for rank in range(3)]
    assert sorted(row for share in shares for row in share) == rows
    assert len({len(share) for share in shares}) == 1
    assert all(len(rows[part]) <= 2 for part in row_slices(batch.num_rows, 2, 1, 3))


def test_ranks_get_equally_many_parts() -> None:
    """They reduce gradients together, with each part or with the last."""
    for each, size, ranks in product(range(1, 12), range(1, 6), range(1, 6)):
        counts = {len(list(row_slices(each * ranks, size, rank, ranks))) for rank in range(ranks)}
        assert counts == {-(-each // size)}


def test_values_come_back_to_their_samples() -> None:
    samples = draw_samples(20, seed=4)
    batch = pack(samples, seq_len=64)
    values = unpack(batch, batch.labels.float())
    assert [(0.0, *map(float, s.token_ids[1:])) for s in samples] == values


def test_a_sample_longer_than_a_row_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"sample sample-\d+ has \d+ tokens; a row holds 1 to 8"):
        pack(draw_samples(20), seq_len=8)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        pack([], seq_len=8)


def test_no_rank_has_a_part_of_a_single_row() -> None:
    samples = draw_samples(9)
    for ranks in (1, 2):
        for rows in (1, 2, 4):
            batch = pack(samples, seq_len=64, rows_divisible_by=ranks, part_rows=rows)
            parts = [[*range(batch.num_rows)[part]] for part in row_slices(batch.num_rows, rows, 0, ranks)]
            assert all(len(part) > 1 for part in parts) or rows == 1
            assert batch.num_rows - pack(samples, seq_len=64).num_rows <= 2 * ranks


def test_parts_are_as_few_as_possible_and_differ_by_a_row_at_most() -> None:
    for count in range(1, 40):
        for most in range(1, 8):
            sizes = [part.stop - part.start for part in even_slices(count, most)]
            assert len(sizes) == -(-count // most) and sum(sizes) == count
            assert max(sizes) <= most and max(sizes) - min(sizes) <= 1 and sizes[0] == max(sizes)
    rows = [[*range(58)[part]] for part in row_slices(58, 5, 1, 2)]
    assert [len(part) for part in rows] == [5, 5, 5, 5, 5, 4] and [*chain(*rows)] == [*range(1, 58, 2)]


@pytest.mark.parametrize("attention_break_even", [None, 100.0])
def test_a_rank_reads_the_samples_of_its_rows(attention_break_even: float | None) -> None:
    samples = draw_samples(40, seed=3)
    lengths = [len(sample.token_ids) for sample in samples]
    for ranks in (1, 3):
        batch = pack(samples, seq_len=64, rows_divisible_by=ranks, attention_break_even=attention_break_even)
        for rank in range(ranks):
            rows = [batch.sample_index[rows] for rows in row_slices(batch.num_rows, 2, rank, ranks)]
            found = sorted(set(torch.cat(rows).flatten().tolist()) - {-1})
            assert read_by(lengths, 64, attention_break_even, rank, ranks) == found
