"""Measured success, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentgym.runs.report import sandbox_text

if TYPE_CHECKING:
    from agentgym.evals.checkpoints import Point
    from agentgym.evals.measures import Measured
    from agentgym.evals.play import EvalResult, PassAtK
    from agentgym.evals.statistics import PairedDifference, RunDifference
    from agentgym.run.ending import TrainResult
    from agentgym.runs.folder import RunFolder
    from agentgym.runs.report import Reporter

UNKNOWN = "success is unknown: the environment recorded none in `info`"
COUNTS = ("tasks", "episodes", "unsupported", "too long", "cut", "infra errors")


def eval_table(results: Sequence[EvalResult], names: Sequence[str] = ()) -> tuple[tuple[str, ...], list[list[str]]]:
    """Header and rows. Where no success is known the reward has the interval. names: instead of the checkpoints'."""
    known = any(result.measure == "success" for result in results)
    header = ("checkpoint", *(("success", "95% interval", "reward") if known else ("reward", "95% interval")), *COUNTS)
    rows = []
    for name, one in zip(names or [one.checkpoint for one in results], results, strict=True):
        success, reward = (figure(one.success), interval(one)), figure(one.reward_mean)
        measured = (*success, reward) if known else (reward, _interval(one.reward_low, one.reward_high))
        rows.append([name, *measured, *_counts(one)])
    return header, rows


def _counts(result: EvalResult) -> tuple[str, ...]:
    return (
        f"{result.num_tasks} of {result.num_asked}" if result.num_asked > result.num_tasks else str(result.num_tasks),
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


_TASKS_SHOWN = 100


def task_table(result: EvalResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: a row for each task; no rows where no task has a container of its own."""
    if all(one.container_s is None for one in result.tasks):
        return (), []
    shown = result.tasks[:_TASKS_SHOWN]
    ks = sorted({int(k) for one in shown for k in one.pass_at} - {1})
    header = ("task", "episodes", "success", "95% interval", *(f"pass@{k}" for k in ks), "reward")
    rows = [
        (
            one.task_id,
            str(one.num),
            figure(one.success),
            _interval(one.low, one.high),
            *(figure(one.pass_at.get(str(k))) for k in ks),
            figure(one.reward),
            *("-" if value is None else f"{value:.1f} s" for value in (one.seconds, one.container_s)),
        )
        for one in shown
    ]
    return (*header, "time", "container"), rows


MEASURES = "success by category of the tasks, and what the environment measures, each with its 95% interval"
_MEASURES_A_TABLE = 4  # which fit 120 characters


def measure_tables(
    results: Sequence[EvalResult], names: Sequence[str] = ()
) -> Iterator[tuple[tuple[str, ...], list[list[str]]]]:
    """Headers and rows: a row for each result, a column for each category and measure, in as many tables as fit."""
    found = [{one.name: one for one in (*result.by_category, *result.measures)} for result in results]
    columns = list(dict.fromkeys(name for one in found for name in one))
    for start in range(0, len(columns), _MEASURES_A_TABLE):
        chosen = columns[start : start + _MEASURES_A_TABLE]
        rows = [
            [name, *(f"{one[key].value:.3f} {interval(one[key])}" if key in one else "-" for key in chosen)]
            for name, one in zip(names or [result.checkpoint for result in results], found, strict=True)
        ]
        yield ("checkpoint", *chosen), rows


def show_result(result: EvalResult, environment: str, folder: RunFolder, reporter: Reporter) -> None:
    """All tables of one evaluation, and where it is saved."""
    reporter.table(f"{environment}, held-out tasks", *eval_table([result]))
    for table in measure_tables([result]):
        reporter.table(MEASURES, *table)
    if result.success is None and result.num_episodes:
        reporter.note(UNKNOWN)
    if result.sandbox:
        reporter.note(f"sandbox {result.sandbox}: {sandbox_text(result.sandbox_metrics)}")
    header, rows = pass_table(result)
    if result.usage:
        reporter.table("tokens of the server, and what they cost", USAGE_HEADER, [usage_row(result)])
    header_of_tasks, of_tasks = task_table(result)
    if of_tasks:
        title = "by task: time and container are means of an episode"
        reporter.table(title, header_of_tasks, of_tasks)
        if (more := len(result.tasks) - len(of_tasks)) > 0:
            reporter.note(f"... {more} more tasks: `tasks` of {folder.path}/evals/*.json has all")
    if rows:
        reporter.table("pass@k: the share of tasks that at least one of k samples solves", header, rows)
    reporter.note(f"\nsaved in {folder.path}: agentgym runs episodes {folder.path}")


USAGE_HEADER = ("checkpoint", "turns", "from the cache", "prompt", "cached", "completion", "reasoning", "cost", "paid")


def usage_row(result: EvalResult, name: str = "") -> tuple[str, ...]:
    """Tokens and cost of a policy behind a server. name: of the side of a comparison."""
    usage = result.usage
    names = ("turns", "turns_from_cache", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    costs = (f"{usage[name]:.4f} {result.currency}" if name in usage else "-" for name in ("cost", "paid_cost"))
    return (name or result.checkpoint, *(f"{usage[name]:,.0f}" for name in names), *costs)


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def interval(measured: EvalResult | PassAtK | Point | Measured) -> str:
    return _interval(measured.low, measured.high)


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"


def eval_json(result: EvalResult, folder: RunFolder) -> dict[str, object]:
    return {"event": "result", **result.to_mapping(), "folder": str(folder.path)}


def interval_text(difference: PairedDifference | RunDifference) -> str:
    verdict = "zero lies outside" if difference.is_clear else "zero lies inside: no clear difference"
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}] (95%, {verdict})"


def difference_line(difference: PairedDifference, what: str) -> str:
    counts = f"{difference.better} tasks better, {difference.worse} worse, {difference.equal} equal"
    return f"{what}: {interval_text(difference)}; {counts}"


def train_json(result: TrainResult) -> dict[str, object]:
    return {"event": "result", **asdict(result), "run_dir": str(result.run_dir)}
