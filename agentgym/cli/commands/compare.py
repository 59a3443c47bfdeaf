"""`agentgym compare`: two policies on the same held-out tasks, task by task."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agentgym.cli.commands.eval import add_eval_arguments, eval_flags, refuse_server_options
from agentgym.cli.comparing import Plan, Side, find_pairs, plan_sides, training_seed, unfinished
from agentgym.cli.evaluating import new_name, run_evaluation
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.recipes import add_recipe_arguments
from agentgym.cli.results import (
    UNKNOWN,
    USAGE_HEADER,
    difference_line,
    eval_table,
    figure,
    interval_text,
    measure_tables,
    usage_row,
)
from agentgym.cli.trust import add_trust_argument
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter

if TYPE_CHECKING:
    from agentgym.evals.compare import Comparison, Saved, TaskPair

DESCRIPTION = """
Compare two policies task by task: the difference with a 95% interval, the tasks won and lost with their episodes,
and what differs in the two configs. A and B are checkpoints, runs (their last checkpoints), folders of `agentgym eval`,
Hugging Face folders, hub names, builtin:tiny, or openai:NAME at --base-url (docs/outside_policies.md).

What is saved is taken as it is. What is missing is played with the tasks, seeds and environment of the other side, or
of A where both are missing, and saved in --evals-dir; an interrupted comparison goes on when it is called again.
Evaluations of other tasks, data, seeds or versions of the environment are refused with exit code 2.

