"""`agentgym runs replay`: train a step of a run again from its saved episodes, and compare with what was recorded."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from agentgym.cli.jobs import JobShell, explained
from agentgym.cli.recipes import add_reward_argument, full_weights, given_weights
from agentgym.cli.trust import add_trust_argument, trusted
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import PlainReporter

if TYPE_CHECKING:
    from agentgym.evals.replay import StepAgain
    from agentgym.recipe import Recipe
    from agentgym.run.replay import Plan, Replay

DESCRIPTION = """
Train a step of a run again from its saved episodes, beginning with the checkpoint before it, and compare loss, gradient
norm and every other figure with what was recorded. Steps between the checkpoint and this one are trained first, and
compared as well. On a CPU of the same kind all figures are equal bit for bit; elsewhere they may differ by rounding, up
to --bound. Exit code 1 when they differ by more. Nothing in the run's folder is changed.

With another loss, advantage or reward the step is trained once more with that, from the same weights, and shown beside:
--loss.name gspo, --advantage.name rloo, --reward success. Fields of `trainer` say where it is computed.
"""
EXAMPLES = """
agentgym runs replay runs/math-1 --step 20
agentgym runs replay runs/math-1 --step 20 --loss.name reinforce
agentgym runs replay runs/math-1 --step 20 --advantage.name mean_only --reward success --reward format=0.1
agentgym runs replay runs/math-1 --step 20 --from-step 19 --json
"""
TAKES_OVERRIDES = True
WHAT_IF, WHERE = ("loss", "advantage"), ("trainer", "launcher")
SHARED = ("aggregation", "horizon")  # fields that every loss has
SHOWN = ("rollout/reward_mean", "rollout/success_mean", "loop/groups", "loop/staleness_mean")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run of `agentgym train`")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the step to train again")
    parser.add_argument(
        "--from-step", type=int, metavar="K", help="begin with this checkpoint (default: the nearest one before)"
    )
    add_reward_argument(parser, "what other rewards would have made of it")
    parser.add_argument(
        "--bound",
        type=float,
        metavar="X",
        help="the largest relative difference allowed (default: 0 on a CPU like the run's, else 0.001; bfloat16 0.05)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_trust_argument(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    with explained():
        from agentgym.run.replay import plan_replay
    if arguments.bound is not None and arguments.bound < 0:
        raise UserError(f"--bound is {arguments.bound}; give 0 or more")
    plan = plan_replay(RunFolder.open(arguments.run), arguments.step, arguments.from_step)
    recipe, changed, registry = _recipes(plan, arguments, shell)
    reporter = PlainReporter(shell.err)  # standard output has the result alone
    with contextlib.closing(reporter):
        for note in plan.notes:
            reporter.note(note)
        job = shell.jobs().replay(plan, recipe, reporter, changed=changed, registry=registry, bound=arguments.bound)
        result = run_until_stopped(job, shell.warn)
    if arguments.json:
        shell.say_json(_as_json(result))
    else:
        _show(result, shell)
    return 0 if result.holds else 1


def _recipes(
    plan: Plan, arguments: argparse.Namespace, shell: JobShell
) -> tuple[Recipe, Recipe | None, PluginRegistry]:
    """The run's own, and the changed one where something of the loss, the advantage or the rewards was given."""
    from agentgym.recipe import build_recipe
    from agentgym.rollout.environments import build_environment

    where = str(plan.folder.path)
    other: list[str] = []
    what_if: list[str] = []
    for word in arguments.overrides:
        section = word.removeprefix("--").partition("=")[0].partition(".")[0]
        if section not in (*WHAT_IF, *WHERE):
            raise UserError(
                f"{word}: a step is trained again from what was played, so only fields of {', '.join(WHAT_IF)} and "
                f"rewards can differ, and where it is computed ({', '.join(WHERE)})"
            )
        (what_if if section in WHAT_IF else other).append(word)
    trusted(plan.folder.path, plan.start.config, trust=arguments.trust, shell=shell)
    base = apply_overrides(plan.start.config, other)
    recipe = build_recipe(base, where, shell.plugins)
    registry = shell.plugins(recipe.plugins.disabled)
    if not what_if and not arguments.reward:
        return recipe, None, registry
    given = dict(base)
    for name in WHAT_IF:  # another loss has other fields
        section = given.get(name)
        if isinstance(section, dict) and any(word.removeprefix("--").startswith(f"{name}.name=") for word in what_if):
            given[name] = {key: section[key] for key in ("name", *SHARED) if key in section}
    weights = given_weights(arguments.reward)
    if weights:
        environment = build_environment(registry, recipe.env.name, recipe.env.options)
        given["rewards"] = full_weights(weights, environment, registry)
    return recipe, build_recipe(apply_overrides(given, what_if), where, shell.plugins), registry


