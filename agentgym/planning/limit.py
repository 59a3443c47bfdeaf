"""What limits a step: each part in turn is simulated twice as fast, and the one that saves most is the limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentgym.planning.rates import Rates
from agentgym.planning.simulation import Forecast, Layout, simulate
from agentgym.rl.config import LoopConfig

LEAST = 0.05  # of a step's time: a part that saves less does not limit it
MORE_STALE = (1, 3)  # versions more than the recipe allows, which are tried
GENERATORS, TRAINER, CONTROLLER = "the generators", "the trainer", "the controller"
SYNC, ENVIRONMENT = "weight updates", "the environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """part: empty where none alone is the limit. twice_as_fast_s: seconds of a step by the part that is so fast.

    twice_as_many_s: with twice as many replicas, each on GPUs of its own; None without GPUs, or where another part
    is the limit. staler_s: with more staleness, by loop.max_staleness; wider_s: with more places in a replica's batch,
    by generator.max_batch. What does not save LEAST of a step is left out of both.
    """

    part: str
    step_s: float
    twice_as_fast_s: dict[str, float]
    twice_as_many_s: float | None
    staler_s: dict[int, float]
    wider_s: dict[int, float]

    def __str__(self) -> str:
        """Sentences for a person."""
        said = self._limit() if self.part else self._none_found()
        if self.staler_s:
            bound, step_s = max(self.staler_s.items())
            said += f". With loop.max_staleness {bound} a step takes {step_s:.2f} s"
            said += f"; tokens are up to {bound} versions old"
        if self.wider_s:
            places, step_s = max(self.wider_s.items())
            said += f". With generator.max_batch {places} a step takes {step_s:.2f} s, if the cache holds so many"
        return said

    def _limit(self) -> str:
        least_s = self.twice_as_fast_s[self.part]
        saved = f"twice as fast, a step takes {least_s:.2f} s instead of {self.step_s:.2f}"
        return f"the limit: {self.part}; {saved}. {self._advice()}"

    def _none_found(self) -> str:
        looked_at = ", ".join(self.twice_as_fast_s)
        return f"the limit: no part alone; twice as fast, none of these saves {LEAST:.0%} of a step: {looked_at}"

    def _advice(self) -> str:
        if self.part == TRAINER:
            return "More trainer processes help, as long as each has rows to train"
        if self.part == CONTROLLER:
            return "It is one event loop on one core: more GPUs do not help, fewer and longer turns do"
        if self.part == SYNC:
            return "More GPUs do not help; a faster weight store, adapters alone, or more groups a step do"
        if self.part == ENVIRONMENT:
            return "More GPUs do not help; a faster environment or more groups at a time do"
        if self.twice_as_many_s is None:
            return "More cores for them help"
        if self.twice_as_many_s < self.step_s * (1 - LEAST):
            return "More replicas help"
        return (
            f"Twice as many replicas do not help ({self.twice_as_many_s:.2f} s): a step waits for its longest "
            "episodes, whose tokens come one after another. More GPUs do not help; more groups a step would use them"
        )


def limit_of(
    rates: Rates, loop: LoopConfig, layout: Layout, forecast: Forecast, *, steps: int, may_be_staler: bool = True
) -> Limit:
    """Finds the limit of a layout whose steps were simulated. Parts that can't save LEAST of a step are not simulated.

    may_be_staler: False where generators and trainer take turns, which allows no staleness.
    """

    def step_s(rates: Rates, layout: Layout = layout, loop: LoopConfig = loop) -> float:
        return simulate(rates, loop, layout, steps=steps).step_s

    found = {
        part: step_s(faster) for part, (share, faster) in _twice_as_fast(rates, forecast).items() if share / 2 >= LEAST
    }
    part = min(found, key=lambda part: found[part], default="")
    if part and found[part] > forecast.step_s * (1 - LEAST):
        part = ""
    more = step_s(rates, _doubled(layout)) if part == GENERATORS and layout.replicas[0] else None
    staler, least_s = dict[int, float](), forecast.step_s
    for more_stale in MORE_STALE if may_be_staler and part != CONTROLLER else ():
        bound = loop.max_staleness + more_stale
        staler_s = step_s(rates, loop=replace(loop, max_staleness=bound))
        if staler_s > least_s * (1 - LEAST):
            break
        staler[bound] = least_s = staler_s
    wider = _wider(loop, layout, forecast.step_s, lambda layout: step_s(rates, layout))
    return Limit(
        part=part, step_s=forecast.step_s, twice_as_fast_s=found, twice_as_many_s=more, staler_s=staler, wider_s=wider
    )


def _wider(loop: LoopConfig, layout: Layout, least_s: float, step_s: Callable[[Layout], float]) -> dict[int, float]:
    """Places are doubled until every episode in flight has one, or that saves nothing more."""
    found = dict[int, float]()
    places, in_flight = layout.max_batch, loop.groups_per_step * loop.group_size * (loop.max_staleness + 1)
    while places * len(layout.replicas) < in_flight:
        places *= 2
        wider_s = step_s(replace(layout, max_batch=places))
        if wider_s > least_s * (1 - LEAST):
            break
        found[places] = least_s = wider_s
    return found


def _twice_as_fast(rates: Rates, forecast: Forecast) -> dict[str, tuple[float, Rates]]:
    """For each part, the most of a step that it can take, and the rates with that part twice as fast."""
    updates_s = rates.publish_s + rates.update_s
    waits_s = rates.env_s * max(len(turns) for turns in rates.turns)
    return {
        GENERATORS: (
            forecast.generate_busy,
            replace(
                rates,
                decode=tuple((sequences, 2 * rate) for sequences, rate in rates.decode),
                prefill=2 * rates.prefill,
                join_s=rates.join_s / 2,
            ),
        ),
        TRAINER: (forecast.train_busy, replace(rates, train=2 * rates.train, train_fixed_s=rates.train_fixed_s / 2)),
        CONTROLLER: (forecast.controller_busy, replace(rates, host_s=rates.host_s / 2)),
        SYNC: (updates_s / forecast.step_s, replace(rates, publish_s=rates.publish_s / 2, update_s=rates.update_s / 2)),
        ENVIRONMENT: (waits_s / forecast.step_s, replace(rates, env_s=rates.env_s / 2)),
    }


def _doubled(layout: Layout) -> Layout:
    """The layout with twice the replicas, the new ones on added GPUs."""
    each = len(layout.replicas[0])
    added = tuple(
        tuple(range(layout.gpus + number * each, layout.gpus + (number + 1) * each))
        for number in range(len(layout.replicas))
    )
    return replace(layout, replicas=layout.replicas + added, gpus=layout.gpus + each * len(added))
