"""The files of one evaluation in a run's folder: its episodes as they end, then all in order, and the result.

evals/step-000020.json          what is played, and the result once it is known
evals/step-000020.part.jsonl    one episode a line, in the order in which they ended; gone when all are played
evals/step-000020.jsonl.gz      all episodes, in order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from agentgym.runs.files import append_line, dump_line, read_json, read_json_lines, write_whole, writing
from agentgym.runs.folder import MetricsRow, RunFolder
from agentgym.runs.records import SavedEpisode, decode_saved, encode_saved
from agentgym.types import Episode, Json, Outcome


class EvaluationFiles:
    """step: of the weights that play; 0 for a model that no run made."""

    def __init__(self, folder: RunFolder, step: int) -> None:
        self._folder, self._step = folder, step
        self._record = folder.evaluation_file(step, ".json")
        self._part = folder.evaluation_file(step, ".part.jsonl")

    def begin(self, setup: Mapping[str, Json], *, resume: bool) -> dict[str, Episode]:
        """Record what is played. Returns the episodes by id that need not be played again.

        resume: the weights are those of an interrupted evaluation; its episodes are kept if it played the same,
        except those that infrastructure broke.
        """
        known: dict[str, Episode] = {}
        if resume and self._part.is_file() and read_setup(self._record) == dict(setup):
            saved = [decode_saved(record).episode for record in read_json_lines(self._part)]
            known = {e.episode_id: e for e in saved if e.outcome is not Outcome.INFRA_ERROR}
        elif self._part.is_file():
            self._part.unlink()
        self._save({"setup": dict(setup), "result": None})
        return known

    def add(self, number: int, index: int, episode: Episode) -> None:
        """An episode that has ended: which of task `number`."""
        place = {"step": self._step, "start_version": self._step, "group_id": number, "index": index}
        saved = SavedEpisode(**place, advantage=None, trained=False, episode=episode)
        append_line(self._part, dump_line(encode_saved(saved)))

    def save_episodes(self, rows: Sequence[Sequence[Episode]]) -> None:
        """All of them, one row for each task."""
        self._folder.save_evaluation(self._step, rows)
        with writing(self._part):
            self._part.unlink(missing_ok=True)

    def save_result(self, setup: Mapping[str, Json], result: Mapping[str, Json]) -> None:
        self._save({"setup": dict(setup), "result": dict(result)})

    def _save(self, record: Mapping[str, Json]) -> None:
        write_whole(self._record, dump_line({"format": 1, **record}).encode())


def read_setup(record: Path) -> dict[str, Json] | None:
    """What the evaluation of this record plays or played; None without a record."""
    return cast("dict[str, Json]", read_json(record)["setup"]) if record.is_file() else None


def read_result(folder: RunFolder, step: int) -> tuple[dict[str, Json], dict[str, Json]] | None:
    """Setup and result of a finished evaluation; None when there is none."""
    path = folder.evaluation_file(step, ".json")
    record = read_json(path) if path.is_file() else {}
    setup, result = record.get("setup"), record.get("result")
    return (setup, result) if isinstance(setup, dict) and isinstance(result, dict) else None


def with_held_out(folder: RunFolder, key: str) -> list[MetricsRow]:
    """The metrics of a run, and under `key` the success of its evaluations: also before the first step.

    Of the evaluations, those of steps that a resumed run has undone are left out.
    """
    rows = {row.step: row for row in folder.read_metrics()}
    last = max(rows) if rows else None
    for step in folder.episode_steps(evaluation=True):
        found = read_result(folder, step) if last is None or step <= last else None
        success = found[1].get("success") if found else None
        if isinstance(success, (int, float)):
            row = rows.setdefault(step, MetricsRow(step=step, time=0.0, metrics={}))
            row.metrics[key] = float(success)
    return [rows[step] for step in sorted(rows)]
