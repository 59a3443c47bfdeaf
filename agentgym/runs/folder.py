"""The folder of one run: its files, and the lock that lets one process write them.

RUN/config.yaml             the finished config
    own.mark                that this user made the config (own.py)
    config.sources.json     where its fields come from, those that are not defaults
    status.json             running, done, failed or interrupted, and why
    state.json              what a resumed run needs; replaced whole
    sandbox.json            the sandbox that ran the policy's code, and what it enforced
    starts.jsonl            settings and machine of each start (starts.py)
    metrics.jsonl           one line a step
    events.log              what happened when
    episodes/step-000012.jsonl.gz   one episode a line, all tokens with their provenance; index: episode_index.py
    evals/step-000020.jsonl.gz      the same, of evaluations; their results are beside it (evaluations.py)
    changes.jsonl       settings that were changed while the run went on (changes.py)
    steering.jsonl      what a person asked of the run while it went on, and what became of it (steering.py)
    evaluation/logs         of processes that measured its checkpoints after it (run/checkpoint_curve.py)
    notes.json              what a person notes about it (notes.py)
    comparison.json         the first and the last checkpoint on the same held-out tasks
    journal/                the batches since the last checkpoint (trainer/journal.py)
    checkpoints/step-000020/        the trainer's state, an exported model, the run's position (checkpoints.py)
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Self, cast

from agentgym.errors import InfraError, UserError, nearest
from agentgym.runs.episode_index import save_episodes
from agentgym.runs.files import (
    append_line,
    dump_line,
    overwrite,
    read_json,
    read_json_lines,
    sync,
    write_whole,
    writing,
    writing_output,
)
from agentgym.runs.filesystem import check_filesystem
from agentgym.runs.lock import current_folder, is_locked, moved_error, take_lock
from agentgym.runs.metrics import MetricsLog, MetricsRow
from agentgym.runs.records import SavedEpisode, decode_saved, encode_group
from agentgym.sandbox import Capabilities
from agentgym.types import Episode, Group, Json
from agentgym.yaml import dump_yaml, read_yaml

_STEP_FILE = re.compile(r"step-(\d+)")
STATUS_BYTES = 4096  # one block of the disk
MAX_REASON = 500  # characters; each may become six bytes of JSON


class RunStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LOST = "lost"  # recorded as running, but no process holds the lock: it was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """The status of a run. time: of the last change, seconds since the epoch."""

    status: RunStatus
    reason: str
    time: float


class RunFolder:
    """A run's files. One that was created, or opened for writing, holds the run's lock until `close`."""

    def __init__(self, path: Path, lock: IO[str] | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, runs_dir: str | Path, name: str, *, numbered: bool = False) -> RunFolder:
        """A new run. Raises UserError when the name can't be a folder's name, or is taken.

        numbered: a name that is taken gets a number at its end instead.
        """
        path, count = run_path(runs_dir, name), 1
        while not (made := _make(path)) and numbered:
            count += 1
            path = Path(runs_dir) / f"{name}-{count}"
        if not made:
            raise UserError(
                f"there is a run {str(path)!r} already; choose another --name, or continue it: "
                f"agentgym train --resume {path}"
            )
        folder = cls(path, take_lock(path))
        folder.set_status(RunStatus.RUNNING)
        return folder

    @classmethod
    def open(cls, path: str | Path, *, for_writing: bool = False) -> RunFolder:
        """An existing run. Raises UserError when there is none, or when another process is writing it."""
        path = Path(path)
        if not path.is_dir():
            siblings = runs_in(path.parent)
            hint = nearest(path.name, siblings) if siblings else f" No runs are in {str(path.parent)!r}."
            raise UserError(f"no run folder {str(path)!r}.{hint}")
        if not (path / "status.json").is_file():
            inside = runs_in(path)
            hint = f" Runs in it: {', '.join(inside)}." if inside else " A run's folder has a status.json."
            raise UserError(f"{str(path)!r} is not a run of agentgym.{hint}")
        return cls(path, take_lock(path) if for_writing else None)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def close(self) -> None:
        """Release the lock; safe to call twice."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # config, status, state

    def save_config(self, config: Mapping[str, object], sources: Mapping[str, str] | None = None) -> None:
        """sources: where its fields come from, by dotted key, those that are not defaults."""
        self._check_there()
        write_whole(self.path / "config.yaml", dump_yaml(dict(config)).encode())
        self._save("config.sources.json", dict(sources or {}))

    def load_config(self) -> dict[str, object]:
        return read_yaml(self.path / "config.yaml")

    def load_sources(self) -> dict[str, str]:
        """The sources that `save_config` was given."""
        return {key: str(source) for key, source in self._load("config.sources.json").items()}

    def set_status(self, status: RunStatus, reason: str = "") -> None:
        """Writes the status, even on a full disk: the file has room for it, and is overwritten in place if it can't be
        replaced.
        """
        writer = {"process": os.getpid(), "host": socket.gethostname(), "time": time.time()}
        current = self.path if self._lock is None else current_folder(self.path, self._lock)
        path, record = current / "status.json", {"status": status, "reason": reason, **writer}
        data = json.dumps(record, indent=1).encode().ljust(STATUS_BYTES)
        try:
            write_whole(path, data)
        except InfraError:
            if len(data) > STATUS_BYTES:
                data = json.dumps({**record, "reason": reason[:MAX_REASON]}, indent=1).encode().ljust(STATUS_BYTES)
            overwrite(path, data)

    def status(self) -> StatusRecord:
        """The current status; `lost` for a run whose process ended without recording one."""
        record = read_json(self.path / "status.json")
        try:
            status = RunStatus(str(record.get("status")))
        except ValueError:
            raise UserError(f"{self.path / 'status.json'}: no status {record.get('status')!r}") from None
        here = record.get("host") == socket.gethostname()  # locks of another host are not visible here
        if status is RunStatus.RUNNING and here and self._lock is None and not is_locked(self.path):
            status = RunStatus.LOST
        when = record.get("time")
        return StatusRecord(
            status=status,
            reason=str(record.get("reason", "")),
            time=float(when) if isinstance(when, (int, float)) else 0.0,
        )

    def save_sandbox(self, able: Capabilities) -> None:
        """Which sandbox serves the run, and what it enforces on this machine.

        before: those that served it before a resume. A run that was unsafe once stays marked as unsafe.
        """
        earlier = self.load_sandbox()
        before = cast("list[str]", earlier.get("before", []))
        names = dict.fromkeys([*before, *([str(earlier["backend"])] if earlier else [])])
        unsafe = not able.isolated or earlier.get("unsafe") is True
        others = [name for name in names if name != able.backend]
        images = {"images": earlier["images"]} if "images" in earlier else {}
        self._save("sandbox.json", {**asdict(able), "unsafe": unsafe, "before": others, **images})

    def save_images(self, images: Mapping[str, str]) -> None:
        """The digest of each image that tasks named, beside those before a resume."""
        saved = self.load_sandbox()
        if images and saved:
            known = cast("dict[str, Json]", saved.get("images", {}))
            self._save("sandbox.json", {**saved, "images": {**known, **images}})

    def load_sandbox(self) -> dict[str, Json]:
        """What `save_sandbox` wrote; empty for a run whose tasks ran no code."""
        return self._load("sandbox.json")

    def save_state(self, state: Mapping[str, Json]) -> None:
        """What a resumed run needs. Replaced whole: after a crash the previous state is still there."""
        self._save("state.json", state)

    def load_state(self) -> dict[str, Json]:
        """Raises UserError when the run saved none, so that it can't be resumed."""
        if state := self._load("state.json"):
            return state
        raise UserError(f"run {str(self.path)!r} stopped before it saved anything to resume from; start a new run")

    @property
    def has_state(self) -> bool:
        """Whether there is something to resume."""
        return (self.path / "state.json").is_file()

    def remove(self) -> None:
        """Removes the folder of a run that could not start. What can't be removed stays."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _save(self, name: str, record: Mapping[str, object]) -> None:
        self._check_there()
        write_whole(self.path / name, json.dumps(record, indent=1).encode())

    def moved(self) -> InfraError | None:
        """What to say when the folder that is written is no longer in its place; None while it is."""
        return moved_error(self.path, self._lock)

    def _check_there(self) -> None:
        if error := self.moved():
            raise error

    def _load(self, name: str) -> dict[str, Json]:
        path = self.path / name
        return read_json(path) if path.is_file() else {}

    def event(self, text: str) -> None:
        """One line for events.log, with the time."""
        now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        append_line(self.path / "events.log", f"{now} {' '.join(text.splitlines())}")

    # metrics

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Values that are not finite are saved as null, so that every JSON reader accepts the file."""
        self._check_there()
        values: dict[str, Json] = {
            key: float(value) if math.isfinite(value) else None for key, value in metrics.items()
        }
        append_line(self.path / "metrics.jsonl", dump_line({"step": step, "time": time.time(), **values}))

    def sync_metrics(self) -> None:
        sync(self.path / "metrics.jsonl")

    def read_metrics(self) -> list[MetricsRow]:
        """One row a step, in order. Where a resumed run repeated steps, the later rows count."""
        return MetricsLog(self.path / "metrics.jsonl").read()

    # episodes

    def save_groups(
        self,
        step: int,
        trained: Sequence[Group],
        skipped: Sequence[Group] = (),
        trainer_logprobs: Mapping[str, list[list[float]]] | None = None,
    ) -> None:
        """All episodes of one step, one a line: first those that were trained on, in their order.

        trainer_logprobs: by episode and turn, where they are recorded.
        """
        records = [
            record
            for groups, used in ((trained, True), (skipped, False))
            for group in groups
            for record in encode_group(group, step=step, trained=used, trainer_logprobs=trainer_logprobs)
        ]
        save_episodes(self.episode_file(step), records)

    def save_evaluation(
        self, step: int, episodes: Sequence[Sequence[Episode]], numbers: Sequence[int] | None = None
    ) -> None:
        """The episodes of an evaluation of the weights after `step`, one row for each task.

        numbers: of the tasks; None counts them from 0.
        """
        records = [
            record
            for number, row in zip(range(len(episodes)) if numbers is None else numbers, episodes, strict=True)
            for group in (Group(group_id=number, task=row[0].task, start_version=step, episodes=[*row]),)
            for record in encode_group(group, step=step, trained=False)
        ]
        save_episodes(self.episode_file(step, evaluation=True), records)

    def episode_steps(self, *, evaluation: bool = False) -> list[int]:
        """The steps whose episodes were saved."""
        return _steps_in(self.episode_file(0, evaluation=evaluation).parent, "step-*.jsonl*")

    @property
    def only_evaluates(self) -> bool:
        """Whether nothing was trained here: its episodes are those of an evaluation."""
        return not self.checkpoint_steps() and not self.episode_steps()

    @property
    def is_evaluation(self) -> bool:
        """Whether it is of `agentgym eval`, and nothing was ever trained here."""
        of_training = ("starts.jsonl", "state.json", "metrics.jsonl", "checkpoints", "episodes", "journal")
        return (self.path / "evals").is_dir() and not any((self.path / name).exists() for name in of_training)

    def read_episodes(self, step: int, *, evaluation: bool = False) -> Iterator[SavedEpisode]:
        """One after another, as they were saved. Raises UserError when the step has none."""
        path = self.episode_file(step, evaluation=evaluation)
        if evaluation and not path.is_file():  # those that have ended so far
            path = self.evaluation_file(step, ".part.jsonl")
        if not path.is_file():
            known = self.episode_steps(evaluation=evaluation)
            there = f"steps {known[0]} to {known[-1]}" if known else "none"
            raise UserError(f"no episodes of step {step} in {str(self.path)!r}; saved are: {there}")
        for record in read_json_lines(path):
            yield decode_saved(record)

    def episode_file(self, step: int, *, evaluation: bool = False) -> Path:
        """Where the episodes of a step are saved."""
        if evaluation:
            return self.evaluation_file(step, ".jsonl.gz")
        return self.path / "episodes" / f"step-{step:06d}.jsonl.gz"

    def evaluation_file(self, step: int, suffix: str) -> Path:
        """A file of the evaluation of the weights after `step`; see evaluations.py."""
        return self.path / "evals" / f"step-{step:06d}{suffix}"

    def save_comparison(self, comparison: Mapping[str, Json]) -> None:
        self._save("comparison.json", comparison)

    def load_comparison(self) -> dict[str, Json]:
        """The comparison of the first and the last checkpoint; empty before a run has ended."""
        return self._load("comparison.json")

    # checkpoints

    def checkpoint_dir(self, step: int) -> Path:
        """The place of the checkpoint after `step`; the parent is made, the folder is left to the trainer."""
        self._check_there()
        with writing(parent := self.path / "checkpoints"):
            parent.mkdir(exist_ok=True)
        return parent / f"step-{step:06d}"

    def checkpoint_steps(self, *, unfinished: bool = False) -> list[int]:
        """The steps with an exported model, which is written last; unfinished: all that were begun."""
        return _steps_in(self.path / "checkpoints", "step-*" if unfinished else "step-*/hf")