A and B may be several runs with commas between them, as many on each side and trained with the same seeds: then a pair
of runs is the unit, and the interval says what another seed's pair would be like.
"""
EXAMPLES = """
agentgym compare builtin:tiny runs/math-1
agentgym compare runs/math-1 runs/math-2
agentgym compare runs/gspo-0,runs/gspo-1,runs/gspo-2 runs/grpo-0,runs/grpo-1,runs/grpo-2
agentgym compare runs/math-1/checkpoints/step-000020 runs/math-1 --samples 4
agentgym compare runs/math-1 runs/math-2 --tasks 200 --greedy --dry-run
agentgym compare runs/math-1 runs/math-2 --tasks 50 --again
agentgym compare evals/math-1 evals/math-2 --allow-mismatch
agentgym compare runs/math-1 openai:qwen3-8b --base-url http://127.0.0.1:8000/v1
agentgym compare runs/math-1 runs/math-2 --json
"""
TAKES_OVERRIDES = True
PAIR_HEADER = ("task", "first", "second", "episodes")
RUNS_HEADER = ("seed", "first", "second", "first", "second", "difference")
ONE_RUN = """
One run on each side: the interval is over tasks, of these two runs. Runs with another seed may differ by more; for a
claim about what differs in the configs give several of each: agentgym compare {first},... {second},..."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("first", metavar="A", help="a checkpoint, a run, an evaluation, a model, or several: A1,A2")
    parser.add_argument("second", metavar="B", help="the same; the result is B minus A")
    add_recipe_arguments(parser)
    add_eval_arguments(parser)
    parser.add_argument("--allow-mismatch", action="store_true", help="compare what both played, although it differs")
    parser.add_argument("--again", action="store_true", help="play both again, whatever is saved")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="tasks won and lost to show (default 10)")
    add_trust_argument(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    from agentgym.evals.compare import compare
    from agentgym.tables.comparing import comparison_json

    pairs = find_pairs(arguments.first, arguments.second)
    refuse_server_options([side.policy for sides in pairs for side in sides if side.policy], arguments)
    plans = [plan_sides(sides, eval_flags(arguments), arguments, shell) for sides in pairs]
    if arguments.dry_run:
        return _show_plan([plan for both in plans for plan in both], arguments, shell)
    reporter = choose_reporter(shell, "compare", as_json=arguments.json, plain=True)
    with contextlib.closing(reporter):
        played = [_played(both, arguments, reporter, shell) for both in plans]
        if len(played) > 1:
            seeds = [training_seed(b) if training_seed(a) is None else training_seed(a) for a, b in pairs]
            _show_runs(seeds, [(*both, compare(*both)) for both in played], arguments, shell)
            return 0
        [(first, second)] = played
        found = compare(first, second)
        compared = comparison_json(first, second, found)
        if arguments.json:
            shell.say(json.dumps({"event": "result", **compared}))
        else:
            _show(first, second, found, compared, arguments, shell)
            runs = {side.policy.run_dir for side in pairs[0] if side.policy}
            if len(runs - {None}) == 2:
                shell.say(ONE_RUN.format(first=arguments.first, second=arguments.second))
    return 0


def _played(
    plans: tuple[Plan, Plan], arguments: argparse.Namespace, reporter: Reporter, shell: JobShell
) -> tuple[Saved, Saved]:
    """Both sides. Raises UserError where they played something else, and that is not allowed."""
    from agentgym.evals.compare import mismatches
    from agentgym.evals.play import cut_line

    first, second = (plan.side.saved or _play(plan, reporter, shell) for plan in plans)
    for line in filter(None, (cut_line(first.result), cut_line(second.result))):
        shell.warn(line)
    differs = mismatches(first, second)
    if differs and not arguments.allow_mismatch:
        raise UserError(
            "these evaluations did not play the same:"
            + "".join(f"\n  {line}" for line in differs)
            + "\nGive --again to play both again, or --allow-mismatch to compare the tasks that both played."
        )
    return first, second


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


def _show_runs(
    seeds: Sequence[int | None],
    pairs: Sequence[tuple[Saved, Saved, Comparison]],
    arguments: argparse.Namespace,
    shell: JobShell,
) -> None:
    """Several runs on each side: each pair's difference, and what they say of another pair's."""
    from agentgym.evals.statistics import run_difference
    from agentgym.tables.comparing import found_json

    step = 1 / max(found.num_pairs for *_, found in pairs)
    shares = [found.success.mean for *_, found in pairs if found.success]
    success = run_difference(shares, resolution=step) if len(shares) == len(pairs) else None
    rewards = [found.reward.mean for *_, found in pairs if found.reward]
    reward = run_difference(rewards) if len(rewards) == len(pairs) else None
    main, moves = (success, shares) if success else (reward, rewards)
    if main is None:
        raise UserError("some pairs of runs know no success and others no reward: compare them pair by pair")
    if arguments.json:
        each = [
            {"seed": seed, "first": first.name, "second": second.name, **found_json(found)}
            for seed, (first, second, found) in zip(seeds, pairs, strict=True)
        ]
        overall = {"success": success and asdict(success), "reward": reward and asdict(reward)}
        shell.say(json.dumps({"event": "result", **overall, "pairs": each}))
        return
    rows = [
        (str(seed), first.name, second.name,
         *(figure(one.result.success if success else one.result.reward_mean) for one in (first, second)),
         f"{move:+.3f}")
        for seed, move, (first, second, _) in zip(seeds, moves, pairs, strict=True)
    ]  # fmt: skip
    shell.say_table(RUNS_HEADER, rows)
    shell.say(f"\n{len(pairs)} pairs of runs, {pairs[0][2].main.num_tasks} tasks. Second minus first:")
    if success is not None:
        shell.say(f"success: {interval_text(success)}; p = {success.chance:.3g}")
    if reward is not None:
        shell.say(f"reward: {interval_text(reward)}")
    shell.say(
        "A pair of runs is the unit: the interval is of what another seed's pair would show.\n"
        f"With so many runs a true difference of {main.smallest:.3f} would be clear in 8 of 10 comparisons."
    )


def _where(side: Side) -> str | None:
    return f"{side.saved.folder.path}, step {side.saved.step}" if side.saved else None


def _show(
    first: Saved,
    second: Saved,
    found: Comparison,
    compared: Mapping[str, Any],
    arguments: argparse.Namespace,
    shell: JobShell,
) -> None:
    main, tasks = found.main, found.main.num_tasks
    results, names = [one.result for one in (first, second)], [one.name for one in (first, second)]
    for table in (eval_table(results, names), *measure_tables(results, names)):
        shell.say_table(*table)
    if asked := [usage_row(one.result) for one in (first, second) if one.result.usage]:
        shell.say("")
        shell.say_table(USAGE_HEADER, asked)
    for line in compared["mismatches"]:
        shell.say(f"not the same: {line}")
    apart = f"; {found.num_unpaired} episodes have no partner" if found.num_unpaired else ""
    shell.say(f"\n{tasks} tasks, {found.num_pairs} pairs of episodes{apart}. Second minus first:")
    shell.say(difference_line(main, found.measure))
    if found.success is None:
        shell.say(UNKNOWN)
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
    fields = [tuple(one.values()) for one in compared["configs"]]
    shell.say("\nthe configs differ in" if fields else "\nthe configs are the same")
    if fields:
        shell.say_table(("field", "first", "second"), fields)


def _pair_row(pair: TaskPair) -> tuple[str, ...]:
    shares = (f"{pair.first}/{len(pair.first_episodes)}", f"{pair.second}/{len(pair.second_episodes)}")
    return (pair.task_id, *shares, ",".join(dict.fromkeys((*pair.first_episodes, *pair.second_episodes))))
