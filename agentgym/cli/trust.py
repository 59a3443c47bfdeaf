"""Asks before code that a run's folder names is run, where the folder is not the user's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError
from agentgym.runs.own import PICKLE, PICKLE_MARK, code_in, is_marked, is_own, mark_run

FOREIGN = "was not made by you with this home folder, or was moved, copied or edited since"


def add_trust_argument(parser: Parser) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the code that the folder names, although it was not made by you here; asked once for a folder",
    )


def trusted(
    run: Path, config: Mapping[str, object], *, trust: bool, shell: Shell | None = None, pickles: bool = False
) -> None:
    """Return where what the folder would have run is the user's own, or is trusted. Raises UserError otherwise.

    shell: asks in its terminal. pickles: whether the state of a custom loop is loaded, too.
    """
    foreign = [] if is_own(run) else code_in(config)
    if pickles:
        states = sorted(run.glob(f"checkpoints/*/{PICKLE}"))
        foreign += [f"state: {path}" for path in states if not is_marked(path, PICKLE_MARK)][:1]
    if not foreign:
        return
    if not (trust or (shell is not None and _says_yes(run, foreign, shell))):
        raise UserError(
            f"{run} {FOREIGN}, and it would run code that is not installed: {', '.join(foreign)}. "
            "Look at it; if you trust it, give --trust (in Python: trust=True), once"
        )
    mark_run(run)


def _says_yes(run: Path, foreign: list[str], shell: Shell) -> bool:
    if not (shell.is_terminal and sys.stdin.isatty()):
        return False
    shell.say(f"{run} {FOREIGN}. It would run code that is not installed:")
    for line in foreign:
        shell.say(f"  {line}")
    return input("Trust it? [y/N] ").strip().lower() in ("y", "yes")
