"""Measured success, as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.evals.play import EvalResult
    from agentgym.evals.statistics import PairedDifference
    from agentgym.jobs.train import TrainResult

HEADER = (
    "checkpoint",
    "success",
    "95% interval",
    "reward",
    "tasks",
    "episodes",
    "unsupported",
    "too long",
    "infra errors",
)


def eval_row(result: EvalResult) -> tuple[str, ...]:
    return (
        result.checkpoint,
        f"{result.success:.3f}",
        f"[{result.low:.3f}, {result.high:.3f}]",
        f"{result.reward_mean:.3f}",
        str(result.num_tasks),
        str(result.num_episodes),
        str(result.num_unsupported),
        str(result.num_too_long),
        str(result.num_infra_errors),
    )


def difference_line(difference: PairedDifference) -> str:
    verdict = "zero lies outside" if difference.is_clear else "zero lies inside: no clear difference"
    return (
        f"last minus first, task by task: {difference.mean:+.3f} "
        f"[{difference.low:+.3f}, {difference.high:+.3f}] (95%, {verdict}); "
        f"{difference.better} tasks better, {difference.worse} worse, {difference.equal} equal"
    )


def train_json(result: TrainResult) -> dict[str, object]:
    return {"event": "result", **asdict(result), "run_dir": str(result.run_dir)}