def _make(path: Path) -> bool:
    """Whether the folder is new."""
    with writing_output(path, "logging.runs_dir, or logging.evals_dir of evaluations"):
        try:
            path.mkdir()
        except FileExistsError:
            return False
        try:
            check_filesystem(path)
        except BaseException:
            path.rmdir()
            raise
    return True


def run_path(runs_dir: str | Path, name: str) -> Path:
    """Where a run of this name is. Raises UserError for what can't be a folder's name."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.+=-]*", name):
        raise UserError(f"{name!r} can't name a run; use letters, digits, and any of . _ - + =")
    return Path(runs_dir) / name


def runs_in(runs_dir: str | Path) -> list[str]:
    """The names of the runs in a folder, the one first whose status changed first."""
    found = sorted(Path(runs_dir).glob("*/status.json"), key=lambda path: (_time_in(path), path.parent.name))
    return [path.parent.name for path in found]


def _time_in(path: Path) -> float:
    """The time in a status; 0 if it has none. The time of the file itself is another one in a copy."""
    with contextlib.suppress(OSError, ValueError):
        record = json.loads(path.read_bytes())
        when = record.get("time") if isinstance(record, dict) else None
        return float(when) if isinstance(when, (int, float)) else 0.0
    return 0.0


def _steps_in(folder: Path, pattern: str = "step-*") -> list[int]:
    matches = [_STEP_FILE.match(path.relative_to(folder).parts[0]) for path in folder.glob(pattern)]
    return sorted({int(match[1]) for match in matches if match})
