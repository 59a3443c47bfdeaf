"""How far an evaluation is, and what its episodes say so far: `agentgym status` of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from agentgym.errors import InfraError
from agentgym.evals.play import EvalResult, EvalSetup, summarize
from agentgym.runs.evaluations import ENDED, read_record
from agentgym.runs.files import read_json_lines
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.records import decode_saved
from agentgym.types import Episode, Json

FEWEST = 3  # episodes of this start, before their pace says when the rest will have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """An evaluation of the weights after `step`. ended: episodes, of `planned`; retries: how often one was begun again.

    result: of those so far where it is not finished (biased, as short episodes end first); None where nothing could
    be counted. left_s: seconds until the rest has ended at this pace; None where it is unknown, or nothing goes on.
    """

    step: int
    setup: EvalSetup
    finished: bool
    planned: int
    ended: int
    retries: int
    result: EvalResult | None
    left_s: float | None


def progress(folder: RunFolder, step: int) -> Progress:
    """Reads what is there. Raises TypeError or KeyError for files that another version wrote."""
    record = read_record(folder, step)
    setup = EvalSetup.from_mapping(cast("dict[str, Json]", record["setup"]))
    files = (folder.episode_file(step, evaluation=True), folder.evaluation_file(step, ".part.jsonl"))
    lines = [
        line for path in files[: 1 if files[0].is_file() else 2] if path.is_file() for line in read_json_lines(path)
    ]
    saved = {(one.group_id, one.index): one.episode for one in map(decode_saved, lines)}  # one that broke comes again
    rows: dict[int, list[Episode]] = {}
    for group, index in sorted(saved):
        rows.setdefault(group, []).append(saved[group, index])
    try:
        result = summarize([*rows.values()], "so far") if rows else None
    except InfraError:
        result = None
    if finished := bool(record.get("result")):
        result = EvalResult.from_mapping(cast("dict[str, Json]", record["result"]))
    status, planned = folder.status(), len(setup.numbers) * setup.samples_per_task
    times = [cast(float, line[ENDED]) for line in lines if cast(float, line.get(ENDED, 0.0)) >= status.time]
    return Progress(
        step=step,
        setup=setup,
        finished=finished,
        planned=planned,
        ended=len(saved),
        retries=sum(episode.retries for episode in saved.values()),
        result=result,
        left_s=_left_s(times, planned - len(saved)) if status.status is RunStatus.RUNNING else None,
    )


def unfinished_steps(folder: RunFolder) -> list[int]:
    """Whose evaluations were begun, and have no result."""
    steps = sorted(int(path.stem[5:]) for path in (folder.path / "evals").glob("step-??????.json"))
    records = {step: read_record(folder, step) for step in steps}
    return [step for step, record in records.items() if record.get("setup") and not record.get("result")]


def _left_s(times: Sequence[float], left: int) -> float | None:
    """times: at which episodes have ended, since the evaluation was started or resumed."""
    if len(times) < FEWEST or not left:
        return None
    return left * (times[-1] - times[0]) / (len(times) - 1)
