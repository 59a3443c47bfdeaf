"""`agentgym runs episodes`: the episodes of a run or an evaluation, listed or read one by one."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import agentgym
from agentgym.cli.episode_text import show_episode, show_tokens
from agentgym.cli.results import figure
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError, nearest
from agentgym.runs.folder import RunFolder
from agentgym.runs.records import SavedEpisode, encode_saved
from agentgym.tables.episode import episode_json
from agentgym.tables.episode_search import in_order, matching, row
from agentgym.tables.episode_table import Table
from agentgym.tables.run import Run
from agentgym.tables.trajectories import to_atif
from agentgym.types import Outcome, Stop

DESCRIPTION = """
List the episodes of a step, or read one: its messages turn by turn, rewards, why it stopped, and which version
of the weights sampled each turn. With --tokens every token shows where it came from.
"""
EXAMPLES = """
agentgym runs episodes runs/math-1
agentgym runs episodes runs/math-1 --step 12 --failure
agentgym runs episodes runs/math-1 --step all --outcome infra_error
agentgym runs episodes runs/math-1 --step 12 --show 3
agentgym runs episodes runs/math-1 --step 12 --show 3 --tokens
agentgym runs episodes runs/math-1 --evals --show 1 --json
agentgym runs episodes runs/math-1 --step all --success --export atif --output trajectories
agentgym runs episodes evals/math-1-more --failure
agentgym runs episodes evals/gpt-5-mini-math --sort -cost
"""
TAKES_OVERRIDES = False
HEADER = (
    "n", "step", "episode", "task", "outcome", "success", "reward", "advantage", "turns", "tokens", "stop",
    "versions",
)  # fmt: skip
SERVED = (
    "n", "step", "episode", "task", "outcome", "success", "reward", "turns", "prompts", "cached", "answers", "cost",
    "stop",
)  # fmt: skip
ESTIMATED = "~: the server did not count these tokens; they are estimated from characters"
FILTERS = ("success", "failure", "outcome", "stop", "task")
Numbered = tuple[int, int]
"""An episode's number among those of its step that were asked for, from 1, and its row in the table."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or of an evaluation")
    parser.add_argument("--step", metavar="N", help="a step, or `all` (default: the last that was saved)")
    parser.add_argument("--evals", action="store_true", help="the episodes of evaluations, not of training")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--success", action="store_true", help="only those that reached the goal")
    which.add_argument("--failure", action="store_true", help="only those that did not")
    parser.add_argument("--outcome", choices=[o.value for o in Outcome], help="only those with this outcome")
    parser.add_argument("--stop", choices=[s.value for s in Stop], help="only those that ended for this reason")
    parser.add_argument("--task", metavar="TEXT", help="only tasks whose id contains it")
    parser.add_argument(
        "--sort", metavar="COLUMN", help="by reward, turns, tokens, cost, seconds or another; -COLUMN: largest first"
    )
    parser.add_argument("--limit", type=int, default=40, metavar="N", help="rows at most (default 40)")
    parser.add_argument("--show", metavar="N", help="read number N of those that would be listed, or one by its id")
    parser.add_argument("--tokens", action="store_true", help="with --show: every token with its origin")
    parser.add_argument("--json", action="store_true", help="one episode a line, whole")
    parser.add_argument(
        "--export", choices=("atif",), help="trajectories in Harbor's format, token ids included: one a line"
    )
    parser.add_argument("--output", metavar="FOLDER", help="with --export: a file for each, named after the episode")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    folder = RunFolder.open(arguments.run)
    if arguments.tokens and not arguments.show:
        raise UserError("--tokens goes with --show N")
    if arguments.export and (arguments.show or arguments.json):
        raise UserError("--export writes all episodes that are listed; leave out --show and --json")
    if arguments.output and not arguments.export:
        raise UserError("--output goes with --export atif")
    arguments.evals = arguments.evals or folder.only_evaluates
    known = folder.episode_steps(evaluation=arguments.evals)
    if not known:
        kind = "evaluations" if arguments.evals else "episodes"
        raise UserError(f"run {arguments.run!r} has no saved {kind} (logging.save_episodes decides that)")
    steps = asked_steps(arguments.step, known)
    opened = Run.at(folder.path)
    table = opened.episodes.read()
    chosen = _chosen(table, steps, arguments)
    if arguments.show:
        _show(_find(table, chosen, steps, arguments), opened, table, arguments, shell)
    elif arguments.export:
        _export(_saved(folder, table, chosen, steps, arguments), opened, arguments.output, shell)
    elif arguments.json:
        for saved in _saved(folder, table, chosen, steps, arguments):
            shell.say(json.dumps(encode_saved(saved)))
    else:
        _list(table, chosen, steps, known, arguments, shell)
    return 0


