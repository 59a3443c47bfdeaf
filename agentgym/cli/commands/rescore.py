"""`agentgym runs rescore`: what other rewards would have given a run's saved episodes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentgym.cli.commands.episodes import asked_steps
from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import add_reward_argument
from agentgym.cli.rescoring import RescoredEvaluation, rescored_evaluations, save_rescored, score_again, scorer_of
from agentgym.cli.results import eval_table, figure, pass_table
from agentgym.cli.trust import add_trust_argument
from agentgym.commands.parser import Parser
from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder

if TYPE_CHECKING:
    from agentgym.evals.rescore import Rescored, Summary

DESCRIPTION = """
Score the episodes that a run or an evaluation saved once more, with other rewards or other weights, and say what
changes: each reward's mean, which groups would have had signal, and how many pairs of episodes of one group change
their order; of an evaluation the interval of its reward and pass@k, too. Nothing is played and nothing in the folder
is changed. --save keeps an evaluation's new scores as an evaluation of its own, which `agentgym compare`, `agentgym
view` and `agentgym runs episodes` read as any other.
"""
EXAMPLES = """
agentgym runs rescore runs/math-1 --reward success --reward format=0.1
agentgym runs rescore runs/math-1 --reward tests_passed --step all
agentgym runs rescore runs/math-1
agentgym runs rescore runs/math-1 --evals --reward length_penalty=-0.1 --episodes 50
agentgym runs rescore evals/math-1 --reward format --save math-1-format
agentgym runs rescore runs/math-1 --reward success --json
"""
TAKES_OVERRIDES = False
HEADER = ("reward", "weight", "mean before", "mean after", "missing")
CHANGED_HEADER = ("step", "episode", "task", "before", "after", "change")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run or of an evaluation")
    add_reward_argument(parser, "a reward")
    parser.add_argument("--step", metavar="N", help="of which step, or `all` (default: the last one saved)")
    parser.add_argument("--evals", action="store_true", help="the episodes of its evaluations")
    parser.add_argument("--episodes", type=int, metavar="N", help="at most so many (default: all)")
    parser.add_argument(
        "--save", nargs="?", const="", metavar="NAME", help="keep the scores of an evaluation as one of its own"
    )
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="changed episodes to show (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_trust_argument(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    folder = RunFolder.open(arguments.run)
    arguments.evals = arguments.evals or folder.only_evaluates
    kind, known = "evaluations" if arguments.evals else "episodes", folder.episode_steps(evaluation=arguments.evals)
    wanted = asked_steps(arguments.step, known) if known else []
    saved = [one for step in wanted for one in folder.read_episodes(step, evaluation=arguments.evals)]
    if arguments.save is not None and not (arguments.evals and arguments.episodes is None):
        raise UserError("--save keeps the scores of whole evaluations: give --evals, and leave --episodes out")
    saved = saved[: arguments.episodes]
    if not saved:
        raise UserError(f"{str(folder.path)!r} has no saved {kind} (logging.save_episodes decides that)")
    steps = sorted({one.step for one in saved})
    scorer, weights = scorer_of(folder, arguments.reward, shell, trust=arguments.trust)
    from agentgym.evals.rescore import summarize

    def progress(done: int, total: int) -> None:
        if done == total or done % 500 == 0:
            shell.warn(f"scored {done} of {total}")

    report = (lambda done, total: None) if arguments.json else progress
    scored = score_again(saved, scorer, shell, report, evaluation=arguments.evals)
    summary = summarize(scored)
    whole = arguments.evals and arguments.episodes is None
    evaluations = rescored_evaluations(folder, scored, saved) if whole else []
    made = ""
    if arguments.save is not None:
        if len(evaluations) < len(steps):
            raise UserError(f"the evaluation is not finished; continue it: agentgym eval --resume {folder.path}")
        made = str(save_rescored(folder, evaluations, weights, arguments.save))
    if arguments.json:
        results = [{"step": one.step, **one.after.to_mapping()} for one in evaluations]
        counts = {"rewards": dict(scorer.weights), "steps": steps, **asdict(summary), "evaluations": results}
        shell.say_json({**counts, "saved": made or None, "episodes": [_as_json(one) for one in scored]})
        return 0
    shell.say(_scope(steps, known, arguments.evals))
    _show(scored, summary, scorer.weights, len(saved), arguments, shell)
    for one in evaluations:
        _show_evaluation(one, shell)
    if made:
        shell.say(f"\nsaved in {made}: agentgym compare {made} SIDE")
    elif evaluations:
        shell.say("\nkeep it as an evaluation, to compare or view it: add --save")
    return 0


def _show_evaluation(one: RescoredEvaluation, shell: JobShell) -> None:
    shell.say(f"\nthe evaluation of step {one.step}")
    shell.say_table(*eval_table([one.before, one.after], ["as saved", "scored again"]))
    rewards = [figure(value) for value in (one.after.reward_mean, one.after.reward_low, one.after.reward_high)]
    shell.say(f"reward as scored again: {rewards[0]} [{rewards[1]}, {rewards[2]}] (95%)")
    header, rows = pass_table(one.after)
    if rows:
        shell.say_table(header, rows)


def _scope(steps: Sequence[int], known: Sequence[int], evals: bool) -> str:
    """Which of the saved episodes are scored again."""
    of = "the evaluations" if evals else "training"
    if len(known) == 1:
        return f"step {steps[0]} of {of}, the only one saved"
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    rest = "" if len(steps) == len(known) else f" alone, of {len(known)} that were saved; --step all scores all"
    return f"{which} of {of}{rest}"


def _show(
    scored: Sequence[Rescored],
    summary: Summary,
    weights: Mapping[str, float],
    num_saved: int,
    arguments: argparse.Namespace,
    shell: JobShell,
) -> None:
    befores = {name: None for one in scored for name in one.saved.episode.rewards}
    afters = {name: None for one in scored for name in one.after.rewards}
    rows = []
    for name in dict.fromkeys([*afters, *befores]):
        before = [one.saved.episode.rewards.get(name) for one in scored]
        after = [one.after.rewards.get(name) for one in scored]
        missing = sum(value is None for value in after) if name in afters else None
        weight = f"{weights[name]:g}" if name in weights else "-"
        rows.append((name, weight, _mean(before), _mean(after), "-" if missing is None else str(missing)))
    total = ("reward", "", figure(summary.mean_before), figure(summary.mean_after), "")
    shell.say_table(HEADER, [*rows, total])
    left_out = f"; {num_saved - len(scored)} that infrastructure broke are left out" if num_saved > len(scored) else ""
    shell.say(f"\n{summary.num_episodes} episodes, {summary.num_changed} with another reward{left_out}.")
    if summary.num_lost or summary.num_regained:
        shell.say(f"{summary.num_lost} could not be scored any more, {summary.num_regained} could be scored only now.")
        if error := next((one.after.error for one in scored if one.after.error is not None), None):
            shell.say(f"  such as {error.source}: {error.kind}: {error.message}")
    if summary.num_groups:
        share = f"{summary.num_reversed} of {summary.num_pairs}"
        shell.say(
            f"groups with signal: {summary.with_signal_before} of {summary.num_groups} before, "
            f"{summary.with_signal_after} after; pairs of a group that change their order: {share}"
        )
    changed = sorted((one for one in scored if one.change), key=lambda one: -abs(one.change))[: arguments.limit]
    if changed:
        shell.say("\nchanged most")
        shell.say_table(CHANGED_HEADER, [_row(one) for one in changed])
        evals = " --evals" if arguments.evals else ""
        first = changed[0].saved
        which = f"--step {first.step} --show {first.episode.episode_id}"
        shell.say(f"\nRead one: agentgym runs episodes {arguments.run}{evals} {which}")


def _row(one: Rescored) -> tuple[str, ...]:
    saved, episode = one.saved, one.saved.episode
    figures = (figure(episode.reward), figure(one.after.reward), f"{one.change:+.3f}")
    return (str(saved.step), episode.episode_id, episode.task.task_id, *figures)


def _as_json(one: Rescored) -> dict[str, object]:
    saved, error = one.saved, one.after.error
    return {
        "step": saved.step,
        "group": saved.group_id,
        "episode": saved.episode.episode_id,
        "before": saved.episode.reward,
        "after": one.after.reward,
        "rewards": one.after.rewards,
        "error": f"{error.source}: {error.message}" if error else None,
    }


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return figure(sum(known) / len(known) if known else None)
