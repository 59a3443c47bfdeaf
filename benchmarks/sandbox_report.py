"""The results of the sandbox benchmark: figures against their targets, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandbox_baselines import EXEC_SDK

from agentgym.sandbox import Capabilities
from agentgym_sandboxes.audit.bench import CALL, CONTAINER_START, GRADE_ASSERTS, GRADE_CALLS, START, BenchPlan, Growth
from agentgym_sandboxes.audit.machine import Load, Machine
from agentgym_sandboxes.audit.timing import Timing

HELD = ("memory_mib", "descriptors", "threads", "children", "containers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure of the Docker sandbox and its limit, which it must not exceed; at_least: must reach."""

    what: str
    measured: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        side = "at least" if self.at_least else "at most"
        return f"{self.what}: {self.measured:.2f} {self.unit}, {side} {self.limit:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One run. timings of a sandbox are named `<sandbox>: <what>`."""

    machine: Machine
    load: tuple[Load, Load]
    sandboxes: dict[str, Capabilities]
    left_out: dict[str, str]
    timings: tuple[Timing, ...]
    growth: dict[str, Growth]
    plan: BenchPlan

    @property
    def claimed(self) -> bool:
        return all(load.is_idle for load in self.load)

    def timing(self, name: str) -> Timing:
        return next(timing for timing in self.timings if timing.name == name)

    def targets(self) -> list[Target]:
        call, raw = self.timing(f"docker: {CALL}"), self.timing(EXEC_SDK)
        names = [timing.name for timing in self.timings]
        start = next(name for name in (f"docker: {CONTAINER_START}", f"docker: {START}") if name in names)
        assert call.per_s and raw.per_s
        at_once = f"with {self.plan.timing.at_once} at once"
        grades = [
            Target(what=f"{name}, p50", measured=self.timing(f"docker: {name}").p50_ms, limit=15, unit="ms")
            for name in (GRADE_CALLS, GRADE_ASSERTS)
        ]
        return [
            Target(what="call, p50", measured=call.p50_ms, limit=5, unit="ms"),
            Target(what="call, p95", measured=call.p95_ms, limit=15, unit="ms"),
            Target(what=f"calls {at_once}", measured=call.per_s, limit=200, unit="a second", at_least=True),
            Target(
                what=f"calls {at_once} against docker exec",
                measured=call.per_s / raw.per_s,
                limit=8,
                unit="times as many",
                at_least=True,
            ),
            *grades,
            Target(what="start of a container, p50", measured=self.timing(start).p50_ms, limit=400, unit="ms"),
        ]


def tables(results: Results) -> str:
    """Markdown for docs/results.md."""
    machine = results.machine
    about = f"{machine.cores} cores ({machine.cpu}), {machine.memory_gib:.0f} GiB, Linux {machine.kernel}"
    engines = "; ".join(able.detail for able in results.sandboxes.values())
    parts = [
        f"Machine: {about}, Python {machine.python}. {engines}. Before: {results.load[0]}.",
        ways_table(results),
        targets_table(results),
        growth_table(results),
    ]
    return "\n\n".join(parts)


def ways_table(results: Results) -> str:
    """Ratios are against `docker exec` by the SDK in the same run."""
    raw = results.timing(EXEC_SDK)
    assert raw.per_s
    rows = []
    for timing in results.timings:
        cpu = timing.machine_cpu_ms > 0
        rows.append(
            (
                timing.name,
                f"{timing.p50_ms:.2f}",
                f"{timing.p95_ms:.2f}",
                f"{timing.per_s:.0f}" if timing.per_s else "-",
                f"{timing.machine_cpu_ms:.1f}" if cpu else "-",
                f"{timing.own_cpu_ms:.2f}" if cpu else "-",
                f"{timing.per_s / raw.per_s:.1f}" if timing.per_s else "-",
                f"{raw.p50_ms / timing.p50_ms:.1f}" if timing.per_s else "-",
            )
        )
    header = (
        "method",
        "p50 ms",
        "p95 ms",
        f"calls/s, {results.plan.timing.at_once} at once",
        "CPU ms a call, whole machine",
        "CPU ms a call, our process",
        "calls/s, against docker exec",
        "p50 of docker exec, against this",
    )
    return _markdown(header, rows)


def targets_table(results: Results) -> str:
    rows = []
    for target in results.targets():
        side = "at least" if target.at_least else "at most"
        wanted = f"{target.what}: {side} {target.limit:g} {target.unit}"
        rows.append((wanted, f"{target.measured:.2f}", "yes" if target.met else "no"))
    return _markdown(("target", "measured", "met"), rows)


def growth_table(results: Results) -> str:
    rows = [
        (f"{name}: {growth.episodes}", *(_change(growth, what) for what in HELD))
        for name, growth in results.growth.items()
    ]
    return _markdown(("episodes in a row", "memory MiB", "descriptors", "threads", "processes", "containers"), rows)


def _change(growth: Growth, what: str) -> str:
    before, after = (float(getattr(held, what)) for held in (growth.before, growth.after))
    digits = 1 if what == "memory_mib" else 0
    return f"{before:.{digits}f} to {after:.{digits}f}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))
