"""Runs cases of fuzz targets, each from a seed of its own, and keeps what was found so that it can be seen again."""

from __future__ import annotations

import inspect
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

MAX_FINDINGS = 20  # of one target; more of the same tell nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """case: makes an input from the random numbers and tries it; whatever it raises is a finding.

    cpu_s: what one case may take of this process's time. weight: its share of a run that has a time limit.
    """

    name: str
    case: Callable[[Random], Awaitable[None] | None]
    cpu_s: float = 2.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What went wrong. The target's name and the case's seed make it again."""

    target: str
    seed: str
    error: str

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{self.seed.rpartition(':')[2]}.json"
        path.write_text(json.dumps({"target": self.target, "seed": self.seed, "error": self.error}, indent=2))
        return path

    @classmethod
    def read(cls, path: Path) -> Finding:
        return cls(**json.loads(path.read_text()))


@dataclass(slots=True, kw_only=True)
class Report:
    """How many cases of a target ran, and what they found."""

    target: str
    num_cases: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


class TooSlow(AssertionError):
    """A case took more time than it may."""


async def run(
    targets: Sequence[Target], seed: int, *, seconds: float | None = None, num_cases: int | None = None
) -> list[Report]:
    """All targets, a slice each in turn, until the time or the number of cases of each is reached."""
    reports = {target.name: Report(target=target.name) for target in targets}
    began_s = time.monotonic()
    while True:
        active = [t for t in targets if num_cases is None or reports[t.name].num_cases < num_cases]
        if seconds is not None and time.monotonic() - began_s >= seconds:
            active = []
        active = [t for t in active if len(reports[t.name].findings) < MAX_FINDINGS]
        if not active:
            return list(reports.values())
        for target in active:
            left = None if num_cases is None else num_cases - reports[target.name].num_cases
            slice_s = target.weight * (0.5 if seconds is None else min(0.5, seconds / 20))
            await _run_slice(target, seed, reports[target.name], left, slice_s)


async def _run_slice(target: Target, seed: int, report: Report, left: int | None, slice_s: float) -> None:
    began_s = time.monotonic()
    while left is None or left > 0:
        finding = await run_case(target, f"{seed}:{target.name}:{report.num_cases}")
        report.num_cases += 1
        left = None if left is None else left - 1
        if finding is not None:
            report.findings.append(finding)
        if time.monotonic() - began_s >= slice_s or len(report.findings) >= MAX_FINDINGS:
            break
    report.seconds += time.monotonic() - began_s


async def run_case(target: Target, seed: str) -> Finding | None:
    """One case. What it raises is returned, with the notes that the case added to it."""
    began_s = time.thread_time()
    try:
        running = target.case(Random(seed))
        if inspect.isawaitable(running):
            await running
        took_s = time.thread_time() - began_s
        if took_s > target.cpu_s:
            raise TooSlow(f"the case took {took_s:.1f} s of processor time; {target.cpu_s:g} s are allowed")
    except Exception as error:
        text = "".join(traceback.format_exception(error, limit=-8))
        return Finding(target=target.name, seed=seed, error=text[-6000:])
    return None
