"""Saved evaluations for scripts and notebooks: their summaries, and summaries or episodes as a pandas DataFrame.

import agentgym.results

frame = agentgym.results.load("evals", env="code_exec")
frame.sort_values("success")[["policy", "success", "success_low", "success_high"]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from agentgym.errors import UserError
from agentgym.evals.summary import EvaluationSummary, PassShare, RewardMean, Share
from agentgym.tables.leaderboard import chosen
from agentgym.tables.ranked_rows import names_of, rows_of
from agentgym.tables.roots import cache_folder
from agentgym.tables.summaries import find_runs, read_evaluations

if TYPE_CHECKING:
    import pandas

__all__ = ["EvaluationSummary", "PassShare", "RewardMean", "Share", "load", "summaries"]

NOT_SHOWN = ("source", "step", "versions", "start_version", "oldest", "newest", "staleness", "advantage", "trained")
"""Columns of episodes that are about training."""
Rows: TypeAlias = Literal["evaluations", "seeds", "episodes"]


def summaries(*folders: str | Path, env: str | Sequence[str] = ()) -> list[EvaluationSummary]:
    """The finished evaluations in folders, the newest first. Needs no pandas.

    folders: runs, evaluations, or folders that hold them; none are `runs` and `evals`. env: the names of environments
    that are wanted, or NAME@VERSION; none are all. Raises UserError for a folder in which no run is, and for an
    environment that no evaluation has.
    """
    found = read_evaluations(find_runs(folders), cache_folder()).summaries
    envs = [env] if isinstance(env, str) else env
    return [one for row in chosen(rows_of(found, seeds=False), envs=envs) for one in row.members]


def load(*folders: str | Path, rows: Rows = "evaluations", env: str | Sequence[str] = ()) -> pandas.DataFrame:
    """A DataFrame of what `summaries` finds; an unknown value is missing (NaN or None).

    rows: `evaluations` has a row for each, with the columns of `agentgym leaderboard --format csv`; `seeds` joins the
    runs of a recipe that differ in their seed, with the intervals over runs; `episodes` has a row for each episode,
    with its task, success, rewards as `reward.NAME`, tokens and seconds. Raises UserError as `summaries`, and where
    pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UserError("a DataFrame needs pandas: pip install pandas. agentgym.results.summaries needs none") from None
    if rows not in (known := ("evaluations", "seeds", "episodes")):
        raise UserError(f"rows is {rows!r}; give one of {', '.join(known)}")
    found = summaries(*folders, env=env)
    if rows == "episodes":
        return pandas.DataFrame([row for one in found for row in _episodes(one)])
    ordered = rows_of(found, seeds=rows == "seeds")
    return pandas.DataFrame([row.flat(*names_of(ordered)) for row in ordered])


def _episodes(one: EvaluationSummary) -> Iterator[dict[str, Any]]:
    from agentgym.tables.run import Run

    known = {
        "policy": one.policy, "benchmark": one.benchmark, "version": one.version, "folder": one.folder,
        "file_step": one.file_step,
    }  # fmt: skip
    table = Run.at(Path(one.folder)).episodes.read()
    for row in table.part("eval", one.file_step).rows:
        values = {
            key: column[row] for key, column in table.columns.items() if key not in ("source", "step", "versions")
        }
        rewards = {f"reward.{name}": value for name, value in values.pop("rewards").items()}
        yield {**known, **values, **rewards}
