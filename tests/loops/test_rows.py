"""Streams of rows: what they draw, in which order, how they go on, and what they refuse."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.loops.rows import RowSource, RowStream

pytest.importorskip("datasets")


def source(folder: Path, name: str, count: int, **settings: object) -> RowSource:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"name": name, "number": n}) + "\n" for n in range(count)))
    return RowSource(path="json", data_files=str(file), **settings)


def numbers(stream: RowStream, count: int) -> list[int]:
    return [row["number"] for row, _ in zip(stream, range(count), strict=False)]


@pytest.mark.parametrize("streaming", [True, False])
def test_every_row_comes_once_an_epoch_shuffled_by_the_seed(
    tmp_path: Path, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    one = source(tmp_path, "a", 40, streaming=streaming)
    stream = RowStream(sources=[one], shuffle_buffer=50, seed=1, repeat=False)
    drawn = numbers(stream, 99)
    assert sorted(drawn) == [*range(40)] != drawn
    assert stream.draw() is None and stream.num_drawn == 40
    assert numbers(RowStream(sources=[one], shuffle_buffer=50, seed=1), 40) != numbers(
        RowStream(sources=[one], shuffle_buffer=50, seed=2), 40
    )
    assert numbers(RowStream(sources=[one], shuffle_buffer=0), 50) == [*range(40), *range(10)]


def test_a_mixture_draws_by_weight_and_its_small_source_begins_again(tmp_path: Path) -> None:
    sources = [source(tmp_path, "big", 500, weight=3), source(tmp_path, "small", 10)]
    stream = RowStream(sources=sources, shuffle_buffer=5)
    counts = Counter(row["name"] for row, _ in zip(stream, range(400), strict=False))
    assert abs(counts["small"] - 100) < 45  # 5 standard deviations
    assert [*stream.epochs().values()][1] >= 4
    ended = RowStream(sources=sources, shuffle_buffer=5, repeat=False)
    assert Counter(row["name"] for row in ended) == {"big": 500, "small": 10}


def test_shards_share_the_rows_out(tmp_path: Path) -> None:
    one = source(tmp_path, "a", 31)
    shards = [RowStream(sources=[one], repeat=False, num_shards=3, shard=shard) for shard in range(3)]
    assert sorted(number for shard in shards for number in numbers(shard, 99)) == [*range(31)]


@pytest.mark.parametrize("drawn", [0, 7, 30, 65])
def test_a_stream_goes_on_where_it_was(tmp_path: Path, drawn: int) -> None:
    """Rows that waited in the shuffle buffers included, over the end of an epoch."""
    sources = [source(tmp_path, "a", 23), source(tmp_path, "b", 50, weight=2)]
    stream = RowStream(sources=sources, shuffle_buffer=8, seed=5)
    for _ in range(drawn):
        stream.draw()
    state = pickle.loads(pickle.dumps(stream.state_dict()))
    again = RowStream(sources=sources, shuffle_buffer=8, seed=6)
    again.load_state_dict(state)
    assert [again.draw() for _ in range(60)] == [stream.draw() for _ in range(60)]


def test_a_transform_makes_rows_and_leaves_some_out(tmp_path: Path) -> None:
    def odd(row: dict[str, object]) -> dict[str, object] | None:
        return {"text": f"row {row['number']}"} if row["number"] % 2 else None  # type: ignore[operator]

    one = source(tmp_path, "a", 6, transform=odd)
    assert [row["text"] for row in RowStream(sources=[one], shuffle_buffer=0, repeat=False)] == [
        "row 1",
        "row 3",
        "row 5",
    ]


def test_a_mixture_without_data_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a mixture without data sets"):
        RowStream(sources=[])
    good, none = source(tmp_path, "good", 5), source(tmp_path, "none", 5, transform=lambda row: None)
    with pytest.raises(UserError, match=r"none\.jsonl: its split 'train' has no row that its transform keeps"):
        RowStream(sources=[good, none]).open()
    with pytest.raises(UserError, match="has no row for shard 6 of 7"):
        RowStream(sources=[good], num_shards=7, shard=6).open()
    with pytest.raises(UserError, match=r"there is no file .*gone\.jsonl"):
        RowStream(sources=[RowSource(path="json", data_files=str(tmp_path / "gone.jsonl"))]).open()
    with pytest.raises(UserError, match="its weight is 0"):
        RowSource(path="json", weight=0)
    with pytest.raises(UserError, match="shard 2 must be from 0 to below num_shards 2"):
        RowStream(sources=[good], num_shards=2, shard=2)


def test_the_position_of_another_mixture_is_refused(tmp_path: Path) -> None:
    a, b = source(tmp_path, "a", 5), source(tmp_path, "b", 5)
    state = RowStream(sources=[a]).state_dict()
    with pytest.raises(UserError, match=r"is of the data sets \['json .*a\.jsonl'\], not of"):
        RowStream(sources=[b]).load_state_dict(state)
