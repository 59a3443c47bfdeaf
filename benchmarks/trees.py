"""Two source trees of this repository measured in one run: they take turns, so a busy machine slows both."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent.parent
Figures = Mapping[str, float]


def environment(tree: Path) -> dict[str, str]:
    """That of a process which imports this tree's packages instead of the installed ones."""
    if not (tree / "agentgym").is_dir():
        raise SystemExit(f"{tree} has no folder `agentgym`: give the root of a checkout")
    roots = [tree, tree / "envs", tree / "plugins", tree / "sandboxes"]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, roots))}


def take_turns(trees: Sequence[Path], rounds: int, measure: Callable[[Path], Figures]) -> dict[Path, dict[str, float]]:
    """The median of each figure, by tree. Every other round begins with the other tree."""
    measured: dict[Path, list[Figures]] = {tree: [] for tree in trees}
    for number in range(rounds):
        for tree in trees if number % 2 == 0 else trees[::-1]:
            measured[tree].append(measure(tree))
    return {
        tree: {key: statistics.median(figures[key] for figures in found) for key in found[0]}
        for tree, found in measured.items()
    }


def markdown(measured: Mapping[Path, Figures]) -> str:
    """A row for each tree."""
    keys = list(next(iter(measured.values())))
    rows = [[str(tree), *(_shown(figures[key]) for key in keys)] for tree, figures in measured.items()]
    lines = [["tree", *keys], ["---"] + ["--:"] * len(keys), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"
