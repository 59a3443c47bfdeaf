"""The commands: our own, and those that installed distributions bring by entry points."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from agentgym.commands import GROUP, Command
from agentgym.errors import UserError, nearest
from agentgym.plugin_errors import shown_name
from agentgym.stability import ATTRIBUTE, built_for, renamed

GROUPS = {
    "train a policy": {
        "train": "train a policy in an environment",
        "sft": "fine-tune a policy on demonstrations",
        "recipes": "list the recipes that ship with agentgym, or copy some",
        "convert": "write a recipe from one of torchforge",
        "plan": "predict a recipe's speed and memory, and the best split of the GPUs",
        "launch": "run a recipe on a cluster: SLURM, Kubernetes, SkyPilot",
        "host": "lend this machine to a remote controller",
    },
    "measure it, use it, look at its runs": {
        "eval": "measure a checkpoint on held-out tasks",
        "benchmark": "play a published benchmark with its official options: HumanEval, MBPP, GSM8K, MATH and more",
        "leaderboard": "rank all measured policies by benchmark, also as CSV, Markdown or LaTeX",
        "compare": "compare two policies task by task",
        "chat": "talk with a checkpoint, or play an environment with it by hand",
        "serve": "serve a checkpoint to clients of OpenAI's and Anthropic's interfaces",
        "status": "whether a run is learning, and what is wrong if not",
        "view": "open a page about runs in the browser",
        "runs": "list the runs; read, draw, note, check, rescore or replay one",
    },
    "environments and this installation": {
        "envs": "list environments, show their tasks, check one for faults",
        "tools": "prove which format of tool calls a model's chat template writes",
        "agents": "list agents, check that one works here",
        "settings": "show what can be set in a recipe, and what each setting does",
        "new": "make a package of your own: an environment, reward, sandbox, loss, agent and more",
        "plugins": "list plugins and what they provide",
        "doctor": "what is installed here, what is missing, how to get it",
    },
}
RUNS = {
    "list": "list the runs with their state, last figures and gain",
    "episodes": "read the episodes of a run or an evaluation, one by one",
    "curve": "draw a run's curves, here and as a PNG",
    "note": "note something about a run or an evaluation, or tag it",
    "steer": "change settings of a run that goes on; ask it to save, measure itself or stop",
    "rescore": "score a run's saved episodes again, with other rewards",
    "replay": "train a step again from its saved episodes, and compare",
    "audit": "check that a run's folder is whole: nothing twice, lost or left behind",
}
"""The commands of `agentgym runs`. All but `list` can still be called alone, as most of them once were."""
MERGE = "eval merge"
OWN = {name: text for group in GROUPS.values() for name, text in group.items()} | {
    MERGE: "make one evaluation of the shards that several machines have played",
    **{f"runs {name}": text for name, text in RUNS.items()},
}
_ATTRIBUTES = ("DESCRIPTION", "EXAMPLES", "TAKES_OVERRIDES", "add_arguments", "run")  # of Command


def groups() -> dict[str, dict[str, str]]:
    """Every command with one line about it, by group; imports none of them. Our own names win."""
    found = {name: _summary(points[0]) for name, points in sorted(_third_party().items())}
    return GROUPS | ({"from plugins": found} if found else {})


def listed(commands: Mapping[str, str], width: int = 0) -> str:
    """A line for each command, as --help shows them."""
    width = width or max(map(len, commands))
    return "\n".join(f"  {name.ljust(width)}  {summary}" for name, summary in commands.items())


def called(words: Sequence[str]) -> tuple[str, list[str], str]:
    """The command's name, the words after it, and a note for a name that has changed."""
    name, *rest = words
    if name in RUNS and name != "list":
        note = renamed(f"`agentgym {name}`", f"`agentgym runs {name}`", goes="0.3", error=UserError)
        return f"runs {name}", rest, f"note: {note}"
    if name == "runs" and rest and not rest[0].startswith("-"):
        return f"runs {rest[0]}", rest[1:], ""
    if words[:2] == MERGE.split():  # a model of that name is ./merge
        return MERGE, rest[1:], ""
    return name, rest, ""


def load_command(name: str) -> Command:
    """Raises UserError for an unknown name, and for a third party's command that cannot be used."""
    parent, _, action = name.rpartition(" ")
    if name in OWN:
        module = "runs" if action == "list" else action
        return cast(Command, importlib.import_module(f"agentgym.cli.commands.{module}"))
    if parent:
        hint = f" It is `agentgym {action}`." if action in OWN else nearest(action, RUNS)
        if Path(action).is_dir():
            hint = f" To list the runs in that folder: agentgym runs --runs-dir {action}"
        raise UserError(f"agentgym runs has no command {action!r}.{hint}")
    found = _third_party()
    if name not in found:
        top = [one for one in OWN if " " not in one]
        moved = difflib.get_close_matches(name, RUNS, n=1, cutoff=0.7)
        hint = f" Did you mean 'runs {moved[0]}'?" if moved else nearest(name, [*top, *found])
        raise UserError(f"agentgym has no command {name!r}.{hint}")
    [point, *others] = found[name]
    where = f"the command {name!r} of {_distribution(point)}"
    if others:
        raise UserError(f"{where} is also defined by {_distribution(others[0])}; uninstall one of the two")
    try:
        module = point.load()
    except Exception as error:  # a third party's code
        raise UserError(f"{where} failed to load from {point.value}: {type(error).__name__}: {error}") from error
    missing = [attribute for attribute in _ATTRIBUTES if not hasattr(module, attribute)]
    try:
        built_for(getattr(module, ATTRIBUTE, None), _distribution(point))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if missing:
        raise UserError(f"{where} is incomplete: {point.value} does not define {', '.join(missing)}")
    return cast(Command, module)


def _third_party() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    points = {(point.name, point.value, _distribution(point)): point for point in entry_points(group=GROUP)}
    for point in points.values():
        if point.name not in OWN and point.name not in RUNS:
            found.setdefault(point.name, []).append(point)
    return found


def _distribution(point: EntryPoint) -> str:
    return shown_name(point.dist.name) if point.dist else "an unknown distribution"


def _summary(point: EntryPoint) -> str:
    """The first docstring line of the module, read from its file; else the distribution's name."""
    package, *parts = point.module.split(".")
    spec = importlib.util.find_spec(package)  # of a top-level name: imports nothing
    for folder in (spec.submodule_search_locations or ()) if spec and parts else ():
        base = Path(folder, *parts)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return _first_line(path)
    if spec and spec.origin and not parts:
        return _first_line(Path(spec.origin))
    return f"from {_distribution(point)}"


def _first_line(path: Path) -> str:
    try:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (OSError, SyntaxError, UnicodeDecodeError):
        return "cannot be read"
    line = text.partition("\n")[0].rstrip(".")
    return line.partition("`: ")[2] or line
