"""Measured success, as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.evals.play import EvalResult, PassAtK
    from agentgym.evals.statistics import PairedDifference, RunDifference
    from agentgym.run.ending import TrainResult
    from agentgym.runs.folder import RunFolder

HEADER = (
    "checkpoint",
    "success",
    "95% interval",
    "reward",
    "tasks",
    "episodes",
    "unsupported",
    "too long",
    "cut",
    "infra errors",
)


def eval_row(result: EvalResult) -> tuple[str, ...]:
    return (
        result.checkpoint,
        figure(result.success),
        interval(result),
        figure(result.reward_mean),
        str(result.num_tasks),
        str(result.num_episodes),
        str(result.num_unsupported),
        str(result.num_too_long),
        str(result.num_cut),
        str(result.num_infra_errors),
    )


def pass_table(result: EvalResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: a row for all tasks, and for each difficulty where there are several."""
    ks = sorted({one.k for one in result.pass_at})
    header = ("difficulty", "tasks", *(text for k in ks for text in (f"pass@{k}", "95% interval")))
    rows = []
    for difficulty in dict.fromkeys(one.difficulty for one in result.pass_at):
        shares = {one.k: one for one in result.pass_at if one.difficulty == difficulty}
        cells = [
            text
            for k in ks
            for text in ((f"{shares[k].value:.3f}", interval(shares[k])) if k in shares else ("-", "-"))
        ]
        name = "all" if difficulty is None else str(difficulty)
        rows.append((name, str(max(one.num_tasks for one in shares.values())), *cells))
    return header, rows


USAGE_HEADER = ("checkpoint", "turns", "from the cache", "prompt", "cached", "completion", "reasoning", "cost", "paid")


def usage_row(result: EvalResult) -> tuple[str, ...]:
    """Tokens and cost of a policy behind a server."""
    usage = result.usage
    names = ("turns", "turns_from_cache", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    priced = bool(usage["cost"])  # else no price was given, and the cost is not known
    costs = (f"{usage[name]:.4f} {result.currency}" if priced else "-" for name in ("cost", "paid_cost"))
    return (result.checkpoint, *(f"{usage[name]:,.0f}" for name in names), *costs)


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def interval(measured: EvalResult | PassAtK) -> str:
    return "-" if measured.low is None else f"[{measured.low:.3f}, {measured.high:.3f}]"


def eval_json(result: EvalResult, folder: RunFolder) -> dict[str, object]:
    return {"event": "result", **result.to_mapping(), "folder": str(folder.path)}


def interval_text(difference: PairedDifference | RunDifference) -> str:
    verdict = "zero lies outside" if difference.is_clear else "zero lies inside: no clear difference"
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}] (95%, {verdict})"


def difference_line(difference: PairedDifference, what: str = "last minus first, task by task") -> str:
    counts = f"{difference.better} tasks better, {difference.worse} worse, {difference.equal} equal"
    return f"{what}: {interval_text(difference)}; {counts}"


def train_json(result: TrainResult) -> dict[str, object]:
    return {"event": "result", **asdict(result), "run_dir": str(result.run_dir)}
