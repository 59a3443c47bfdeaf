"""Times several kinds of calls fairly: in rounds, each kind in turn, with every answer checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agentgym_sandboxes.audit.machine import machine_cpu_s, own_cpu_s
from agentgym_sandboxes.host.meter import nearest_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One kind of call. call: raises when its answer is not the right one. effort: 1 is a quick call; one
    that takes k times as long is made k times less often."""

    name: str
    call: Callable[[], Awaitable[None]]
    effort: int = 1
    at_once: bool = True  # whether it is also measured with several at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often to measure. calls: of each kind, one at a time, over all rounds; warm_up: before all;
    pause_s: before each turn of a kind, to let work of the previous kind finish."""

    rounds: int = 5
    calls: int = 300
    calls_at_once: int = 800
    at_once: int = 8
    warm_up: int = 20
    pause_s: float = 0.3

    def share(self, count: int, way: Way) -> int:
        """How many calls of a way fall to each round."""
        return max(1, count // self.rounds // way.effort)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one kind of call took, in milliseconds.

    own_cpu_ms: of our process and its children, a call; machine_cpu_ms: of the whole machine, so also of the
    engine and the sandbox, which is theirs only when nothing else runs. per_s: with `at_once` at a time.
    """

    name: str
    calls: int
    p50_ms: float
    p95_ms: float
    max_ms: float
    own_cpu_ms: float
    machine_cpu_ms: float
    per_s: float | None = None
    per_s_rounds: tuple[float, ...] = ()
    calls_at_once: int = 0


@dataclass(slots=True)
class Samples:
    """times_s: of calls one at a time; the CPU times are of these together."""

    times_s: list[float] = field(default_factory=list)
    own_cpu_s: float = 0.0
    machine_cpu_s: float = 0.0
    num_at_once: int = 0
    at_once_s: float = 0.0
    per_s: list[float] = field(default_factory=list)


async def measure(ways: Sequence[Way], plan: Plan, say: Callable[[str], None]) -> list[Timing]:
    """One Timing a way, in their order. Each round begins with another way, so that none is always first."""
    samples = {way.name: Samples() for way in ways}
    for way in ways:
        for _ in range(max(1, plan.warm_up // way.effort)):
            await way.call()
    for number in range(plan.rounds):
        say(f"round {number + 1} of {plan.rounds}")
        start = number % len(ways)
        for way in [*ways[start:], *ways[:start]]:
            await asyncio.sleep(plan.pause_s)
            await _one_at_a_time(way, plan.share(plan.calls, way), samples[way.name])
            if way.at_once:
                await _at_once(way, plan.share(plan.calls_at_once, way), plan.at_once, samples[way.name])
    return [timing_of(way.name, samples[way.name]) for way in ways]


async def _one_at_a_time(way: Way, count: int, samples: Samples) -> None:
    own_s, machine_s = own_cpu_s(), machine_cpu_s()
    for _ in range(count):
        began_s = time.monotonic()
        await way.call()
        samples.times_s.append(time.monotonic() - began_s)
    samples.own_cpu_s += own_cpu_s() - own_s
    samples.machine_cpu_s += machine_cpu_s() - machine_s


async def _at_once(way: Way, count: int, width: int, samples: Samples) -> None:
    """A number of workers, each of which makes its next call when the last was answered."""
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await way.call()

    began_s = time.monotonic()
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(width, count)):
            workers.create_task(work())
    took_s = time.monotonic() - began_s
    samples.num_at_once += count
    samples.at_once_s += took_s
    samples.per_s.append(count / took_s)


def timing_of(name: str, samples: Samples) -> Timing:
    count = len(samples.times_s)
    return Timing(
        name=name,
        calls=count,
        p50_ms=1000 * nearest_rank(samples.times_s, 50),
        p95_ms=1000 * nearest_rank(samples.times_s, 95),
        max_ms=1000 * max(samples.times_s),
        own_cpu_ms=1000 * samples.own_cpu_s / count,
        machine_cpu_ms=1000 * samples.machine_cpu_s / count,
        per_s=samples.num_at_once / samples.at_once_s if samples.num_at_once else None,
        per_s_rounds=tuple(samples.per_s),
        calls_at_once=samples.num_at_once,
    )
