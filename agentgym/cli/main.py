"""`agentgym`: finds the command, runs it, and turns its result into a message and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, TextIO

import agentgym
from agentgym.cli.catalogue import called, groups, listed, load_command
from agentgym.commands.leaving import leave
from agentgym.commands.output import OutputGone, finish, guarded, hold_descriptors
from agentgym.commands.parser import Parser, split_overrides

if TYPE_CHECKING:
    from agentgym.cli.jobs import JobShell

EXAMPLES = """
agentgym doctor                             what is installed, what is missing
agentgym train --env code_exec              train the tiny policy that ships with the package
agentgym train recipe.yaml --loop.steps 20  train by a recipe, with one field overridden
agentgym eval runs/NAME --tasks 200         measure a run's last checkpoint
agentgym runs episodes runs/NAME --show 1   read an episode
"""
EXIT_CODES = """
exit codes:
  0    done
  1    the run or the command failed
  2    your mistake: a wrong name, field, file or value; the message says which
  75   preempted: SIGTERM under --grace, everything is saved; resume it
  130  Ctrl-C        143  SIGTERM        129  SIGHUP; servers that are stopped so (serve, view, host) end with 0
"""


def main(words: Sequence[str] | None = None, shell: JobShell | None = None) -> int:
    """Run one command; returns the exit code. shell: given by tests."""
    words = sys.argv[1:] if words is None else list(words)
    out = guarded(shell.out if shell else sys.stdout, needed=True)
    err = guarded(shell.err if shell else sys.stderr)
    try:
        if not words or words[0].startswith("-"):
            parser = _top_parser()
            parser.parse_strictly(words)
            print(parser.format_help().rstrip(), file=out, flush=True)
            return 0
        return _run(words, shell, out, err)
    except SystemExit as end:  # argparse's --help and --version
        return int(end.code or 0)
    except OutputGone:  # `agentgym runs episodes RUN | head`
        return 0
    except BaseException as error:
        from agentgym.cli.failures import explain, show

        failure = explain(error)
        show(error, failure, lambda text: print(text, file=err, flush=True), debug="--debug" in words, folder=None)
        return failure.exit_code
    finally:
        finish(out, err)


def _run(words: list[str], shell: JobShell | None, out: TextIO, err: TextIO) -> int:
    """What only a command needs is imported here: `agentgym --help` takes no time."""
    from contextlib import nullcontext, redirect_stdout
    from dataclasses import replace

    from agentgym.cli.jobs import Jobs, JobShell
    from agentgym.cli.logs import warnings_to
    from agentgym.commands.stopping import stoppable
    from agentgym.hooks import PluginRegistry
    from agentgym.plugin_errors import blamed, origin_of

    if shell is None:
        shell = JobShell(out=out, err=err, jobs=Jobs, plugins=PluginRegistry.discover)
    shell = replace(shell, out=out, err=err)
    if words[0] == "help":
        return main([*words[1:], "--help"], shell)
    with stoppable(shell.warn), warnings_to(shell.warn):
        name, rest, note = called(words)
        command = load_command(name)
        if note:
            shell.warn(note)
        if command.TAKES_OVERRIDES and (asked := _setting_asked_for(rest)):
            command, rest = load_command("settings"), [asked]
        parser = Parser(prog=f"agentgym {name}", description=command.DESCRIPTION.strip(), examples=command.EXAMPLES)
        with blamed("command", command.run, name):
            command.add_arguments(parser)
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        overrides, others = split_overrides(rest, parser.valued_options()) if command.TAKES_OVERRIDES else ([], rest)
        arguments = parser.parse_strictly(others)
        arguments.overrides, arguments.words = overrides, rest
        # what an environment prints is no part of the JSON
        printed = redirect_stdout(shell.err) if getattr(arguments, "json", False) else nullcontext()
        with printed, blamed("command", command.run, name) if origin_of(command.run) else nullcontext():
            return command.run(arguments, shell)


def _setting_asked_for(words: Sequence[str]) -> str:
    """KEY of `--help KEY`, as in `agentgym train --help rollout`."""
    after = words[words.index("--help") + 1 :] if "--help" in words else []
    return after[0] if after and not after[0].startswith("-") else ""


def _top_parser() -> Parser:
    found = groups()
    width = max(len(name) for commands in found.values() for name in commands)
    shown = "\n\n".join(f"{title}:\n{listed(commands, width)}" for title, commands in found.items())
    parser = Parser(
        prog="agentgym",
        description=f"{agentgym.__doc__}\n\n{shown}\n\nEach has its own --help: agentgym COMMAND --help.",
        examples=EXAMPLES,
    )
    parser.usage = "agentgym COMMAND ..."
    parser.epilog = f"{parser.epilog}\n{EXIT_CODES}"
    parser.add_argument("--version", action="version", version=f"agentgym {agentgym.__version__}")
    return parser


def script() -> NoReturn:
    """The program `agentgym`."""
    hold_descriptors()
    sys.stdout, sys.stderr = guarded(sys.stdout, needed=True), guarded(sys.stderr)  # for what environments print, too
    leave(main())


if __name__ == "__main__":
    script()