def _show(result: Replay, shell: JobShell) -> None:
    for step in result.steps:
        shell.say(_line(step, result.bound))
    last = result.steps[-1]
    far = {figure.key for figure in last.beyond(result.bound)}
    shown = [one for one in last.figures if one.key.startswith("train/") or one.key in SHOWN or one.key in far]
    header = ["figure", "recorded", "again", "difference"]
    rows = [
        [one.key, _text(one.recorded), _text(one.again), "0" if one.is_equal else f"{one.error:.1e}"] for one in shown
    ]
    if result.changed is not None:
        header.append("with these settings")
        known = {one.key for one in shown}
        rows = [[*row, _text(result.changed.get(row[0]))] for row in rows]
        extra = [key for key in result.changed if key.startswith("train/") and not key.startswith("train/time/")]
        rows += [[key, "-", "-", "", _text(result.changed[key])] for key in extra if key not in known]
    shell.say(f"\nstep {last.step}")
    shell.say_table(header, rows)
    shell.say(f"\n{_verdict(result)}")


def _line(step: StepAgain, bound: float) -> str:
    count = len(step.figures)
    if step.is_equal:
        return f"step {step.step}: all {count} figures equal, bit for bit"
    num = sum(not figure.is_equal for figure in step.figures)
    worst = step.worst
    beyond = f", {len(far)} beyond {bound:g}" if (far := step.beyond(bound)) else ""
    return f"step {step.step}: {num} of {count} figures differ{beyond}; most: {worst.key} by {worst.error:.1e}"


def _verdict(result: Replay) -> str:
    steps = f"step {result.steps[-1].step}" if len(result.steps) == 1 else f"{len(result.steps)} steps"
    if result.is_equal:
        return f"{steps}: equal to what was recorded, bit for bit"
    where = "" if result.same_machine else f"; the machine is another: {_machines(result)}"
    if result.holds:
        return f"{steps}: equal to what was recorded within {result.bound:g}{where}"
    return f"{steps}: NOT what was recorded, within {result.bound:g}{where}"


def _machines(result: Replay) -> str:
    before = result.plan.start.machine
    if not before:
        return "the run did not record its own"
    differing = [key for key in result.machine if before.get(key) != result.machine[key]]
    return "; ".join(f"{key} {before.get(key, '-')} then, {result.machine[key]} now" for key in differing)


def _as_json(result: Replay) -> dict[str, object]:
    return {
        "step": result.plan.step,
        "checkpoint": result.plan.checkpoint,
        "equal": result.is_equal,
        "holds": result.holds,
        "bound": result.bound,
        "machine": {"then": dict(result.plan.start.machine), "now": dict(result.machine)},
        "notes": result.plan.notes,
        "steps": [
            {
                "step": step.step,
                "equal": step.is_equal,
                "figures": {one.key: {"recorded": one.recorded, "again": one.again} for one in step.figures},
            }
            for step in result.steps
        ],
        "changed": result.changed,
    }


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.9g}"
