"""`agentgym runs rescore`: what other rewards would have given a run's saved episodes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentgym.cli.commands.episodes import asked_steps
from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import add_reward_argument, full_weights, given_weights
from agentgym.cli.results import figure
from agentgym.cli.trust import add_trust_argument, trusted
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder

if TYPE_CHECKING:
    from agentgym.evals.rescore import Rescored, Summary
    from agentgym.rollout.scoring import Scorer

DESCRIPTION = """
Score the episodes that a run or an evaluation saved once more, with other rewards or other weights, and say what
changes: each reward's mean, which groups would have had signal, and how many pairs of episodes of one group change
their order. Nothing is played and nothing in the folder is changed.
"""
EXAMPLES = """
agentgym runs rescore runs/math-1 --reward success --reward format=0.1
agentgym runs rescore runs/math-1 --reward tests_passed --step all
agentgym runs rescore runs/math-1
agentgym runs rescore runs/math-1 --evals --reward length_penalty=-0.1 --episodes 50
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
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="changed episodes to show (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_trust_argument(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    folder = RunFolder.open(arguments.run)
    arguments.evals = arguments.evals or folder.only_evaluates
    kind, known = "evaluations" if arguments.evals else "episodes", folder.episode_steps(evaluation=arguments.evals)
    wanted = asked_steps(arguments.step, known) if known else []
    saved = [one for step in wanted for one in folder.read_episodes(step, evaluation=arguments.evals)]
    saved = saved[: arguments.episodes]
    if not saved:
        raise UserError(f"{str(folder.path)!r} has no saved {kind} (logging.save_episodes decides that)")
    steps = sorted({one.step for one in saved})
    scorer, weights = _scorer(folder, arguments, shell)
    from agentgym.evals.rescore import rescore, summarize

    def progress(done: int, total: int) -> None:
        if done == total or done % 500 == 0:
            shell.warn(f"scored {done} of {total}")

    async def job() -> list[Rescored]:
        async with scorer:
            report = (lambda done, total: None) if arguments.json else progress
            return await rescore(saved, scorer, report, evaluation=arguments.evals)

    scored = run_until_stopped(job(), shell.warn)
    summary = summarize(scored)
    if arguments.json:
        shell.say_json(
            {"rewards": weights, "steps": steps, **asdict(summary), "episodes": [_as_json(one) for one in scored]}
        )
    else:
        shell.say(_scope(steps, known, arguments.evals))
        _show(scored, summary, weights, len(saved), arguments, shell)
    return 0


def _scope(steps: Sequence[int], known: Sequence[int], evals: bool) -> str:
    """Which of the saved episodes are scored again."""
    of = "the evaluations" if evals else "training"
    if len(known) == 1:
        return f"step {steps[0]} of {of}, the only one saved"
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    rest = "" if len(steps) == len(known) else f" alone, of {len(known)} that were saved; --step all scores all"
    return f"{which} of {of}{rest}"


def _scorer(folder: RunFolder, arguments: argparse.Namespace, shell: JobShell) -> tuple[Scorer, dict[str, float]]:
    """A scorer of the environment that the folder's recipe names, as it is installed now."""
    from agentgym.env import default_weights
    from agentgym.recipe import build_recipe
    from agentgym.rollout.environments import build_environment
    from agentgym.rollout.scoring import Scorer, find_reward

    config = folder.load_config()
    trusted(folder.path, config, trust=arguments.trust, shell=shell)
    recipe = build_recipe(config, str(folder.path), shell.plugins)
    registry = shell.plugins(recipe.plugins.disabled)
    environment = build_environment(registry, recipe.env.name, recipe.env.options)
    found = full_weights(given_weights(arguments.reward), environment, registry)
    weights = found or dict(recipe.rewards) or default_weights(environment)
    by_name = {find_reward(key, environment, registry).name: weight for key, weight in weights.items()}
    return Scorer.of(environment, registry, weights), by_name  # an import path has a name of its own in an episode


def _show(
    scored: Sequence[Rescored],
    summary: Summary,
    weights: dict[str, float],
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
