"""Measures how fast a sandbox is and whether its footprint grows, for any backend, through its protocol alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from agentgym.errors import InfraError
from agentgym.sandbox import (
    AssertCase,
    CallCase,
    Capabilities,
    GradeRequest,
    RunResult,
    RunStatus,
    SandboxBackend,
    Session,
    Verdict,
)
from agentgym_sandboxes.audit.machine import Footprint, Load, Machine, describe_machine, footprint, measure_load
from agentgym_sandboxes.audit.timing import Plan, Samples, Timing, Way, measure, timing_of

PROGRAM, PRINTED = "print(6 * 7)", "42\n"
SOLUTION = "def double(x):\n    return 2 * x\n"
CALL, GRADE_CALLS, GRADE_ASSERTS = "call", "grade of 10 calls", "grade of 10 asserts"
SESSION_RUN, SESSION_EXEC, SESSION_FILE = "session run", "session exec", "session write + read"
START, CONTAINER_START, SESSION_OPEN = "start", "container start", "session open"
SETTLE_S = 5.0
CONTAINERS = ("containers_live", "containers_spare", "sessions_open")
SESSION_EVERY = 20  # one episode in so many has a session, which takes longer than all the rest
BYTES = bytes(range(256)) * 4

GRADE_OF_CALLS = GradeRequest(
    code=SOLUTION, entry="double", cases=tuple(CallCase(args=(n,), expected=2 * n) for n in range(10))
)
GRADE_OF_ASSERTS = GradeRequest(
    code=SOLUTION, entry="double", cases=tuple(AssertCase(source=f"assert double({n}) == {2 * n}") for n in range(10))
)  # fmt: skip
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """How much to measure. starts: how often a sandbox is started; episodes: in a row, watched for growth;
    load_s: how long we look at what else runs, before and after."""

    timing: Plan = Plan()
    starts: int = 5
    sessions: int = 5
    episodes: int = 200
    load_s: float = 2.0


QUICK = BenchPlan(
    timing=Plan(rounds=3, calls=90, calls_at_once=240, warm_up=10, pause_s=0.1),
    starts=2,
    sessions=2,
    episodes=60,
    load_s=0.5,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Our footprint before and after some episodes in a row; `before` is taken after a warm-up of a tenth."""

    episodes: int
    before: Footprint
    after: Footprint
    episodes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxBench:
    """What was measured. load: of the machine, before and after; metrics: the backend's own, at the end."""

    capabilities: Capabilities
    machine: Machine
    load: tuple[Load, Load]
    plan: BenchPlan
    timings: tuple[Timing, ...]
    growth: Growth | None
    metrics: dict[str, float]

    def timing(self, name: str) -> Timing | None:
        return next((timing for timing in self.timings if timing.name == name), None)


async def bench(make: Callable[[], SandboxBackend], plan: BenchPlan, say: Say) -> SandboxBench:
    """Measure what `make` makes. Raises InfraError when a call is answered wrongly.

    Raises SandboxUnavailable.
    """
    probed = make()
    try:
        able = await probed.probe()
    finally:
        await probed.close()
    before = await measure_load(plan.load_s)
    starts = await measure_starts(make, plan.starts, say)
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(make())
        say("calls and grades")
        timings = await measure(backend_ways(backend), plan.timing, say)
        if able.sessions:
            say("sessions")
            timings += await measure_sessions(backend, plan, say)
        growth = await measure_growth(backend, able, plan.episodes, say) if plan.episodes else None
        metrics = backend.metrics()
    return SandboxBench(
        capabilities=able,
        machine=describe_machine(),
        load=(before, await measure_load(plan.load_s)),
        plan=plan,
        timings=(*starts, *timings),
        growth=growth,
        metrics=metrics,
    )


async def measure_starts(make: Callable[[], SandboxBackend], count: int, say: Say) -> list[Timing]:
    """Measures the time from `start` to the first answered program, and that of one container where the backend reports
    it.
    """
    times_s: list[float] = []
    containers_s: list[float] = []
    for number in range(count):
        say(f"start {number + 1} of {count}")
        backend = make()
        began_s = time.monotonic()
        try:
            await backend.start()
            check_run(await backend.run(PROGRAM))
            times_s.append(time.monotonic() - began_s)
            containers_s += [v for k, v in backend.metrics().items() if k == "sandbox/start_p50_s"]
        finally:
            await backend.close()
    found = [timing_of(START, Samples(times_s=times_s))] if times_s else []
    return [*found, timing_of(CONTAINER_START, Samples(times_s=containers_s))] if containers_s else found