def _saved(
    folder: RunFolder, table: Table, chosen: Sequence[Numbered], steps: Sequence[int], arguments: argparse.Namespace
) -> Iterator[SavedEpisode]:
    """The chosen episodes, whole, in the order in which they were saved."""
    wanted = {table.key(number) for _, number in chosen}
    for step in steps:
        for n, saved in enumerate(folder.read_episodes(step, evaluation=arguments.evals), start=1):
            if f"{_source(arguments)}-{step}-{n}" in wanted:
                yield saved


def _export(episodes: Iterable[SavedEpisode], opened: Run, output: str | None, shell: Shell) -> None:
    played = {"agent": opened.field("agent.name", "agentgym"), "model": str(opened.field("model.path", "unknown"))}
    target, count = None if output is None else Path(output), 0
    if target is not None:
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--output {output!r} can't be made a folder: {error.strerror}; give another") from error
    for saved in episodes:
        trajectory = to_atif(saved, **played, version=agentgym.__version__)
        if target is None:
            shell.say(json.dumps(trajectory))
            continue
        name = re.sub(r"[^\w.+=-]", "-", f"step-{saved.step:06d}-{saved.episode.episode_id}.json")
        (target / name).write_text(json.dumps(trajectory), encoding="utf-8")
        count += 1
    if target is not None:
        shell.say(f"{count} trajectories in {target}")


def _source(arguments: argparse.Namespace) -> str:
    return "eval" if arguments.evals else "train"


def asked_steps(given: str | None, known: Sequence[int]) -> list[int]:
    """The steps that `--step` names: one, or `all`; without it the last. Raises UserError."""
    if given is None:
        return [known[-1]]
    if given == "all":
        return list(known)
    saved = f"saved are: steps {known[0]} to {known[-1]}"
    if not given.isdigit():
        raise UserError(f"--step is {given!r}; give a number or `all`; {saved}")
    if int(given) not in known:
        raise UserError(f"no episodes of step {given}; {saved}")
    return [int(given)]


def _chosen(table: Table, steps: Sequence[int], arguments: argparse.Namespace) -> list[Numbered]:
    asked = [(name, value) for name in ("outcome", "stop", "task") if (value := getattr(arguments, name)) is not None]
    if arguments.success or arguments.failure:
        asked.append(("success", "true" if arguments.success else "false"))
    counts, wanted, found = Counter[int](), set(steps), list[Numbered]()
    for number in matching(table, _source(arguments), asked):
        if (step := table.columns["step"][number]) in wanted:
            counts[step] += 1
            found.append((counts[step], number))
    if arguments.sort:
        numbered = {number: n for n, number in found}
        return [(numbered[row], row) for row in in_order(table, numbered, arguments.sort.split(","))]
    return found


