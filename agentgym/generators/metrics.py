"""The metrics of several parts of a generator as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

LASTING, MEANS = ("_total", "_s"), ("_share", "_mean")  # by how a metric's name ends


def summed(seen: Mapping[str, Mapping[str, float]], live: Collection[str]) -> dict[str, float]:
    """Metrics of several replicas or schedulers as one: sums, or means of the live ones (`_share`, `_mean`).

    seen: the last figures of each, by its name. Sums of what has happened (`_total`, `_s`) include those of the dead.
    """
    total: dict[str, float] = {}
    for name, figures in seen.items():
        for key, value in figures.items():
            if name in live or key.endswith(LASTING):
                total[key] = total.get(key, 0.0) + (value / len(live) if key.endswith(MEANS) else value)
    return total
