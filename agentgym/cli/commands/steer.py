"""`agentgym runs steer`: change settings of a run that goes on, or ask it to save, measure itself or stop."""

from __future__ import annotations

import argparse
import time
from typing import Any

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.config import apply_overrides
from agentgym.errors import UserError, nearest
from agentgym.runs.folder import RunFolder
from agentgym.runs.steering import ACTIONS
from agentgym.tables.changeable import TABLE, checked
from agentgym.tables.run import Run
from agentgym.tables.steering import ask, steering
from agentgym.yaml import dump_inline, value_at

ASKED = [one for one in ACTIONS if one != "set"]
POLL_S = 0.5
WIDTH = max(len(one.key) for one in TABLE)
DESCRIPTION = f"""
Change settings of a training run while it goes on, or ask it to {", ".join(ASKED[:-1])} or {ASKED[-1]}. The run does it
between two steps; a change is kept in its folder (changes.jsonl), and a resume goes on with it. Without WHAT: the
settings that can change with their present values, and what was asked so far.

Settings that can change, and when a change takes effect:
{chr(10).join(f"  {one.key.ljust(WIDTH)}  {one.effect}" for one in TABLE)}
"""
EXAMPLES = """
agentgym runs steer runs/math-1
agentgym runs steer runs/math-1 optimizer.lr=1e-5 loop.eval_every=5
agentgym runs steer runs/math-1 loop.max_staleness=2 --wait 600
agentgym runs steer runs/math-1 checkpoint stop
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("what", nargs="*", metavar="WHAT", default=[], help=f"SETTING=VALUE, {', '.join(ASKED)}")
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="S", help="wait up to S seconds for the run's answers"
    )
    parser.add_argument("--json", action="store_true", help="for scripts: the settings, changes and requests")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    folder = Run.at(RunFolder.open(arguments.run).path)
    wanted = [_parsed(word) for word in arguments.what]  # all of them, before the first is asked
    for action, setting, value in wanted:
        ask(folder, action, setting, value)
    found, until = steering(folder, able=True), time.monotonic() + arguments.wait
    waiting = {one["id"] for one in found["requests"] if one["state"] == "waiting"}
    while (states := _states(found, waiting)) and "waiting" in states and time.monotonic() < until:
        time.sleep(POLL_S)
        found = steering(folder, able=True)
    if arguments.json:
        shell.say_json(found)
    else:
        _show(found, shell, asked=bool(wanted))
    return 1 if "refused" in states or (arguments.wait and "waiting" in states) else 0


def _states(found: dict[str, Any], ids: set[str]) -> set[str]:
    return {one["state"] for one in found["requests"] if one["id"] in ids}


def _parsed(word: str) -> tuple[str, str, object]:
    """Action, setting and value. Raises UserError for what can't be asked."""
    key, equals, _ = word.partition("=")
    if equals:
        return "set", key, checked(key, value_at(apply_overrides({}, [word]), key))
    if word not in ASKED:
        as_setting = f" To change it: {word}=VALUE." if word in {one.key for one in TABLE} else nearest(word, ASKED)
        raise UserError(f"a run can't be asked for {word[:50]!r}.{as_setting}")
    return word, "", None


def _show(found: dict[str, Any], shell: Shell, *, asked: bool) -> None:
    if found["settings"] and not asked:
        settings = [(one["key"], dump_inline(one["value"]), str(one["effect"])) for one in found["settings"]]
        shell.say_table(("setting", "value", "a change takes effect"), settings)
        shell.say()
    elif found["why_not"]:
        shell.say(f"{found['why_not']}\n")
    rows = [_row(one) for one in found["requests"]]
    if rows:
        shell.say_table(("asked", "for", "state", "step", ""), rows)
    if any(one["state"] == "waiting" for one in found["requests"]):
        shell.say("\nthe run answers after the step that it is in")


def _row(request: dict[str, Any]) -> tuple[str, ...]:
    what = f"{request['setting']}={dump_inline(request['value'])}" if request["setting"] else request["action"]
    step = "-" if request["step"] is None else str(request["step"])
    return time.strftime("%H:%M:%S", time.localtime(request["time"])), what, request["state"], step, request["text"]
