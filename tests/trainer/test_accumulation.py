"""Gradients reduced once, and of weights gathered once, are those of trainers that do so with each microbatch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import write_model

from agentgym.trainer.accumulation import Accumulation
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.parallel import Ranks, lost_in
from agentgym.types import Sample
from tests.trainer.accumulation_worker import broken_backward, gradients, numbers

WORKER = Path(__file__).with_name("accumulation_worker.py")
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
        each, last, once = of_kind["each"], of_kind["last"], of_kind["once"]
        assert each["microbatches"] == last["microbatches"] == once["microbatches"] == 3
        assert each["reduced"] == once["reduced"] == 3 * last["reduced"] > 0
        assert each["gathered"] == last["gathered"] > 3 * once["gathered"] > 0
        assert each["scoring"] == last["scoring"] == once["scoring"] >= once["gathered"]
        assert once["gradients"] == each["gradients"] and once["weights"] == each["weights"]
        assert last["gradients"] and farthest(each["gradients"], last["gradients"]) < NEAR
        for way in (each, last, once):
            assert len(way["errors"]) == 4 and way["errors"][:3] == ["broken on purpose"] * 3
            assert farthest(way["weights"], of_kind["unbroken"]) < NEAR
        assert last["norms"] == pytest.approx(each["norms"], rel=1e-5)
        assert last["critic"] == pytest.approx(each["critic"], rel=1e-5)


SETTINGS: dict[str, Any] = {"dtype": "bfloat16", "rows_per_microbatch": 1, "seq_len": 64}
WAYS = [{"reduce_gradients": "each"}, {"reduce_gradients": "last"}, {"gather_weights": "once"}]


def as_of_two(engine: TrainingEngine, **settings: Any) -> Accumulation:
    """One rank shards with itself, and keeps whole gradients as each of several does."""

    class OfTwo(Ranks):
        data_size = 2

    ranks = OfTwo(**{field.name: getattr(engine._ranks, field.name) for field in fields(Ranks)})
    return Accumulation(engine._model, ranks, TrainerConfig(**settings))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_nothing_of_an_update_that_broke_is_in_the_next(
    make_engine: Callable[..., TrainingEngine], samples: list[Sample], way: dict[str, Any]
) -> None:
    whole, broken = make_engine(**SETTINGS), make_engine(**SETTINGS)
    broken._accumulation = as_of_two(broken, **way)
    with broken_backward(broken, 3), pytest.raises(RuntimeError, match="on purpose"):
        broken.forward_backward(samples)
    assert not gradients(broken)
    assert broken.logprobs(samples) == whole.logprobs(samples)
    for engine in (whole, broken):
        engine.forward_backward(samples)
    assert farthest(gradients(whole), gradients(broken)) < NEAR
    for engine in (whole, broken):
        engine.optimizer_step()
    assert farthest(*(numbers(dict(engine.hf_weights())) for engine in (whole, broken))) < NEAR


def test_one_rank_trains_bit_for_bit_the_same_whatever_it_does_once(
    make_engine: Callable[..., TrainingEngine], samples: list[Sample]
) -> None:
    found = []
    for reduce_gradients, gather_weights in (("each", "each"), ("last", "once"), ("auto", "auto")):
        engine = make_engine(**SETTINGS, reduce_gradients=reduce_gradients, gather_weights=gather_weights)
        for _ in range(3):
            engine.train_step(samples)
        found.append((numbers(dict(engine.hf_weights())), engine.logprobs(samples)))
    assert found[0] == found[1] == found[2]


def between_microbatches(engine: TrainingEngine, samples: list[Sample], look: Callable[[], bool]) -> list[bool]:
    """What `look` gives after the backward pass of each."""
    over, found = engine._accumulation.over, []

    def microbatches(parts: Any) -> Any:
        for part in over(parts):
            yield part
            found.append(look())

    engine._accumulation.over = microbatches  # type: ignore[method-assign]
    engine.forward_backward(samples)
    assert len(found) > 2
    return found


def test_whole_gradients_are_kept_until_the_last_microbatch(
    make_engine: Callable[..., TrainingEngine], samples: list[Sample]
) -> None:
    for reduce_gradients, kept in (("auto", True), ("each", False)):
        engine = make_engine(**SETTINGS)
        engine._accumulation = as_of_two(engine, reduce_gradients=reduce_gradients, gather_weights="each")
        there = between_microbatches(engine, samples, lambda of=engine: bool(gradients(of)))  # type: ignore[misc]
        assert there == [not kept] * (len(there) - 1) + [True]


def test_gathered_weights_are_kept_until_the_last_backward_pass_and_no_longer(
    make_engine: Callable[..., TrainingEngine], samples: list[Sample]
) -> None:
    for gather_weights in ("auto", "once", "each"):
        engine = make_engine(**SETTINGS, gather_weights=gather_weights)
        (group,) = engine._model.layers["0"]._get_fsdp_state()._fsdp_param_groups  # type: ignore[union-attr,index]
        there = between_microbatches(engine, samples, lambda of=group: of.is_unsharded)  # type: ignore[misc]
        assert there == [gather_weights != "each"] * (len(there) - 1) + [False]
        engine.logprobs(samples)
        assert not group.is_unsharded  # scoring gives them up after each layer


def test_scoring_between_gradients_and_their_step_changes_neither(
    make_engine: Callable[..., TrainingEngine], samples: list[Sample]
) -> None:
    """The norm is of the gradients of all weights, those of the head and the embeddings too."""
    found = []
    for scores in (False, True):
        engine = make_engine(**SETTINGS)
        engine.forward_backward(samples)
        if scores:
            engine.logprobs(samples)
        metrics = engine.optimizer_step()
        found.append((metrics["train/grad_norm"], numbers(dict(engine.hf_weights()))))
    assert found[0] == found[1]


def test_out_of_memory_says_that_gradients_could_be_reduced_with_each_microbatch() -> None:
    words = "set trainer.reduce_gradients (last) to each"
    assert words in TrainerConfig(procs=2, reduce_gradients="last").fields_to_lower()
    assert words not in TrainerConfig(procs=2, reduce_gradients="each").fields_to_lower()
    assert words not in TrainerConfig(reduce_gradients="last").fields_to_lower()
    words = "set trainer.gather_weights (once) to each"
    assert words in TrainerConfig(gather_weights="once").fields_to_lower()
    assert words not in TrainerConfig().fields_to_lower()


def test_a_lost_peer_is_found_behind_the_error_of_clearing_up(
    make_engine: Callable[..., TrainingEngine], samples: list[Sample]
) -> None:
    engine = make_engine()

    class Broken(Accumulation):
        def over(self, _: object) -> Any:
            raise torch.distributed.DistBackendError("a peer is gone")

        def drop(self) -> None:
            raise RuntimeError("an event can't be waited for")

    engine._accumulation = Broken(engine._model, engine._ranks, TrainerConfig())
    with pytest.raises(RuntimeError, match="an event") as raised:
        engine.train_step(samples)
    assert lost_in(raised.value) == "a peer is gone"
    assert lost_in(RuntimeError("something else")) == ""
