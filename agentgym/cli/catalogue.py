"""The commands: our own, and those that installed distributions bring by entry points."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from agentgym.commands import GROUP, Command
from agentgym.errors import UserError, nearest

OWN = {
    "train": "train a policy in an environment",
    "sft": "fine-tune a policy on demonstrations",
    "launch": "run a recipe on a cluster: SLURM, Kubernetes, SkyPilot",
    "host": "lend this machine to a run whose controller is elsewhere",
    "eval": "measure a checkpoint on held-out tasks",
    "plan": "predict how fast a recipe would be, and how GPUs are best shared",
    "serve": "serve a checkpoint to clients of OpenAI's and Anthropic's interfaces",
    "chat": "talk with a checkpoint, or play an environment with it by hand",
    "compare": "compare two policies task by task",
    "runs": "list the runs",
    "status": "is a run learning, and what is wrong if not",
    "audit": "is a run's folder whole: nothing twice, nothing lost, nothing left behind",
    "episodes": "read a run's episodes, one by one",
    "rescore": "score a run's saved episodes again, with other rewards",
    "replay": "train a step again from its saved episodes, and compare",
    "curve": "draw a run's reward curve",
    "envs": "list environments, show their tasks, check one for faults",
    "view": "open a page about runs in the browser",
    "new": "make a package of your own: an environment, reward, sandbox or tools",
    "plugins": "list plugins and what they provide",
    "doctor": "what is installed here, what is missing, how to get it",
}
_ATTRIBUTES = ("DESCRIPTION", "EXAMPLES", "TAKES_OVERRIDES", "add_arguments", "run")  # of Command


def summaries() -> dict[str, str]:
    """Every command with one line about it; imports none of them. Our own names win."""
    return OWN | {name: _summary(points[0]) for name, points in sorted(_third_party().items())}


def load_command(name: str) -> Command:
    """Raises UserError for an unknown name, and for a third party's command that cannot be used."""
    if name in OWN:
        return cast(Command, importlib.import_module(f"agentgym.cli.commands.{name}"))
    found = _third_party()
    if name not in found:
        raise UserError(f"agentgym has no command {name!r}.{nearest(name, [*OWN, *found])}")
    [point, *others] = found[name]
    where = f"the command {name!r} of {_distribution(point)}"
    if others:
        raise UserError(f"{where} is also defined by {_distribution(others[0])}; uninstall one of the two")
    try:
        module = point.load()
    except Exception as error:  # a third party's code
        raise UserError(f"{where} failed to load from {point.value}: {type(error).__name__}: {error}") from error
    missing = [attribute for attribute in _ATTRIBUTES if not hasattr(module, attribute)]
    if missing:
        raise UserError(f"{where} is incomplete: {point.value} does not define {', '.join(missing)}")
    return cast(Command, module)


def _third_party() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if point.name not in OWN:
            found.setdefault(point.name, []).append(point)
    return found


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"


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
