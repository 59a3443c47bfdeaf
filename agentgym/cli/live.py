"""The live view of a run in a terminal: figures, where the time goes, the time left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentgym.commands.output import guarded
from agentgym.runs.curve import sparkline
from agentgym.runs.report import STEP_COLUMNS, Pace, duration, number, sandbox_text

NUM_RECENT_STEPS = 6
TIMES = (  # metric, label, colour
    ("time/generate_s", "generate", "cyan"),
    ("time/sandbox_s", "sandbox", "magenta"),
    ("time/train_s", "train", "green"),
    ("time/reference_s", "reference", "blue"),
    ("time/publish_s", "publish", "yellow"),
    ("time/wait_s", "wait", "bright_black"),
)
FIGURES = (  # label, metric, digits: one line below the curves
    ("staleness max", "loop/staleness_max", 0),
    ("mean", "loop/staleness_mean", 2),
    ("entropy", "train/entropy", 3),
    ("KL to reference", "train/kl_ref", 4),
    ("mismatch trainer/sampler", "train/mismatch_kl", 5),
    ("tokens/s", "generator/tokens_per_s", 0),
    ("clipped", "train/clip_share", 3),
    ("gradient", "train/grad_norm", 2),
    ("infra errors", "rollout/infra_errors", 0),
    ("unsupported", "rollout/unsupported", 0),
    ("prompt too long", "rollout/prompt_too_long", 0),
    ("skipped groups", "loop/skipped_groups", 0),
)
CURVES = (
    ("reward", "rollout/reward_mean", "cyan"),
    ("success", "rollout/success_mean", "green"),
    ("held-out", "eval/success", "red"),
    ("held-out reward", "eval/reward", "red"),
    ("loss", "sft/loss", "cyan"),
)


class LiveReporter:
    """Redraws itself twice a second at the bottom of the terminal, below the notes.

    clock: seconds; another one shows a run of the past as it was.
    """

    def __init__(
        self, title: str, stream: TextIO, *, width: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._clock = clock
        self._console = Console(file=guarded(stream), width=width)
        self._phase = ""
        self._phase_since_s = self._started_s = clock()
        self._pace = Pace(clock=clock)
        self._step = self._total = 0
        self._history: dict[str, list[float]] = {key: [] for _, key, _ in CURVES}
        self._recent: list[tuple[int, dict[str, float]]] = []
        self._live = Live(
            console=self._console,
            get_renderable=self.render,
            refresh_per_second=2,  # a higher rate would take time from training on a small machine
            transient=False,
        )
        self._live.start()

    def phase(self, text: str) -> None:
        self._pace.begin()
        self._phase, self._phase_since_s = text, self._clock()

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def step(self, step: int, total: int, metrics: Mapping[str, float], after_s: float = 0.0) -> None:
        self._step, self._total = step, total
        self._pace.reached(step, after_s)
        for key, values in self._history.items():
            if math.isfinite(metrics.get(key, math.nan)):
                values.append(metrics[key])
        self._recent = [*self._recent, (step, dict(metrics))][-NUM_RECENT_STEPS:]

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for name, *cells in zip(header, *rows, strict=True):
            numeric = all(not cell.strip("+-0123456789.,%[] ") for cell in cells)
            table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def close(self) -> None:
        self._phase = ""
        self._live.stop()

    def render(self) -> RenderableType:
        parts: list[RenderableType] = [self._header()]
        if self._recent:
            parts += [self._curves(), self._figures(), *self._sandbox(), self._times(), self._steps()]
        return Panel(
            Group(*parts),
            title=f"agentgym · {self._title}",
            title_align="left",
            border_style="dim",
            width=max(20, self._console.width - 2),  # room for the ^C that a terminal echoes
        )

    def _header(self) -> RenderableType:
        now = self._clock()
        grid = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = []
        if self._total:
            rest_s = self._pace.rest_s(self._total)
            left = f"left {duration(rest_s)}" if rest_s is not None else ""
            cells = [
                Text(f"step {self._step}/{self._total}", style="bold"),
                ProgressBar(total=self._total, completed=self._step, width=24),
                Text(f"{100 * self._step // self._total}%"),
                Text(left, style="bold"),
            ]
        cells.append(Text(f"running {duration(now - self._started_s)}", style="dim"))
        if self._phase:
            cells.append(
                Text(f"{self._phase} {duration(now - self._phase_since_s)}", style="yellow", overflow="ellipsis")
            )
        grid.add_row(*cells)
        return grid

    def _curves(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=8)
        width = max(10, min(60, self._console.width - 34))
        for label, key, colour in CURVES:
            values = self._history[key]
            if not values:
                continue
            first = f"from {values[0]:.3f}" if len(values) > 1 else ""
            grid.add_row(
                label,
                Text(f"{values[-1]:.3f}", style=f"bold {colour}"),
                Text(sparkline(values, width), style=colour),
                Text(first, style="dim"),
            )
        return grid

    def _figures(self) -> RenderableType:
        metrics = self._recent[-1][1]
        text = Text(overflow="fold")
        for label, key, digits in FIGURES:
            if key in metrics:
                text.append(f"{label} ", style="dim")
                text.append(number(metrics[key], digits).replace(" ", ""), style="bold")
                text.append("   ")
        return text

    def _sandbox(self) -> list[RenderableType]:
        text = sandbox_text(self._recent[-1][1])
        return [Text.assemble(("sandbox   ", "dim"), (text, "bold"), overflow="fold")] if text else []

    def _times(self) -> RenderableType:
        metrics = self._recent[-1][1]
        times_s = {label: metrics.get(key, 0.0) for key, label, _ in TIMES}
        step_s = metrics.get("time/step_s", sum(times_s.values()))
        if "time/wait_s" not in metrics and "time/compute_share" in metrics:
            times_s["wait"] = max(0.0, step_s * (1 - metrics["time/compute_share"]))
        total_s = max(sum(times_s.values()), 1e-9)
        width = max(10, min(60, self._console.width - 34))
        bar, legend, cells = Text("time      "), Text(), 0.0
        for _, label, colour in TIMES:
            start, cells = round(cells), cells + times_s[label] / total_s * width
            bar.append("█" * (round(cells) - start), style=colour)
            if times_s[label]:
                legend.append("█ ", style=colour)
                legend.append(f"{label} {100 * times_s[label] / max(step_s, 1e-9):.0f}%  ")
        bar.append(f"  {number(step_s, 1)} s a step")
        return Group(bar, legend)

    def _steps(self) -> RenderableType:
        columns = [c for c in STEP_COLUMNS if any(c.key in metrics for _, metrics in self._recent)]
        table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
        table.add_column("step", justify="right")
        for column in columns:
            table.add_column(column.label, justify="right", no_wrap=True)
        for step, metrics in self._recent:
            table.add_row(str(step), *(column.text(metrics) for column in columns))
        return table
