"""What limits a step, in cases that are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgym.planning.limit import CONTROLLER, ENVIRONMENT, GENERATORS, SYNC, TRAINER, Limit, limit_of
from agentgym.planning.rates import Rates, constant_lengths
from agentgym.planning.simulation import Layout, simulate
from agentgym.rl.config import LoopConfig

# 8 episodes of 100 tokens a step: 1 s of sampling, however many at a time, and 2 s of training
RATES = Rates(decode=((1, 100.0), (8, 800.0)), prefill=1e12, train=400.0, turns=constant_lengths(0, 100))
QUICK = replace(RATES, train=1e12)
TWO = Layout(trainer=(0,), trainer_procs=1, replicas=((1,),), gpus=2, cores=8, max_batch=8)


def limit(
    rates: Rates, *, staleness: int = 0, layout: Layout = TWO, steps: int = 10, may_be_staler: bool = True
) -> Limit:
    loop = LoopConfig(groups_per_step=2, group_size=4, max_staleness=staleness)
    forecast = simulate(rates, loop, layout, steps=steps)
    return limit_of(rates, loop, layout, forecast, steps=steps, may_be_staler=may_be_staler)


@pytest.mark.parametrize(
    ("rates", "staleness", "part", "step_s", "twice_as_fast_s"),
    [
        (RATES, 0, TRAINER, 3.0, 2.0),
        (RATES, 1, TRAINER, 2.0, 1.0),
        (replace(RATES, publish_s=1.0, update_s=2.0), 0, SYNC, 6.0, 4.5),
        (replace(RATES, env_s=6.0), 0, ENVIRONMENT, 9.0, 6.0),
        (replace(QUICK, host_s=0.5), 0, CONTROLLER, 5.0, 3.0),
        (replace(RATES, train=800.0), 0, GENERATORS, 2.0, 1.5),
    ],
)
def test_the_limit_is_the_part_that_saves_most_when_it_is_twice_as_fast(
    rates, staleness, part, step_s, twice_as_fast_s
) -> None:
    found = limit(rates, staleness=staleness)
    assert (found.part, found.step_s) == (part, pytest.approx(step_s))
    assert found.twice_as_fast_s[part] == pytest.approx(twice_as_fast_s)
    assert f"the limit: {part}; twice as fast, a step takes {twice_as_fast_s:.2f} s instead of {step_s:.2f}" in str(
        found
    )


def test_a_controller_whose_core_is_full_is_named_and_more_gpus_do_not_help() -> None:
    found = limit(replace(RATES, host_s=0.5), staleness=3, steps=40)
    assert found.part == CONTROLLER and "more GPUs do not help" in str(found)


def test_more_replicas_help_where_they_are_full_and_not_where_the_longest_episode_is_waited_for() -> None:
    full = limit(replace(QUICK, decode=((1, 100.0), (4, 400.0), (8, 400.0))))
    assert (full.part, full.twice_as_many_s) == (GENERATORS, pytest.approx(1.0)) and "More replicas help" in str(full)
    long = limit(QUICK)
    assert (long.part, long.twice_as_many_s) == (GENERATORS, pytest.approx(1.0))
    assert "waits for its longest episodes" in str(long) and "More replicas help" not in str(long)
    on_cpu = limit(QUICK, layout=replace(TWO, trainer=(), replicas=((),), gpus=0, cores=2))
    assert on_cpu.part == GENERATORS and on_cpu.twice_as_many_s is None and "More cores" in str(on_cpu)


def test_where_two_are_in_balance_no_part_alone_is_the_limit() -> None:
    found = limit(replace(RATES, train=800.0), staleness=1)
    assert found.part == "" and set(found.twice_as_fast_s) == {GENERATORS, TRAINER}
    assert str(found).startswith("the limit: no part alone")


def test_more_staleness_is_advised_where_it_hides_the_wait_for_the_longest_episodes() -> None:
    tailed = replace(QUICK, turns=(*[((10, 10),)] * 15, ((10, 400),)))
    stale = limit(tailed, staleness=1)
    assert stale.staler_s and min(stale.staler_s) == 2
    best = max(stale.staler_s)
    assert stale.staler_s[best] < 0.95 * stale.step_s
    assert f"With loop.max_staleness {best} a step takes {stale.staler_s[best]:.2f} s" in str(stale)
    assert str(stale).count("loop.max_staleness") == 1
    even = limit(replace(RATES, train=400.0), staleness=1)  # the trainer is always busy
    assert even.staler_s == {} and "loop.max_staleness" not in str(even)
    assert limit(tailed, staleness=0, may_be_staler=False).staler_s == {}


def test_more_places_are_advised_where_episodes_wait_for_one() -> None:
    """Eight episodes of 1 s, two at a time: four waves of sampling, then 2 s of training."""
    few = limit(RATES, layout=replace(TWO, max_batch=2))
    assert (few.step_s, few.wider_s) == (pytest.approx(6.0), {4: pytest.approx(4.0), 8: pytest.approx(3.0)})
    assert "With generator.max_batch 8 a step takes 3.00 s, if the cache holds so many" in str(few)
    assert str(few).count("generator.max_batch") == 1
    for enough in (limit(RATES), limit(replace(RATES, train=10.0), layout=replace(TWO, max_batch=4))):
        assert enough.wider_s == {} and "generator.max_batch" not in str(enough)
