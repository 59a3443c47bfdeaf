"""`agentgym compare`: policies on the same held-out tasks, task by task."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentgym.cli.commands.eval import add_eval_arguments, eval_flags, refuse_server_options
from agentgym.cli.comparing import Plan, Side, find_rows, ordered, plan_sides, training_seed, unfinished
from agentgym.cli.comparison_text import OTHER_REWARDS, show_differing, show_many, show_runs, show_sides
from agentgym.cli.evaluating import check_playable, new_name, run_evaluation
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.recipes import add_recipe_arguments
from agentgym.cli.rescoring import scored_by
from agentgym.cli.results import UNKNOWN, difference_line
from agentgym.cli.trust import add_trust_argument
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter

if TYPE_CHECKING:
    from agentgym.evals.compare import Comparison, Saved, TaskPair

DESCRIPTION = """
Compare policies task by task, each with the first one or with --against NAME: the difference with a 95% interval, the
tasks won and lost with their episodes, and one table of what differs between the sides. A SIDE is a checkpoint, a run
(its last checkpoint), a folder of `agentgym eval` or of `agentgym runs rescore --save`, a Hugging Face folder, a hub
name, builtin:tiny, or openai:NAME at --base-url (docs/outside_policies.md).

With more than two sides the intervals are simultaneous and the p-values adjusted, so that the chance of a single false
"better" or "worse" in the whole table is at most 5%.

What is saved is taken as it is. What is missing is played with the tasks, seeds and environment of the first side that
is saved, and saved in --evals-dir; an interrupted comparison goes on when it is called again. Evaluations of other
tasks, data, seeds or versions of the environment are refused with exit code 2. Rewards are compared where all sides
have the same; with --reward all sides are scored by those that you give.

