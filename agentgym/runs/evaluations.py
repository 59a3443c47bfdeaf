"""The files of one evaluation in a run's folder: its episodes as they end, then all in order, and the result.

evals/step-000020.json          what is played, and the result once it is known
evals/step-000020.part.jsonl    one episode a line, in the order in which they ended; gone when all are played
evals/step-000020.jsonl.gz      all episodes, in order
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from agentgym.runs.curve import HELD_OUT, HELD_OUT_REWARD
from agentgym.runs.files import append_line, cut_torn_line, dump_line, read_json, read_json_lines, write_whole, writing
from agentgym.runs.folder import RunFolder
from agentgym.runs.metrics import MetricsRow
from agentgym.runs.records import SavedEpisode, decode_saved, encode_saved
from agentgym.types import Episode, Json, Outcome

ENDED = "ended"
"""When an episode of an evaluation that goes on has ended, in seconds since the epoch."""


class EvaluationFiles:
    """step: of the weights that play; 0 for a model that no run made. weights: identifies them; empty is unknown."""

    def __init__(self, folder: RunFolder, step: int, weights: str = "") -> None:
        self._folder, self._step, self._weights = folder, step, weights
        self._record = folder.evaluation_file(step, ".json")
        self._part = folder.evaluation_file(step, ".part.jsonl")

    def begin(self, setup: Mapping[str, Json], *, resume: bool) -> dict[str, Episode]:
        """Record what is played. Returns the episodes by id that need not be played again.

        resume: the weights are those of an interrupted evaluation; its episodes are kept if it played the same,
        except those that infrastructure broke. So are those of a finished one of other numbers of tasks or samples.
        """
        known: dict[str, Episode] = {}
        if self._part.is_file():
            with writing(self._part), self._part.open("a+b") as file:
                cut_torn_line(file)
        before = read_record(self._folder, self._step)
        same = before.get("weights") in ("", self._weights)
        for path in (self._folder.episode_file(self._step, evaluation=True), self._part):
            if resume and same and path.is_file() and (path != self._part or before.get("setup") == dict(setup)):
                saved = [decode_saved(record).episode for record in read_json_lines(path)]
                known |= {e.episode_id: e for e in saved if e.outcome is not Outcome.INFRA_ERROR}
            elif path == self._part:
                path.unlink(missing_ok=True)
        self._save(setup, None)
        return known

    def add(self, number: int, index: int, episode: Episode) -> None:
        """An episode that has ended: which of task `number`."""
        saved = SavedEpisode(
            step=self._step,
            start_version=self._step,
            group_id=number,
            index=index,
            advantage=None,
            trained=False,
            episode=episode,
        )
        append_line(self._part, dump_line({**encode_saved(saved), ENDED: time.time()}))

    def save_episodes(self, rows: Sequence[Sequence[Episode]], numbers: Sequence[int] | None = None) -> None:
        """All of them, one row for each task. numbers: of the tasks; None counts them from 0."""
        self._folder.save_evaluation(self._step, rows, numbers)
        with writing(self._part):
            self._part.unlink(missing_ok=True)

    def save_result(self, setup: Mapping[str, Json], result: Mapping[str, Json]) -> None:
        self._save(setup, result)

    def _save(self, setup: Mapping[str, Json], result: Mapping[str, Json] | None) -> None:
        record: dict[str, Json] = {"format": 1, "setup": setup, "weights": self._weights, "result": result}
        write_whole(self._record, dump_line(record).encode())


def read_record(folder: RunFolder, step: int) -> dict[str, Json]:
    """setup, weights and result of an evaluation, whose result is None until it is finished. Empty for no such one."""
    path = folder.evaluation_file(step, ".json")
    return read_json(path) if path.is_file() else {}


def held_out_metric(result: object) -> dict[str, float]:
    """The metric of an evaluation's saved result: its success, or its reward where that is unknown; empty for none."""
    saved = result if isinstance(result, Mapping) else {}
    both = ((HELD_OUT, saved.get("success")), (HELD_OUT_REWARD, saved.get("reward_mean")))
    known = [(key, float(value)) for key, value in both if isinstance(value, (int, float))]
    return dict(known[:1])


def with_held_out(folder: RunFolder) -> list[MetricsRow]:
    """The metrics of a run with the success of its evaluations, or the reward where that is unknown: also before the
    first step.

    Of the evaluations, those of steps that a resumed run has undone are left out.
    """
    rows = {row.step: row for row in folder.read_metrics()}
    last = max(rows) if rows else None
    for step in folder.episode_steps(evaluation=True):
        result = read_record(folder, step).get("result") if last is None or step <= last else None
        if found := held_out_metric(result):
            rows.setdefault(step, MetricsRow(step=step, time=0.0, metrics={})).metrics.update(found)
    return [rows[step] for step in sorted(rows)]
