"""The comparison at a run's end."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from agentgym.evals.play import EvalResult
from agentgym.run.ending import compare_ends
from agentgym.runs.folder import RunFolder
from agentgym.types import Json


def test_ends_of_one_task_are_both_kept_though_they_have_no_interval(lab, tmp_path: Path) -> None:
    one = EvalResult(
        checkpoint="step-000002",
        success=1.0,
        low=0.1,
        high=1.0,
        reward_mean=1.0,
        num_tasks=1,
        num_episodes=1,
        num_unsupported=0,
        num_infra_errors=0,
        by_task=((True,),),
    )
    reporter = lab.reporter()
    with RunFolder.create(tmp_path, "one") as folder:
        result = compare_ends(folder, reporter, 2, one, one)
        last = cast("dict[str, Json]", folder.load_comparison()["last"])
    assert EvalResult.from_mapping(last) == one
    assert result.difference is None and (result.first, result.last) == (one, one)
    [line] = reporter.notes
    assert "not compared" in line and "at least 2" in line