A side may be several runs with commas between them, as many on each side and trained with the same seeds: then the
runs of a seed are the unit, and the interval says what another seed's would be like.
"""
EXAMPLES = """
agentgym compare builtin:tiny runs/math-1
agentgym compare runs/math-1 runs/math-2
agentgym compare runs/math-1 runs/math-2 runs/math-3 --against runs/math-2
agentgym compare runs/gspo-0,runs/gspo-1,runs/gspo-2 runs/grpo-0,runs/grpo-1,runs/grpo-2
agentgym compare runs/math-1/checkpoints/step-000020 runs/math-1 --samples 4
agentgym compare runs/math-1 runs/math-2 --tasks 200 --greedy --dry-run
agentgym compare runs/math-1 runs/math-2 --tasks 50 --again
agentgym compare evals/math-1 evals/math-2 --allow-mismatch
agentgym compare evals/math-1 evals/math-2 --reward success --reward format=0.1
agentgym compare runs/math-1 openai:qwen3-8b --base-url http://127.0.0.1:8000/v1
agentgym compare runs/math-1 runs/math-2 --json
"""
TAKES_OVERRIDES = True
PAIR_HEADER = ("task", "first", "second", "episodes")
ONE_RUN = """
One run on each side: the intervals are over tasks, of these runs. Runs with another seed may differ by more; for a
claim about what differs in the configs give several of each: agentgym compare {each}"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("first", metavar="SIDE", help="a checkpoint, run, evaluation or model, or several: A1,A2")
    parser.add_argument("others", nargs="+", metavar="SIDE", help="the same; each is compared with the first")
    parser.add_argument("--against", metavar="NAME", help="the side that the others are compared with (the first)")
    add_recipe_arguments(parser)
    add_eval_arguments(parser)
    parser.add_argument("--allow-mismatch", action="store_true", help="compare what both played, although it differs")
    parser.add_argument("--again", action="store_true", help="play all again, whatever is saved")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="tasks won and lost to show (default 10)")
    add_trust_argument(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    from agentgym.evals.compare import compare_all
    from agentgym.tables.comparing import comparison_json, comparisons_json

    given = ordered([arguments.first, *arguments.others], arguments.against)
    rows = find_rows(given)
    refuse_server_options([side.policy for sides in rows for side in sides if side.policy], arguments)
    plans = [plan_sides(sides, eval_flags(arguments), arguments, shell) for sides in rows]
    if arguments.dry_run:
        return _show_plan([plan for row in plans for plan in row], arguments, shell)
    for plan in (plan for row in plans for plan in row):
        if plan.finished is not None and not plan.side.saved:
            check_playable(plan.finished)  # before the first is played
    reporter = choose_reporter(shell, "compare", as_json=arguments.json, plain=True)
    with contextlib.closing(reporter):
        played = [_played(row, arguments, reporter, shell) for row in plans]
        found = [compare_all(row[0], row[1:]) for row in played]
        if len(played) > 1:
            show_runs([_seed(row) for row in rows], given, played, found, arguments, shell)
            return 0
        sides = played[0]
        if arguments.json:
            pair = len(sides) == 2
            made = comparison_json(sides[0], sides[1], found[0][0]) if pair else comparisons_json(sides, found[0])
            shell.say(json.dumps({"event": "result", **made}))
            return 0
        if len(sides) > 2:
            show_many(sides, found[0], shell)
        else:
            _show(sides[0], sides[1], found[0][0], arguments, shell)
        runs = {side.policy.run_dir for side in rows[0] if side.policy}
        if len(runs - {None}) == len(sides):
            shell.say(ONE_RUN.format(each=" ".join(f"{name},..." for name in given)))
    return 0


def _seed(row: Sequence[Side]) -> int | None:
    return next((seed for side in row if (seed := training_seed(side)) is not None), None)


def _played(plans: Sequence[Plan], arguments: argparse.Namespace, reporter: Reporter, shell: JobShell) -> list[Saved]:
    """All sides. Raises UserError where they played something else, and that is not allowed."""
    from agentgym.evals.differing import mismatches
    from agentgym.evals.play import cut_line

    sides = [plan.side.saved or _play(plan, reporter, shell) for plan in plans]
    if arguments.reward:
        sides = [scored_by(side, arguments.reward, shell, trust=arguments.trust) for side in sides]
    for line in filter(None, (cut_line(side.result) for side in sides)):
        shell.warn(line)
    first = sides[0]
    for side in sides[1:]:
        if (side.folder.path, side.step) == (first.folder.path, first.step):
            raise UserError(f"{first.name!r} and {side.name!r} are the same evaluation: {_where(plans[0].side)}")
        differs = mismatches(first, side)
        apart = not first.digests.keys() & side.digests.keys()
        if differs and (apart or not arguments.allow_mismatch):
            fixed = any(plan.side.policy is None for plan in plans)
            again = "Give their checkpoints" if fixed else "Give --again"
            rest = (
                "with one environment and seed (--env, --seed)" if apart else "or --allow-mismatch for what both played"
            )
            raise UserError(
                f"{first.name} and {side.name} " + ("share no task:" if apart else "did not play the same:")
                + "".join(f"\n  {line}" for line in differs)
                + f"\n{again} to play all again, {rest}."
            )  # fmt: skip
    return sides


def _play(plan: Plan, reporter: Reporter, shell: JobShell) -> Saved:
    """Play what is missing of one side, in a folder of its own, which may be that of an interrupted evaluation."""
    from agentgym.evals.compare import Saved

    assert plan.side.policy is not None and plan.finished is not None
    policy, (recipe, sources, registry) = plan.side.policy, plan.finished
    started = unfinished(policy, recipe)
    before = started.status() if started else None
    if started is not None:
        made = RunFolder.open(started.path, for_writing=True)
    else:
        made = RunFolder.create(recipe.logging.evals_dir, new_name(policy, recipe), numbered=True)
    with made as folder:
        reporter.note(f"{plan.side.given} is played; saved in {folder.path}")
        run_evaluation(recipe, sources, folder, registry, reporter, shell.jobs(), run_until_stopped, before=before)
        saved = Saved.load(folder, policy.step, plan.side.given)
    assert saved is not None
    return saved


def _show_plan(plans: Sequence[Plan], arguments: argparse.Namespace, shell: JobShell) -> int:
    rows = [(plan.side.given, _where(plan.side), plan.what) for plan in plans]
    if arguments.json:
        shell.say(json.dumps([{"given": given, "saved": saved, "plays": what} for given, saved, what in rows]))
        return 0
    shell.say("Nothing was started.")
    for given, saved, what in rows:
        shell.say(f"  {given}: " + (f"saved in {saved}" if saved else f"would be played, {what}"))
    return 0


def _where(side: Side) -> str | None:
    return f"{side.saved.folder.path}, step {side.saved.step}" if side.saved else None


def _show(first: Saved, second: Saved, found: Comparison, arguments: argparse.Namespace, shell: JobShell) -> None:
    main, tasks = found.main, found.main.num_tasks
    show_sides([first, second], shell)
    apart = f"; {found.num_unpaired} episodes have no partner" if found.num_unpaired else ""
    shell.say(f"\n{tasks} tasks, {found.num_pairs} pairs of episodes{apart}. Second minus first:")
    shell.say(difference_line(main, found.measure))
    if found.success is None:
        shell.say(UNKNOWN)
    elif found.other_rewards:
        shell.say(OTHER_REWARDS + found.other_rewards)
    elif found.reward is not None and found.reward.equal == tasks:
        shell.say("reward: the same in every task, so it has no interval")
    elif found.reward is not None:
        low, high = found.reward.low, found.reward.high
        shell.say(f"reward: {found.reward.mean:+.3f} [{low:+.3f}, {high:+.3f}] (95%)")
    shell.say(
        f"won {main.better}, lost {main.worse}: McNemar's exact test over tasks gives p = {main.chance:.3g}\n"
        f"With so many tasks a true difference of {main.smallest:.3f} would be clear in 8 of 10 comparisons."
    )
    for title, pairs in (("won", found.won), ("lost", found.lost)):
        if pairs:
            more = f", {arguments.limit} of them shown" if len(pairs) > arguments.limit else ""
            shell.say(f"\n{len(pairs)} tasks {title}{more}")
            shell.say_table(PAIR_HEADER, [_pair_row(pair) for pair in pairs[: arguments.limit]])
    for one in (first, second):
        shell.say(("\n" if one is first else "") + f"read one: agentgym runs episodes {one.folder.path} --evals "
                  f"--step {one.step} --show EPISODE")  # fmt: skip
    show_differing([first, second], ("first", "second"), shell)


def _pair_row(pair: TaskPair) -> tuple[str, ...]:
    shares = (f"{pair.first}/{len(pair.first_episodes)}", f"{pair.second}/{len(pair.second_episodes)}")
    return (pair.task_id, *shares, ",".join(dict.fromkeys((*pair.first_episodes, *pair.second_episodes))))
