"""`agentgym leaderboard`: all measured policies by benchmark, in the terminal or as a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import few, table_lines
from agentgym.errors import UserError
from agentgym.runs.files import writing_output
from agentgym.runs.folder import RunFolder
from agentgym.tables.exports import to_csv, to_latex, to_markdown
from agentgym.tables.leaderboard import Section, chosen, matrix, sections, versions_note
from agentgym.tables.ranked_rows import Row, names_of, rows_of
from agentgym.tables.roots import cache_folder
from agentgym.tables.summaries import Evaluations, find_runs, read_evaluations

DESCRIPTION = """
Rank everything that was measured: models, checkpoints and API models, a table for each benchmark and version of its
environment, the best first. FOLDER is a run, an evaluation, or a folder that holds them (default: runs and evals).

success has a 95% interval over tasks. Runs of one recipe that differ only in their seed are one row, whose interval is
over runs. n: counted episodes. left out: episodes that broke or could not be counted. cost: of all episodes, "-" where
no price was given. tokens: sampled ones. Tags and notes are set with `agentgym runs note`.

Intervals that overlap do not show that two policies are alike: `agentgym compare A B` pairs them by task.
"""
EXAMPLES = """
agentgym leaderboard
agentgym leaderboard runs evals --env code_exec --last
agentgym leaderboard evals --metric pass@2
agentgym leaderboard evals --sort -tokens --search tiny
agentgym leaderboard evals --matrix --format latex --output table.tex
agentgym leaderboard evals --each --output all.csv
agentgym leaderboard evals --json
"""
TAKES_OVERRIDES = False
FORMATS = {"table": "", "csv": ".csv", "markdown": ".md", "latex": ".tex", "json": ".json"}
"""The formats, each with the end of its files' names."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="default: runs and evals")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME", help="only this environment, or NAME@VERSION; repeatable"
    )
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="only what has the tag; repeatable")
    parser.add_argument("--search", default="", metavar="TEXT", help="only rows with the text in any of their columns")
    parser.add_argument("--last", action="store_true", help="of each run only its last measured checkpoint")
    parser.add_argument("--each", action="store_true", help="do not join the seeds of a recipe: a row an evaluation")
    parser.add_argument(
        "--metric", default="success", metavar="NAME", help="success, pass@K, reward, or the name of a reward"
    )
    parser.add_argument(
        "--sort", default="", metavar="COLUMN", help="by a column of the CSV, as cost; -COLUMN: largest first"
    )
    parser.add_argument("--matrix", action="store_true", help="one table: policies by benchmarks, the metric alone")
    parser.add_argument("--format", choices=FORMATS, help="default: by the end of --output, else table")
    parser.add_argument("--output", metavar="FILE", help="write a file; .csv, .md, .tex and .json choose the format")
    parser.add_argument("--json", action="store_true", help="the same as --format json")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    form = _format(arguments)
    if arguments.matrix and form in ("csv", "json"):
        raise UserError(f"--matrix is a table; {form} has all columns of all rows: leave one out")
    found = read_evaluations(find_runs(arguments.folders), cache_folder())
    for text in found.broken:
        shell.warn(text)
    if not found.summaries:
        raise UserError(_nothing(found))
    rows = chosen(
        rows_of(found.summaries, seeds=not arguments.each),
        envs=arguments.env,
        tags=arguments.tag,
        search=arguments.search,
        last=arguments.last,
    )
    if not rows:
        raise UserError(f"none of {len(found.summaries)} evaluations fits --env, --tag and --search")
    parts = sections(rows, arguments.metric, arguments.sort)
    notes = [f"{part.title}: {note}" if len(parts) > 1 else note for part in parts for note in part.notes]
    notes += [*versions_note(rows), *_unfinished(found)]
    text = _as_text(form, rows, parts, notes, arguments)
    if arguments.output:
        path = Path(arguments.output)
        with writing_output(path):
            path.write_text(text, encoding="utf-8")
        shell.say(f"{path}: {len(rows)} rows of {len(found.summaries)} evaluations")
    else:
        shell.say(text.rstrip("\n"))
    for note in notes if form != "json" else ():
        say = shell.say if form == "table" else shell.warn
        say(f"note: {note}")
    return 0


def _format(arguments: argparse.Namespace) -> str:
    """Raises UserError for an end of a file's name that no format has."""
    if arguments.json and arguments.format not in (None, "json"):
        raise UserError(f"--json and --format {arguments.format} are two formats; give one")
    if arguments.json or arguments.format:
        return "json" if arguments.json else str(arguments.format)
    suffix = Path(arguments.output).suffix if arguments.output else ""
    for name, one in FORMATS.items():
        if one == suffix:
            return name
    raise UserError(f"--output {arguments.output}: no format has {suffix!r}; give --format {', '.join(FORMATS)}")


def _as_text(
    form: str, rows: Sequence[Row], parts: Sequence[Section], notes: Sequence[str], arguments: argparse.Namespace
) -> str:
    ks, rewards = names_of(rows)
    flat = [row.flat(ks, rewards) for part in parts for row in part.rows]
    if form == "csv":
        return to_csv(flat)
    if form == "json":
        return json.dumps({"metric": arguments.metric, "rows": flat, "notes": notes}, indent=1) + "\n"
    made = [(part.title, part.header, part.cells) for part in parts]
    if arguments.matrix:
        made = [(f"{arguments.metric} with its 95% interval", *matrix(rows, arguments.metric))]
    one: Callable[..., str] = {"markdown": to_markdown, "latex": to_latex}.get(form, _plain)
    return "\n".join(one(*each) for each in made)


def _plain(title: str, header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return "\n".join([title, *table_lines(header, cells)]) + "\n"


def _unfinished(found: Evaluations) -> list[str]:
    of_runs = [one for one in found.unfinished if not RunFolder.open(one).is_evaluation]
    alone = [one for one in found.unfinished if one not in of_runs]
    each = (
        ("not finished", alone, "agentgym eval --resume continues one"),
        ("not finished, of runs", of_runs, "agentgym eval RUN --every-checkpoint continues them"),
        ("shards", found.shards, "agentgym eval merge makes one evaluation of them"),
    )
    return [f"left out, {what}: {few(folders)}; {advice}" for what, folders, advice in each if folders]


def _nothing(found: Evaluations) -> str:
    runs = f"{found.num_runs} run{'s' if found.num_runs > 1 else ''}"
    if left := _unfinished(found):
        return f"{runs} found, but no finished evaluation; {'; '.join(left)}"
    if found.broken:
        return f"{runs} found, but none of their evaluations could be read"
    return (
        f"{runs} found, but nothing was measured in them; measure a run's checkpoints with agentgym eval RUN "
        "--every-checkpoint, any model with agentgym eval MODEL --env NAME"
    )