def backend_ways(backend: SandboxBackend) -> list[Way]:
    """The calls that every backend has."""

    async def call() -> None:
        check_run(await backend.run(PROGRAM))

    async def grade_calls() -> None:
        check_verdict(await backend.grade(GRADE_OF_CALLS))

    async def grade_asserts() -> None:
        check_verdict(await backend.grade(GRADE_OF_ASSERTS))

    return [
        Way(name=CALL, call=call),
        Way(name=GRADE_CALLS, call=grade_calls),
        Way(name=GRADE_ASSERTS, call=grade_asserts),
    ]


async def measure_sessions(backend: SandboxBackend, plan: BenchPlan, say: Say) -> list[Timing]:
    """Opening one, and round trips in one that is open."""
    opened_s: list[float] = []
    for _ in range(plan.sessions):
        began_s = time.monotonic()
        async with backend.session() as session:
            opened_s.append(time.monotonic() - began_s)
            await _session_run(session)
    async with backend.session() as session:

        async def run() -> None:
            await _session_run(session)

        async def execute() -> None:
            result = await session.exec(["echo", "42"])
            check_run(result)

        async def write_and_read() -> None:
            await session.write("bench.bin", BYTES)
            if await session.read("bench.bin") != BYTES:
                raise InfraError("a session's file was not read as it was written")

        ways = [  # calls of a session take turns: several at once would only wait
            Way(name=SESSION_RUN, call=run, at_once=False),
            Way(name=SESSION_EXEC, call=execute, at_once=False),
            Way(name=SESSION_FILE, call=write_and_read, at_once=False),
        ]
        timings = await measure(ways, plan.timing, say)
    return [timing_of(SESSION_OPEN, Samples(times_s=opened_s)), *timings]


async def measure_growth(backend: SandboxBackend, able: Capabilities, episodes: int, say: Say) -> Growth:
    """Play episodes one after another: each a run and a grade, every twentieth a session."""
    warm_up = max(1, episodes // 10)
    say(f"{warm_up} + {episodes} episodes in a row")
    await play_episodes(backend, warm_up, sessions=able.sessions)
    before = footprint(_num_containers(backend))
    began_s = time.monotonic()
    await play_episodes(backend, episodes, sessions=able.sessions)
    took_s = time.monotonic() - began_s
    after = footprint(_num_containers(backend))
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s and not is_within(after, before):
        await asyncio.sleep(0.1)  # containers that are being replaced are not growth
        after = footprint(_num_containers(backend))
    return Growth(episodes=episodes, before=before, after=after, episodes_per_s=episodes / took_s)


async def play_episodes(backend: SandboxBackend, count: int, *, sessions: bool) -> None:
    """The sandbox calls of an episode, checked."""
    for number in range(count):
        check_run(await backend.run(PROGRAM))
        check_verdict(await backend.grade(GRADE_OF_ASSERTS if number % 2 else GRADE_OF_CALLS))
        if sessions and number % SESSION_EVERY == 0:
            async with backend.session() as session:
                await session.write("bench.bin", BYTES)
                await _session_run(session)


def check_run(result: RunResult) -> None:
    """Raises InfraError: wrong answers are not timed."""
    if result.status is not RunStatus.OK or result.stdout != PRINTED:
        raise InfraError(f"{PROGRAM!r} was answered with {result}")


def check_verdict(verdict: Verdict) -> None:
    if not verdict.passed:
        raise InfraError(f"a right solution was judged wrong: {verdict}")


async def _session_run(session: Session) -> None:
    check_run(await session.run(PROGRAM))


def is_within(after: Footprint, before: Footprint) -> bool:
    """Whether no count of `after` is above that of `before`."""
    counts = ("descriptors", "threads", "children", "containers")
    return all(getattr(after, count) <= getattr(before, count) for count in counts)


def _num_containers(backend: SandboxBackend) -> int:
    """All containers: in use, spare, and of sessions."""
    metrics = backend.metrics()
    return int(sum(metrics.get(f"sandbox/{name}", 0) for name in CONTAINERS))
