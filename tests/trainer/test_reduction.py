"""Gradients that are reduced once, with the last microbatch, are those that are reduced with each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_model import write_model

from agentgym.trainer.config import ReduceGradients, TrainerConfig
from agentgym.trainer.engine import TitanEngine
from agentgym.trainer.memory_advice import fields_to_lower
from agentgym.trainer.parallel import lost_in
from agentgym.trainer.reduction import GradientReduction
from agentgym.types import Sample
from tests.trainer.reduction_worker import broken_backward, gradients, numbers

WORKER = Path(__file__).with_name("reduction_worker.py")
NEAR = 1e-6
"""Sums in another order, after five steps."""


def farthest(first: dict[str, list[float]], second: dict[str, list[float]]) -> float:
    assert first.keys() == second.keys()
    return max((torch.tensor(first[name]) - torch.tensor(second[name])).abs().max().item() for name in first)


@pytest.mark.hostile
def test_two_ranks_reduce_once_and_nothing_of_a_broken_update_is_left(tmp_path: Path) -> None:
    model_path = write_model(tmp_path / "model")
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(WORKER), model_path, str(tmp_path), str(rank), "2", "1"],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        for process in ranks:
            stack.callback(process.kill)
        ended = [process.communicate(timeout=240)[1] for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0], ended[0][-4000:]
    found: list[dict[str, Any]] = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert found[0] == found[1] and {*found[0]} == {"float32", "bfloat16", "lora"}
    for of_kind in found[0].values():
        each, last = of_kind["each"], of_kind["last"]
        assert each["microbatches"] == last["microbatches"] == 3
        assert each["reduced"] == 3 * last["reduced"] > 0
        assert last["gradients"] and farthest(each["gradients"], last["gradients"]) < NEAR
        for way in (each, last):
            assert len(way["errors"]) == 4 and way["errors"][:3] == ["broken on purpose"] * 3
            assert farthest(way["weights"], of_kind["unbroken"]) < NEAR
        assert last["norms"] == pytest.approx(each["norms"], rel=1e-5)
        assert last["critic"] == pytest.approx(each["critic"], rel=1e-5)


@pytest.mark.parametrize("when", ["each", "last"])
def test_nothing_of_an_update_that_broke_is_in_the_next(
    make_engine: Callable[..., TitanEngine], samples: list[Sample], when: ReduceGradients
) -> None:
    """One rank shards with itself, and keeps whole gradients as each of several does."""
    settings = {"dtype": "bfloat16", "rows_per_microbatch": 1, "seq_len": 64}
    whole, broken = make_engine(**settings), make_engine(**settings)
    ranks: Any = SimpleNamespace(device=torch.device("cpu"), data_size=2, context=SimpleNamespace(size=1))
    broken._reduction = GradientReduction(broken._model, ranks, when)
    with broken_backward(broken, 3), pytest.raises(RuntimeError, match="on purpose"):
        broken.forward_backward(samples)
    assert not gradients(broken)
    for engine in (whole, broken):
        engine.forward_backward(samples)
    assert farthest(gradients(whole), gradients(broken)) < NEAR
    for engine in (whole, broken):
        engine.optimizer_step()
    assert farthest(*(numbers(dict(engine.hf_weights())) for engine in (whole, broken))) < NEAR


def test_whole_gradients_are_kept_until_the_last_microbatch(
    make_engine: Callable[..., TitanEngine], samples: list[Sample]
) -> None:
    engine = make_engine(dtype="bfloat16", rows_per_microbatch=1, seq_len=64)
    ranks: Any = SimpleNamespace(device=torch.device("cpu"), data_size=2, context=SimpleNamespace(size=1))
    reduction = engine._reduction = GradientReduction(engine._model, ranks, "auto")
    there: list[bool] = []

    def microbatches() -> Any:
        for part in reduction.over(engine._parts(engine._pack(samples))):
            yield part
            there.append(bool(gradients(engine)))

    engine._reduction = SimpleNamespace(over=lambda parts: microbatches())  # type: ignore[assignment]
    engine.forward_backward(samples)
    assert there == [False] * (len(there) - 1) + [True] and len(there) > 2


def test_out_of_memory_says_that_gradients_could_be_reduced_with_each_microbatch() -> None:
    words = "set trainer.reduce_gradients (last) to each"
    assert words in fields_to_lower(TrainerConfig(procs=2, reduce_gradients="last"))
    assert words not in fields_to_lower(TrainerConfig(procs=2, reduce_gradients="each"))
    assert words not in fields_to_lower(TrainerConfig(reduce_gradients="last"))


def test_a_lost_peer_is_found_behind_the_error_of_clearing_up(
    make_engine: Callable[..., TitanEngine], samples: list[Sample]
) -> None:
    engine = make_engine()

    def over(_: object) -> Any:
        raise torch.distributed.DistBackendError("a peer is gone")

    def drop() -> None:
        raise RuntimeError("an event can't be waited for")

    engine._reduction = SimpleNamespace(over=over, drop=drop)  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="an event") as raised:
        engine.train_step(samples)
    assert lost_in(raised.value) == "a peer is gone"
    assert lost_in(RuntimeError("something else")) == ""
