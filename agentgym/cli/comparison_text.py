"""A comparison as `agentgym compare` prints it: the sides, the differences of several with one, and what differs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from agentgym.cli.results import UNKNOWN, USAGE_HEADER, eval_table, figure, interval_text, measure_tables, usage_row
from agentgym.commands.shell import Shell
from agentgym.errors import UserError

if TYPE_CHECKING:
    from agentgym.evals.compare import Comparison, Saved
    from agentgym.evals.statistics import PairedDifference, RunDifference

OTHER_REWARDS = "reward: not compared, since other rewards scored the sides (--reward NAME scores all alike): "
MANY_HEADER = ("side", "difference", "interval", "p", "verdict")
_CORRECTED = "Each minus {}, corrected for {} comparisons:"
_MEASURES = ("success", "reward")


def show_sides(sides: Sequence[Saved], shell: Shell) -> None:
    """Each side's own figures."""
    results, names = [one.result for one in sides], [one.name for one in sides]
    for table in (eval_table(results, names), *measure_tables(results, names)):
        shell.say_table(*table)
    if asked := [usage_row(one.result, one.name) for one in sides if one.result.usage]:
        shell.say("")
        shell.say_table(USAGE_HEADER, asked)


def show_differing(sides: Sequence[Saved], names: Sequence[str], shell: Shell) -> None:
    """One table of what is not the same on all sides."""
    from agentgym.evals.differing import differing

    fields = [(one.field, *one.values) for one in differing(sides)]
    shell.say("\nthe sides differ in" if fields else "\nthe sides differ in nothing")
    if fields:
        shell.say_table(("field", *names), fields)


def show_many(sides: Sequence[Saved], found: Sequence[Comparison], shell: Shell) -> None:
    """Several sides, each compared with the first."""
    names = [one.name for one in sides]
    show_sides(sides, shell)
    measures = [what for what in _MEASURES if all(getattr(one, what) is not None for one in found)]
    if not measures:
        raise UserError("success is known of some sides only, and so are rewards: compare them in pairs")
    for what in measures:
        shell.say(f"\n{what}, {found[0].main.num_tasks} tasks. {_CORRECTED.format(names[0], len(found))}")
        moves = [getattr(one, what) for one in found]
        counts = [(one.better, one.worse, one.equal) for one in moves]
        rows = [(*_row(*one), *map(str, more)) for *one, more in zip(names[1:], moves, counts, strict=True)]
        shell.say_table((*MANY_HEADER, "won", "lost", "equal"), rows)
    if measures[0] == "reward":
        shell.say(UNKNOWN)
    for name, one in zip(names[1:], found, strict=True):
        if one.other_rewards:
            shell.say(f"{name}, {OTHER_REWARDS}{one.other_rewards}")
        if one.num_unpaired:
            shell.say(f"{name}: {one.num_unpaired} episodes have no partner")
    shell.say(
        "The intervals hold together at 95%, and p is McNemar's exact test over tasks, adjusted by Holm's method: the\n"
        "chance of a single false verdict in a table is at most 5%.\nWith so many tasks a true difference of "
        f"{max(getattr(one, measures[0]).smallest for one in found):.3f} would be clear in 8 of 10 such comparisons."
        f"\n\ntasks won and lost: agentgym compare {names[0]} SIDE"
    )
    show_differing(sides, names, shell)


def _row(name: str, one: PairedDifference | RunDifference) -> tuple[str, ...]:
    if one.low == one.high:  # the same move in every task: an interval of no width misleads
        return (name, f"{one.mean:+.3f}", "-", "-", "-" if one.mean else "the same")
    verdict = "not clear" if not one.is_clear else "better" if one.mean > 0 else "worse"
    return (name, f"{one.mean:+.3f}", f"[{one.low:+.3f}, {one.high:+.3f}]", f"{one.chance:.3g}", verdict)


def show_runs(
    seeds: Sequence[int | None],
    given: Sequence[str],
    rows: Sequence[Sequence[Saved]],
    found: Sequence[Sequence[Comparison]],
    arguments: argparse.Namespace,
    shell: Shell,
) -> None:
    """Several runs on each side: the differences of each seed, and what they say of another seed's.

    rows: the sides of each seed. found: of each seed, the others compared with the first.
    """
    sides = [{"success": a, "reward": b} for a, b in zip(*(_over_runs(found, of) for of in _MEASURES), strict=True)]
    of = next((of for of in _MEASURES if all(one[of] for one in sides)), None)
    if of is None:
        raise UserError("some runs know no success and others no reward, or another: compare them pair by pair")
    if arguments.json:
        shell.say(json.dumps({"event": "result", **_runs_json(seeds, given, rows, found, sides)}))
        return
    table = []
    for seed, row, compared in zip(seeds, rows, found, strict=True):
        for side, one in zip(row, (None, *compared), strict=True):
            value = side.result.success if of == "success" else side.result.reward_mean
            move = "" if one is None else f"{getattr(one, of).mean:+.3f}"
            table.append((str(seed), side.name, figure(value), move))
    shell.say_table(("seed", "run", of, "minus first"), table)
    shell.say(f"\n{len(rows)} {'pairs of ' * (len(given) == 2)}runs on a side, {found[0][0].main.num_tasks} tasks.")
    known = [one for side in sides if (one := side[of])]
    if len(given) > 2:
        shell.say(f"{of}: {_CORRECTED.format(given[0], len(sides))}")
        shell.say_table(MANY_HEADER, [_row(name, one) for name, one in zip(given[1:], known, strict=True)])
    else:
        shell.say("Second minus first:")
        for what, difference in sides[0].items():
            if difference is not None:
                chance = f"; p = {difference.chance:.3g}" if what == of else ""
                shell.say(f"{what}: {interval_text(difference)}{chance}")
    shell.say(
        "The runs of a seed are the unit: the interval is of what another seed's would show.\n"
        f"With so many runs a true difference of {max(one.smallest for one in known):.3f} would be clear in 8 of 10 "
        "comparisons."
    )


def _over_runs(found: Sequence[Sequence[Comparison]], of: str) -> list[RunDifference | None]:
    """Of each side minus the first, corrected for their number; None where it is not known of all runs."""
    from agentgym.evals.statistics import holm, run_difference, simultaneous

    step = 1 / max(one.num_pairs for row in found for one in row) if of == "success" else 0.0
    moves = [[getattr(one, of) for one in side] for side in zip(*found, strict=True)]
    made = [
        None if None in some else run_difference([one.mean for one in some], simultaneous(len(moves)), resolution=step)
        for some in moves
    ]
    chances = iter(holm([one.chance for one in made if one is not None]))
    return [one and replace(one, chance=next(chances)) for one in made]


def _runs_json(
    seeds: Sequence[int | None],
    given: Sequence[str],
    rows: Sequence[Sequence[Saved]],
    found: Sequence[Sequence[Comparison]],
    sides: Sequence[Mapping[str, RunDifference | None]],
) -> dict[str, object]:
    from agentgym.tables.comparing import found_json

    pairs = [
        {"seed": seed, "first": row[0].name, "second": side.name, **found_json(one)}
        for seed, row, compared in zip(seeds, rows, found, strict=True)
        for side, one in zip(row[1:], compared, strict=True)
    ]
    each = [{of: one and asdict(one) for of, one in side.items()} for side in sides]
    if len(each) == 1:
        return {**each[0], "pairs": pairs}
    return {"against": given[0], "pairs": pairs,
            "comparisons": [{"side": name, **one} for name, one in zip(given[1:], each, strict=True)]}  # fmt: skip
