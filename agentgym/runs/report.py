"""What a job reports while it runs, and how that is shown: as lines, or as JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from agentgym.commands.output import guarded
from agentgym.commands.text import table_lines


class Reporter(Protocol):
    """Called by a job; the command line chooses the implementation."""

    def phase(self, text: str) -> None:
        """What is being done now, for example "starting 2 generators"."""

    def note(self, text: str) -> None:
        """One line worth keeping."""

    def step(self, step: int, total: int, metrics: Mapping[str, float], after_s: float = 0.0) -> None:
        """A training step is done. A metric that is absent was not measured in this step.

        after_s: which the last evaluation will take.
        """

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None: ...

    def close(self) -> None:
        """The job reports nothing more; safe to call twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How one metric is shown. digits: after the point."""

    key: str
    label: str
    digits: int = 3

    def text(self, metrics: Mapping[str, float]) -> str:
        return number(metrics[self.key], self.digits) if self.key in metrics else "-"


STEP_COLUMNS = (
    Column(key="rollout/reward_mean", label="reward"),
    Column(key="rollout/success_mean", label="success"),
    Column(key="eval/success", label="held-out"),
    Column(key="eval/reward", label="held-out reward"),
    Column(key="sft/loss", label="loss"),
    Column(key="sft/held_out_loss", label="held-out loss"),
    Column(key="loop/staleness_max", label="stale max", digits=0),
    Column(key="loop/staleness_mean", label="stale mean", digits=2),
    Column(key="train/entropy", label="entropy"),
    Column(key="train/kl_ref", label="kl ref", digits=4),
    Column(key="train/mismatch_kl", label="mismatch", digits=5),
    Column(key="sync/mismatch_max", label="after sync", digits=6),
    Column(key="generator/tokens_per_s", label="tokens/s", digits=0),
    Column(key="time/step_s", label="step s", digits=1),
)
"""The figures of a step that are shown, in this order."""


SANDBOX_TIMES = (("sandbox/wall_p50_s", "p50"), ("sandbox/wall_p95_s", "p95"), ("sandbox/queue_p95_s", "queue p95"))
SANDBOX_COUNTS = (
    ("sandbox/calls_waiting", "waiting"),
    ("sandbox/sessions_waiting", "sessions waiting"),
    ("sandbox/calls_timeout", "timed out"),
    ("sandbox/calls_oom", "out of memory"),
    ("sandbox/calls_unsupported", "unsupported"),
    ("sandbox/retries", "retried"),
    ("sandbox/leaks", "left something"),
)
"""Counts of a step's sandbox calls, shown when they are not zero."""
REPLACED = "sandbox/replaced_"  # by cause


def sandbox_text(metrics: Mapping[str, float]) -> str:
    """A step's sandbox calls in one line; empty when there is no sandbox."""
    if "sandbox/calls" not in metrics:
        return ""
    shown = [f"{metrics['sandbox/calls']:.0f} calls"]
    shown += [f"{label} {milliseconds(metrics[key])}" for key, label in SANDBOX_TIMES if key in metrics]
    shown += [f"{metrics[key]:.0f} {label}" for key, label in SANDBOX_COUNTS if metrics.get(key)]
    replaced = sum(v for k, v in metrics.items() if k.startswith(REPLACED) and not k.endswith("_total"))
    if replaced:
        shown.append(f"{replaced:.0f} replaced")
    return ", ".join(shown)


def milliseconds(seconds: float) -> str:
    """Formats milliseconds, for example 3.57 ms, 28.2 ms, 1250 ms."""
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def number(value: float, digits: int) -> str:
    """A figure for a person; a value that would be rounded to zero keeps two significant digits."""
    if not math.isfinite(value):
        return str(value)
    text = f"{value:.{digits}f}"
    return f"{value:.1e}" if value and not float(text) else text


def duration(seconds: float) -> str:
    """Formats seconds, for example 42s, 3m05s, 2h10m."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


@dataclass(slots=True)
class Pace:
    """Estimates the remaining time from the steps since this process began."""

    clock: Callable[[], float] = time.monotonic
    started_s: float = field(init=False)
    first_step: int | None = None
    step: int = 0
    reached_s: float = 0.0
    after_s: float = 0.0

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    def reached(self, step: int, after_s: float = 0.0) -> None:
        if self.first_step is None:
            self.first_step = step - 1
        self.step, self.reached_s, self.after_s = step, self.clock(), after_s

    def begin(self) -> None:
        """Count the time from now, without the start of the services."""
        if self.first_step is None:
            self.started_s = self.clock()

    def rest_s(self, total: int) -> float | None:
        """Of the steps and of what follows them. None until a step is done."""
        if self.first_step is None or self.step <= self.first_step:
            return None
        step_s = (self.reached_s - self.started_s) / (self.step - self.first_step)
        return max(0.0, step_s * (total - self.step) + self.after_s - (self.clock() - self.reached_s))


class _ToStream:
    """What prints lines to a stream; a run does not depend on it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = guarded(stream)

    def close(self) -> None:
        self._stream.flush()

    def _line(self, line: str | Mapping[str, object]) -> None:
        print(line if isinstance(line, str) else json.dumps(line), file=self._stream, flush=True)


class PlainReporter(_ToStream):
    """One line for each event: for logs, pipes and plain terminals."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._pace = Pace()

    def phase(self, text: str) -> None:
        self._pace.begin()
        self._line(f"... {text}")

    def note(self, text: str) -> None:
        self._line(text)

    def step(self, step: int, total: int, metrics: Mapping[str, float], after_s: float = 0.0) -> None:
        self._pace.reached(step, after_s)
        shown = [f"{c.label} {c.text(metrics)}" for c in STEP_COLUMNS if c.key in metrics]
        if too_long := metrics.get("rollout/prompt_too_long"):
            shown.append(f"prompt too long {too_long:.0f}")
        if sandbox := sandbox_text(metrics):
            shown.append(f"sandbox {sandbox}")
        rest_s = self._pace.rest_s(total)
        if rest_s is not None and (step < total or after_s):
            shown.append(f"left {duration(rest_s)}")
        self._line(f"step {step}/{total}  " + "  ".join(shown))

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._line("\n" + "\n".join([title, *table_lines(header, rows)]))


class JsonReporter(_ToStream):
    """One JSON object a line, for scripts."""

    def phase(self, text: str) -> None:
        self._line({"event": "phase", "text": text})

    def note(self, text: str) -> None:
        self._line({"event": "note", "text": text})

    def step(self, step: int, total: int, metrics: Mapping[str, float], after_s: float = 0.0) -> None:
        values = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        self._line({"event": "step", "step": step, "total": total, "metrics": values})

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        named = [dict(zip(header, row, strict=True)) for row in rows]
        self._line({"event": "table", "title": title, "rows": named})
