"""Small but whole runs: the tiny policy, the embedded interpreter, a generator, a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from agentgym.config import apply_overrides, to_mapping
from agentgym.recipe import Recipe
from agentgym.run.layers import finish_recipe
from agentgym.runs.folder import RunFolder

SMALL = (
    "loop.steps=3",
    "loop.groups_per_step=3",
    "loop.group_size=4",
    "loop.checkpoint_every=1",
    "eval.tasks=6",
    "eval.samples_per_task=1",
    "generator.replicas=1",
    "sandbox.name=monty",
    "logging.sinks=[]",
)


@dataclass
class RecordingReporter:
    """Records what it gets; `on_step` and `on_phase` may interfere with the run."""

    on_step: Callable[[int], None] = lambda step: None
    on_phase: Callable[[str], None] = lambda text: None
    notes: list[str] = field(default_factory=list)
    metrics: list[Mapping[str, float]] = field(default_factory=list)
    after_s: float = 0.0

    def phase(self, text: str) -> None:
        self.on_phase(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, step: int, total: int, metrics: Mapping[str, float], after_s: float = 0.0) -> None:
        self.metrics.append(metrics)
        self.after_s = after_s
        self.on_step(step)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        pass

    def close(self) -> None:
        pass


IN_PROCESS = "launcher.name=in_process:InProcess"
"""Trainer and generators in the test's own process: most of a short run is the start of theirs."""


def small_recipe(*overrides: str) -> Recipe:
    """For a run in this process; with launcher.name=local, for one with processes of its own."""
    return finish_recipe(apply_overrides({}, [*SMALL, IN_PROCESS, *overrides]))[0]


def run_processes(folder: Path, name: str = "") -> list[psutil.Process]:
    """Processes of this run, identified by the log file on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if f"{folder}/logs/{name}" in command and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@dataclass
class Lab:
    """Makes runs in a folder of the test's own."""

    root: Path

    small = SMALL
    in_process = IN_PROCESS
    recipe = staticmethod(small_recipe)
    processes = staticmethod(run_processes)
    reporter = RecordingReporter

    def new_run(self, recipe: Recipe, name: str = "run") -> RunFolder:
        folder = RunFolder.create(self.root, name)
        folder.save_config(to_mapping(recipe))
        return folder


@pytest.fixture(scope="session")
def make_lab() -> type[Lab]:
    return Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(root=tmp_path)
