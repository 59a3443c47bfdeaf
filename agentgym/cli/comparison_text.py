"""A comparison as `agentgym compare` prints it: the sides, the differences of several with one, and what differs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from agentgym.cli.results import UNKNOWN, USAGE_HEADER, eval_table, figure, interval_text, measure_tables, usage_row
from agentgym.commands.shell import Shell
from agentgym.errors import UserError

if TYPE_CHECKING:
    from agentgym.evals.compare import Comparison, Saved
    from agentgym.evals.statistics import PairedDifference, RunDifference

OTHER_REWARDS = "reward: not compared, since other rewards scored the sides (--reward NAME scores all alike): "
MANY_HEADER = ("side", "difference", "interval", "p", "verdict", "won", "lost", "equal")


def show_sides(sides: Sequence[Saved], shell: Shell) -> None:
    """Each side's own figures."""
    results, names = [one.result for one in sides], [one.name for one in sides]
    for table in (eval_table(results, names), *measure_tables(results, names)):
        shell.say_table(*table)
    if asked := [usage_row(one.result) for one in sides if one.result.usage]:
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
    first, others = sides[0], sides[1:]
    show_sides(sides, shell)
    together = f"Each minus {first.name}, corrected for {len(others)} comparisons:"
    known = all(one.success is not None for one in found)
    main = [one.success if known else one.reward for one in found]
    if None in main:
        raise UserError("success is known of some sides only, and so are rewards: compare them in pairs")
    of = "success" if known else "reward"
    shell.say(f"\n{of}, {found[0].main.num_tasks} tasks. {together}")
    rows = [_row(side.name, one) for side, one in zip(others, main, strict=True) if one is not None]
    shell.say_table(MANY_HEADER, rows)
    if not known:
        shell.say(UNKNOWN)
    alike = [one.reward for one in found if one.reward is not None]
    if known and len(alike) == len(found):
        shell.say("\nreward")
        shell.say_table(MANY_HEADER, [_row(side.name, one) for side, one in zip(others, alike, strict=True)])
    for side, one in zip(others, found, strict=True):
        if one.other_rewards:
            shell.say(f"{side.name}, {OTHER_REWARDS}{one.other_rewards}")
        if one.num_unpaired:
            shell.say(f"{side.name}: {one.num_unpaired} episodes have no partner")
    shell.say(
        "The intervals hold together at 95%, and p is McNemar's exact test over tasks, adjusted by Holm's method: the\n"
        "chance of a single false verdict in the table is at most 5%.\nWith so many tasks a true difference of "
        f"{max(one.smallest for one in main if one is not None):.3f} would be clear in 8 of 10 such comparisons."
    )
    shell.say(f"\ntasks won and lost: agentgym compare {first.name} SIDE")
    show_differing(sides, [one.name for one in sides], shell)


def _row(name: str, one: PairedDifference) -> tuple[str, ...]:
    counts = (one.better, one.worse, one.equal)
    if not one.standard_error:  # the same move in every task: an interval of no width misleads
        return (name, f"{one.mean:+.3f}", "-", "-", "the same" if not one.mean else "-", *map(str, counts))
    return (name, f"{one.mean:+.3f}", _interval(one), f"{one.chance:.3g}", _verdict(one), *map(str, counts))


def _interval(one: PairedDifference | RunDifference) -> str:
    return f"[{one.low:+.3f}, {one.high:+.3f}]"


def _verdict(one: PairedDifference | RunDifference) -> str:
    return "not clear" if not one.is_clear else "better" if one.mean > 0 else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfRuns:
    """One side minus the first, over the runs. None where it is not known of all of them."""

    success: RunDifference | None
    reward: RunDifference | None


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
    sides = _over_runs(found)
    main = [one.success for one in sides] if all(one.success for one in sides) else [one.reward for one in sides]
    of = "success" if all(one.success for one in sides) else "reward"
    known = [one for one in main if one is not None]
    if len(known) < len(main):
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
    head = f"{len(rows)} pairs of runs, " if len(given) == 2 else f"{len(rows)} runs on each of {len(given)} sides, "
    shell.say(f"\n{head}{found[0][0].main.num_tasks} tasks.")
    if len(given) == 2:
        shell.say("Second minus first:")
        for what, difference in (("success", sides[0].success), ("reward", sides[0].reward)):
            if difference is not None:
                chance = f"; p = {difference.chance:.3g}" if what == of else ""
                shell.say(f"{what}: {interval_text(difference)}{chance}")
    else:
        shell.say(f"Each minus {given[0]}, {of}, corrected for {len(sides)} comparisons:")
        shell.say_table(
            MANY_HEADER[:5],
            [
                (name, f"{one.mean:+.3f}", _interval(one), f"{one.chance:.3g}", _verdict(one))
                for name, one in zip(given[1:], known, strict=True)
            ],
        )
    shell.say(
        "The runs of a seed are the unit: the interval is of what another seed's would show.\n"
        f"With so many runs a true difference of {max(one.smallest for one in known):.3f} would be clear in 8 of 10 "
        "comparisons."
    )


def _over_runs(found: Sequence[Sequence[Comparison]]) -> list[_OfRuns]:
    """Of each side; corrected for their number."""
    from agentgym.evals.statistics import holm, run_difference, simultaneous

    step = 1 / max(one.num_pairs for row in found for one in row)
    confidence = simultaneous(len(found[0]))
    both: dict[str, list[RunDifference | None]] = {}
    for what, resolution in (("success", step), ("reward", 0.0)):
        each = [[getattr(row[at], what) for row in found] for at in range(len(found[0]))]
        made = [
            None if None in some else run_difference([one.mean for one in some], confidence, resolution=resolution)
            for some in each
        ]
        chances = iter(holm([one.chance for one in made if one is not None]))
        both[what] = [one and replace(one, chance=next(chances)) for one in made]
    return [_OfRuns(success=a, reward=b) for a, b in zip(both["success"], both["reward"], strict=True)]


def _runs_json(
    seeds: Sequence[int | None],
    given: Sequence[str],
    rows: Sequence[Sequence[Saved]],
    found: Sequence[Sequence[Comparison]],
    sides: Sequence[_OfRuns],
) -> dict[str, object]:
    from agentgym.tables.comparing import found_json

    pairs = [
        {"seed": seed, "first": row[0].name, "second": side.name, **found_json(one)}
        for seed, row, compared in zip(seeds, rows, found, strict=True)
        for side, one in zip(row[1:], compared, strict=True)
    ]
    if len(sides) == 1:
        return {**asdict(sides[0]), "pairs": pairs}
    each = [{"side": name, **asdict(one)} for name, one in zip(given[1:], sides, strict=True)]
    return {"against": given[0], "comparisons": each, "pairs": pairs}
