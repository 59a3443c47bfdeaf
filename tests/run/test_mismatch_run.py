"""A whole run whose generators report log-probabilities that are off: it warns, corrects, stops, and is resumed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agentgym.errors import InfraError
from agentgym.loops.async_rl import TrainingLoop
from agentgym.run.train import train
from agentgym.types import Group, Turn

pytestmark = pytest.mark.slow
OFFSETS = (0.0, 0.5, 0.5, 1.5)
"""By the version of the weights, in nats."""


def off_by(turn: Turn, offset: float) -> Turn:
    return replace(turn, logprobs=tuple(one - offset for one in turn.logprobs))


def broken_generators(loop: TrainingLoop) -> None:
    async def play(task: Any, group_id: int, rollout: Callable[..., Any] = loop.rollout) -> Group:
        group: Group = await rollout(task, group_id)
        for episode in group.episodes:
            episode.turns = [off_by(turn, OFFSETS[turn.versions[0].version]) for turn in episode.turns]
        return group

    loop.rollout = play


def test_each_limit_acts_when_it_is_crossed_and_the_run_goes_on_once_the_cause_is_gone(lab, caplog):
    limits = ("trainer.mismatch.engine.correct=0.1", "trainer.mismatch.engine.stop=1.0")
    recipe = lab.recipe("loop.steps=5", "loop.max_staleness=0", "eval.at_end=false", "loop.checkpoint_every=0", *limits)
    folder, reporter = lab.new_run(recipe), lab.reporter()
    with caplog.at_level(logging.WARNING), pytest.raises(ExceptionGroup) as caught:
        asyncio.run(train(recipe, folder, reporter, change_loop=broken_generators))
    found = [row["mismatch/engine_kl"] for row in reporter.metrics]
    assert found == pytest.approx([0.0, *[math.exp(0.5) - 1.5] * 2], abs=1e-4)
    assert [row.get("mismatch/weight_mean") for row in reporter.metrics] == [
        None,
        None,
        pytest.approx(math.exp(0.5), abs=1e-3),
    ]
    assert all(row["mismatch/fresh_share"] == 1.0 and "mismatch/stale_kl" not in row for row in reporter.metrics)
    said = [record.getMessage() for record in caplog.records if "mismatch/" in record.getMessage()]
    assert [line.partition(": ")[0] for line in said] == ["step 2"] * 2
    assert "engine.warn 0.01: the same weights give another distribution" in said[0]
    assert "engine.correct 0.1: while it is, all tokens have truncated importance weights" in said[1]
    [stopped] = [one for one in caught.value.exceptions if isinstance(one, InfraError)]
    assert "step 4 ends the run: " in str(stopped) and "by 1.98 nats a token" in str(stopped)
    assert folder.checkpoint_steps() == [0]

    higher = lab.recipe("loop.steps=5", "loop.max_staleness=0", "eval.at_end=false", *limits[:1])
    resumed = lab.reporter()
    asyncio.run(train(higher, folder, resumed, resume=True))
    folder.close()
    assert "steps 1 to 3 are trained again from the journal; none is sampled again" in resumed.notes
    first, second = resumed.metrics
    assert first["mismatch/weight_mean"] == pytest.approx(1.0, abs=1e-3), "what step 3 had shown is still known"
    assert "mismatch/weight_mean" not in second and first["mismatch/engine_kl"] < 1e-6