def _list(
    table: Table,
    chosen: Sequence[Numbered],
    steps: Sequence[int],
    known: Sequence[int],
    arguments: argparse.Namespace,
    shell: Shell,
) -> None:
    shown, columns = chosen[: arguments.limit], table.columns
    if any(columns["asked_tokens"][number] is not None for _, number in chosen):
        shell.say_table(SERVED, [_served_row(table, *one) for one in shown])
        if any(columns["estimated"][number] for _, number in shown):
            shell.say(ESTIMATED)
    else:
        shell.say_table(HEADER, [_row(table, *one) for one in shown])
    if len(chosen) > arguments.limit:
        shell.say(f"... {len(chosen) - arguments.limit} more; --limit {len(chosen)} shows all")
    said = [success for _, number in chosen if (success := table.columns["success"][number]) is not None]
    wins = f"{sum(said)} with success" if said or not chosen else "success unknown"
    shell.say(f"\n{len(chosen)} episode(s), {wins}. Saved are steps {known[0]} to {known[-1]}.")
    if chosen:
        step = f" --step {steps[0]}" if len(steps) == 1 else " --step N"
        evals = " --evals" if arguments.evals else ""
        which = f"{evals}{step}{_filter(arguments)} --show {chosen[0][0]}"
        shell.say(f"Read one: agentgym runs episodes {arguments.run}{which}")


def _head(n: int, one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(n),
        str(one["step"]),
        one["episode_id"],
        one["task_id"],
        one["outcome"] or "-",
        {True: "yes", False: "no", None: "-"}[one["success"]],
        figure(one["reward"]),
    )


def _served_row(table: Table, n: int, number: int) -> tuple[str, ...]:
    """A row of a policy behind a server: tokens as it counted them."""
    one, currency = row(table, number), table.prices.currency if table.prices else ""
    asked = one["asked_tokens"] is not None
    tokens = (f"{'~' * one['estimated']}{one[key]:,}" for key in ("asked_tokens", "cached_tokens", "tokens") if asked)
    return (
        *_head(n, one),
        str(one["turns"]),
        *(tokens if asked else ("-", "-", "-")),
        "-" if one["cost"] is None else f"{one['cost']:.6f} {currency}",
        one["stop"] or "-",
    )


def _row(table: Table, n: int, number: int) -> tuple[str, ...]:
    one = row(table, number)
    return (
        *_head(n, one),
        figure(one["advantage"]) if one["trained"] else "not trained",
        str(one["turns"]),
        str(one["tokens"]),
        one["stop"] or "-",
        ",".join(f"v{version}" for version, _ in table.columns["versions"][number]),
    )


def _filter(arguments: argparse.Namespace) -> str:
    """The filters as they were given; empty for all episodes."""
    given = [(name, value) for name in FILTERS if (value := getattr(arguments, name)) not in (None, False)]
    return "".join(f" --{name}" + ("" if value is True else f" {shlex.quote(value)}") for name, value in given)


def _find(table: Table, chosen: Sequence[Numbered], steps: Sequence[int], arguments: argparse.Namespace) -> Numbered:
    wanted, asked = arguments.show, f" with{_filter(arguments)}" if _filter(arguments) else ""
    if wanted.isdigit() and len(steps) > 1:
        raise UserError(f"--show {wanted} with --step all: numbers count within a step; give the step or an id")
    ids = [table.columns["episode_id"][number] for _, number in chosen]
    for one, episode_id in zip(chosen, ids, strict=True):
        if wanted in (str(one[0]), episode_id):
            return one
    if wanted.isdigit():
        there = f"1 to {len(chosen)}" if chosen else "none"
        raise UserError(f"no episode number {wanted}{asked}; step {steps[0]} has {there}")
    raise UserError(f"no episode {wanted!r} in step {steps[0]}{asked}.{nearest(wanted, ids)}")


def _show(found: Numbered, opened: Run, table: Table, arguments: argparse.Namespace, shell: Shell) -> None:
    n, number = found
    key = table.key(number)
    if arguments.json:
        shell.say_json(table.read(key)[1])
        return
    texts = opened.texts if arguments.tokens else None
    episode: dict[str, Any] = episode_json(table, key, weights=opened.field("rewards", {}), texts=texts)
    title = f"number {n} of step {episode['step']}{_filter(arguments)}"
    (show_tokens if arguments.tokens else show_episode)(episode, title, shell)
