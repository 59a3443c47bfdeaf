"""The curve of a run: as a picture, and in the terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from agentgym.errors import UserError, nearest, pip_install_only
from agentgym.runs.changes import Change
from agentgym.runs.files import writing
from agentgym.runs.metrics import MetricsRow

REWARD, SUCCESS, HELD_OUT = "rollout/reward_mean", "rollout/success_mean", "eval/success"
HELD_OUT_REWARD = "eval/reward"  # where success is unknown
LOSS, HELD_OUT_LOSS = "sft/loss", "sft/held_out_loss"  # of supervised fine-tuning
Measured: TypeAlias = tuple[int, float, float | None, float | None]  # step, value, its 95% interval
_BARS = "▁▂▃▄▅▆▇█"
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # dot bits of one cell, [row][column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric over the steps where it is known and finite, in rising order."""

    key: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


def series(rows: Sequence[MetricsRow], key: str) -> Series:
    """Raises UserError when no step has the metric."""
    if line := _known(rows, key):
        return line
    if not rows:
        raise UserError("this run has no metrics yet: it finished no step")
    known = {name for row in rows for name in row.metrics}
    raise UserError(f"no step of this run has the metric {key!r}.{nearest(key, known)}")


def _known(rows: Sequence[MetricsRow], key: str) -> Series | None:
    points = [(r.step, r.metrics[key]) for r in rows if math.isfinite(r.metrics.get(key, math.nan))]
    if not points:
        return None
    steps, values = zip(*points, strict=True)
    return Series(key=key, steps=steps, values=values)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value with its neighbours, `window` in all, fewer at the ends."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """One character for each value, or for each of `width` means when there are more."""
    values = [value for value in values if math.isfinite(value)]
    if not values or width < 1:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(values), max(values)
    if high == low:
        return _BARS[len(_BARS) // 2] * len(values)
    return "".join(_BARS[min(7, int((value - low) / (high - low) * 8))] for value in values)


def terminal_plot(line: Series, *, marks: Sequence[Change] = (), width: int = 72, height: int = 12) -> str:
    """The curve in braille dots, two by four to a character, with its axes. width, height: characters.

    marks: changes of settings, which get a row below the axis where they are within the curve's steps.
    """
    low, high = _range(line.values)
    labels = [f"{high - (high - low) * row / (height - 1):.3g}" for row in range(height)]
    margin = max(map(len, labels))
    columns = max(8, width - margin - 3)
    grid = [[0] * columns for _ in range(height)]
    dots = [
        (_scale(step, line.steps[0], line.steps[-1], columns * 2), _scale(value, low, high, height * 4))
        for step, value in zip(line.steps, line.values, strict=True)
    ]
    for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        for k in range(length + 1):
            x, y = round(x0 + (x1 - x0) * k / length), round(y0 + (y1 - y0) * k / length)
            y = height * 4 - 1 - y
            grid[y // 4][x // 2] |= _BRAILLE[y % 4][x % 2]
    lines = [line.key]
    for row, label in zip(grid, labels, strict=True):
        lines.append(f"{label.rjust(margin)} ┤{''.join(chr(0x2800 + dots) for dots in row)}")
    first, last = str(line.steps[0]), str(line.steps[-1])
    lines.append(" " * margin + " └" + "─" * columns)
    lines.append(" " * (margin + 2) + first + last.rjust(columns - len(first)) + "  step")
    if within := [one for one in marks if line.steps[0] <= one.step <= line.steps[-1]]:
        below = [" "] * columns
        for one in within:
            below[_scale(one.step, line.steps[0], line.steps[-1], columns)] = "▲"
        lines.append((" " * (margin + 2) + "".join(below)).rstrip())
        lines += [f"{' ' * margin} ▲ after step {one.step}: {one}" for one in within]
    return "\n".join(lines)


def write_png(rows: Sequence[MetricsRow], path: Path, title: str, marks: Sequence[Change] = ()) -> None:
    """Reward and success of every step, their running mean, and held-out success (or reward) where it was measured.

    marks: changes of settings, dotted lines.
    Of supervised fine-tuning the loss, and that of the conversations held out. Raises UserError when there is nothing
    to draw or matplotlib is missing.
    """
    figure = _figure()
    axes = figure.add_subplot()
    for key, label, colour in ((REWARD, "reward", "#1f77b4"), (SUCCESS, "success", "#2ca02c")):
        if line := _known(rows, key):
            window = max(1, len(line.values) // 10) | 1
            axes.plot(line.steps, line.values, color=colour, alpha=0.3, linewidth=1)
            running = f"{label}, mean of {window} steps" if window > 1 else label
            axes.plot(line.steps, smooth(line.values, window), color=colour, linewidth=2, label=running)
    for key, label in ((HELD_OUT, "held-out success"), (HELD_OUT_REWARD, "held-out reward")):
        if line := _known(rows, key):
            axes.plot(line.steps, line.values, "o--", color="#d62728", label=label)
    label = "mean over the step's episodes"
    if losses := _known(rows, LOSS):
        axes.plot(losses.steps, losses.values, color="#9467bd", label="loss, nats a token")
        label = "success, loss"
        if line := _known(rows, HELD_OUT_LOSS):
            axes.plot(line.steps, line.values, "o--", color="#8c564b", label="loss of what is held out")
    if not axes.lines:
        raise UserError("nothing to draw: no step of this run has a reward or a loss")
    for step in dict.fromkeys(one.step for one in marks):
        text = "\n".join(str(one) for one in marks if one.step == step)
        axes.axvline(step, color="#555555", linestyle=":", linewidth=1)
        axes.annotate(
            text, (step, 1), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right", fontsize=6
        )
    axes.set(xlabel="step", ylabel=label, title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    with writing(path):
        figure.savefig(path)


def write_checkpoints_png(points: Sequence[Measured], path: Path, title: str, what: str) -> None:
    """Checkpoints with their intervals. Raises UserError when there is nothing to draw or matplotlib is missing."""
    if not points:
        raise UserError("nothing to draw: no checkpoint has a measured episode")
    figure = _figure()
    axes = figure.add_subplot()
    steps, values, lows, highs = zip(*points, strict=True)
    sizes = [[v - (v if low is None else low) for v, low in zip(values, lows, strict=True)],
             [(v if high is None else high) - v for v, high in zip(values, highs, strict=True)]]  # fmt: skip
    axes.errorbar(
        steps, values, yerr=sizes, fmt="o-", color="#d62728", capsize=3, label=f"held-out {what}, 95% interval"
    )
    axes.set(xlabel="step", ylabel=what, title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    with writing(path):
        figure.savefig(path)


def _figure() -> Any:
    """An empty picture. Raises UserError where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"the picture needs matplotlib: {pip_install_only('train', 'matplotlib')}") from None
    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")  # no pyplot: it would keep global state
    FigureCanvasAgg(figure)
    return figure


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Where the axis begins and ends. Of one value alone a share's whole range, so that 0 is at the bottom."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return (0.0, 1.0) if 0 <= low <= 1 else (low - 0.5, high + 0.5)


def _scale(value: float, low: float, high: float, cells: int) -> int:
    """Which of `cells` a value in [low, high] falls into."""
    return 0 if high == low else min(cells - 1, int((value - low) / (high - low) * cells))
