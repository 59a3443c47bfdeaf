"""Warnings of a run about its mismatch: once for each crossing, with the cause and what to set."""

from __future__ import annotations

import pytest

from agentgym.trainer.mismatch_config import EngineLimits, MismatchConfig, StalenessLimits
from agentgym.trainer.mismatch_watch import MismatchWatch


def engine(kl: float, mean: float = 0.01) -> dict[str, float]:
    return {"mismatch/engine_kl": kl, "mismatch/engine_abs_mean": mean, "mismatch/engine_age_steps": 0.0}


def test_a_crossing_is_said_once_until_the_figure_has_been_below_again() -> None:
    watch = MismatchWatch(MismatchConfig())
    values = [0.001, 0.02, 0.03, None, 0.02, 0.01, 0.02]
    said = [len(watch.look({} if value is None else engine(value))) for value in values]
    assert said == [0, 1, 0, 0, 0, 0, 1], "a step without a figure is no crossing, and the limit itself is allowed"


def test_a_line_names_the_part_its_likely_cause_and_what_to_set() -> None:
    watch = MismatchWatch(MismatchConfig())
    [rounding] = watch.look(engine(0.02))
    assert rounding.startswith("mismatch/engine_kl is 0.02 nats a token, above trainer.mismatch.engine.warn 0.01: ")
    assert "round the same weights differently" in rounding and "generator.dtype and trainer.dtype" in rounding
    assert rounding.endswith("or set trainer.mismatch.engine.correct")
    [broken] = MismatchWatch(MismatchConfig()).look(engine(0.9, mean=0.7))
    assert "hold other weights than they report" in broken
    [stale] = watch.look({"mismatch/staleness_kl": 0.2, "mismatch/engine_age_steps": 12.0})
    assert "moved on" in stale and "loop.max_staleness" in stale and "12 steps old; sync/mismatch_max" in stale
    assert not watch.look({"mismatch/stale_kl": 9.0}), "what can't be split has no part to blame"


@pytest.mark.parametrize(
    ("drop", "what"), [("token", "tokens more than 3 nats off"), ("sequence", "the sequences of tokens more than")]
)
def test_actions_say_what_they_do_and_to_which_tokens(drop: str, what: str) -> None:
    limits = MismatchConfig(
        engine=EngineLimits(warn=None, correct=0.1),
        staleness=StalenessLimits(warn=None, mask=0.2),
        bound=3.0,
        drop=drop,
    )
    watch = MismatchWatch(limits)
    assert not watch.look(engine(0.05))
    corrects, masks = watch.look(engine(0.15) | {"mismatch/staleness_kl": 0.3})
    assert "trainer.mismatch.engine.correct 0.1: " in corrects and "all tokens have truncated" in corrects
    assert "trainer.mismatch.staleness.mask 0.2: " in masks and what in masks and "among stale tokens" in masks
