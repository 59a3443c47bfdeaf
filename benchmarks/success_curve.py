"""A picture of how the success of training episodes went, run by run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path


def running_means(values: Sequence[float], steps: int) -> list[float]:
    """Of each value and of those before it, at most so many in all."""
    return [statistics.fmean(values[max(0, end - steps) : end]) for end in range(1, len(values) + 1)]


def draw_success(runs: Mapping[str, Sequence[float]], picture: Path, *, smooth: int) -> None:
    """runs: the success of each training step, by the run's name. Writes the file, a PNG by its ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for name, success in runs.items():
        means = running_means(success, smooth)
        axes.plot(range(1, len(means) + 1), means, label=name, linewidth=1.6)
    axes.set(xlabel="training step", ylabel="success of training episodes", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    figure.tight_layout()
    figure.savefig(picture)
    pyplot.close(figure)
