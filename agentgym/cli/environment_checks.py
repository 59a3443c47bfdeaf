"""`agentgym envs check`: plays an environment without any model, and reports what is wrong with it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from agentgym.cli.failures import FAILED
from agentgym.cli.results import figure
from agentgym.commands.findings import say_finding
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell, can_redraw
from agentgym.commands.stopping import run_until_stopped
from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.evals.audit.check import MAX_TOKENS, PARTS, CheckConfig, check_environment
from agentgym.evals.audit.findings import Report

DESCRIPTION = """
Play an environment without any model, in seconds: the right answer of its oracle, then wrong ones, nothing, garbage,
200,000 characters, every candidate at once, forged replies and more. Reports what each earns, and what is a finding:
something that can be gamed, crashes, changes from process to process, is in both splits, is too slow or too long.

Exit code 0: nothing was found. 1: there are findings. 2: a mistake in what was given.
"""
EXAMPLES = """
agentgym envs check math
agentgym envs check code_exec --sandbox monty --tasks 8
agentgym envs check math --env.options.levels [1] --only oracle,wrong,candidates
agentgym envs check code_exec --allow blocks --json
"""
HEADER = ("probe", "episodes", "reward", "success", "", "what was said")
SETTABLE = ("env.options", "sandbox.options", "rewards")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="ENV", help="a name, or an import path such as my_env.py:GuessNumber")
    parser.add_argument("--tasks", type=int, default=16, metavar="N", help="test tasks that are played (default 16)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the tasks (default 0)")
    parser.add_argument("--sandbox", default="auto", metavar="NAME", help="for code (default auto)")
    parser.add_argument("--only", action="append", default=[], metavar="PART,...", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="KIND", help="a finding that is accepted, as KIND or KIND:WHERE"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=MAX_TOKENS,
        metavar="N",
        help=f"rollout.max_episode_tokens of the training (default {MAX_TOKENS})",
    )
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    config = CheckConfig(
        name=arguments.name,
        num_tasks=arguments.tasks,
        seed=arguments.seed,
        sandbox=arguments.sandbox,
        only=_split(arguments.only),
        allowed=_split(arguments.allow),
        max_tokens=arguments.max_tokens,
        **sections(arguments.overrides),
    )
    say = _progress(shell)
    report = run_until_stopped(check_environment(shell.plugins(), config, say), shell.warn)
    say("")
    if arguments.json:
        shell.say(json.dumps(report.to_mapping(), default=repr))
    else:
        show(report, shell)
    return FAILED if report.findings else 0


def _split(given: list[str]) -> tuple[str, ...]:
    return tuple(part.strip() for word in given for part in word.split(",") if part.strip())


def sections(overrides: list[str]) -> dict[str, Any]:
    """What `--env.options.X`, `--sandbox.options.X` and `--rewards.X` give."""
    given = apply_overrides({"env": {"options": {}}, "sandbox": {"options": {}}, "rewards": {}}, overrides)
    env, sandbox, rewards = given.pop("env"), given.pop("sandbox"), given.pop("rewards")
    parts = [(env, "options"), (sandbox, "options"), ({"rewards": rewards}, "rewards")]
    found = [part[key] for part, key in parts if isinstance(part, Mapping) and set(part) == {key}]
    if given or len(found) < len(parts) or not all(isinstance(one, Mapping) for one in found):
        raise UserError(f"only {', '.join(f'--{name}.NAME VALUE' for name in SETTABLE)} can be set here")
    return dict(zip(("options", "sandbox_options", "rewards"), found, strict=True))


def _progress(shell: Shell) -> Callable[[str], None]:
    """One line on a terminal that is overwritten; nothing elsewhere."""
    if not can_redraw(shell.err):
        return lambda text: None

    def say(text: str) -> None:
        print(f"\r\x1b[K{text[: shell.width - 1]}", end="", file=shell.err, flush=True)

    return say


def show(report: Report, shell: Shell) -> None:
    paint = shell.paint
    shell.say(paint.bold(f"{report.environment} version {report.version}") + f", played in {report.seconds:.1f} s")
    rewards = ", ".join(f"{name} x {weight:g}" for name, weight in report.weights.items())
    shell.say(f"rewards: {rewards}" + (f"; sandbox: {report.sandbox}" if report.sandbox else ""))
    if report.probes:
        rows = []
        for one in report.probes:
            mark = "FINDING" if one.finding else ""
            what = f"{one.what} ({one.variant})" if one.variant else one.what
            rows.append((one.probe, str(one.episodes), figure(one.reward), figure(one.success), mark, what))
        shell.say()
        shell.say_table(HEADER, rows)
    shell.say(f"\noracle {figure(report.oracle)}, floor {figure(report.floor)}, gap {figure(report.gap)}")
    if figures := ", ".join(f"{name} {value:.4g}" for name, value in report.figures.items()):
        shell.say(paint.dim(figures))
    for note in report.notes:
        shell.say(f"note: {note}")
    for found in report.allowed:
        shell.say(f"allowed: {found.kind}: {found.text}")
    for found in report.findings:
        say_finding(found, shell)
    count = len(report.findings)
    shell.say("\n" + (paint.red(f"{count} finding(s)") if count else paint.green("no finding")))
