"""`agentgym sandbox run`: one Python file in a sandbox, with its result."""

from __future__ import annotations

import argparse
import base64
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError
from agentgym.sandbox import Capabilities, FileRefused, LimitHit, Limits, RunResult, RunStatus, SandboxBackend
from agentgym_sandboxes.commands.action import Request, add_sandbox_argument
from agentgym_sandboxes.commands.files import check_empty, read_files_in, write_files_out
from agentgym_sandboxes.host.wording import signal_name

SUMMARY = 'run a Python file in one ("-" reads it from standard input)'
DESCRIPTION = """
Run a Python file in a sandbox. What it printed comes out once it has ended, as it is (to a terminal, control
characters are escaped), the first 64 KiB of each stream; one line on standard error shows how it ended
and, when that was a limit, how much of it was used. Exit code 0 when it succeeded, else 1. With --files-in,
--files-out or --network it runs in a session, with a work folder and, if asked for, a proxy to the named hosts.
"""
EXAMPLES = """
agentgym sandbox run program.py
echo 'print(input()[::-1])' | agentgym sandbox run - --stdin hello
agentgym sandbox run plot.py --files-in data.csv --files-out results
agentgym sandbox run fetch.py --network pypi.org --wall-s 30
agentgym sandbox run program.py --sandbox monty --json
"""
RESOURCES = {  # name and unit of each limited resource
    "wall_s": ("wall time", "s"),
    "cpu_s": ("CPU time", "s"),
    "memory_mib": ("memory", "MiB"),
    "output_bytes": ("output", "bytes"),
    "answer_mib": ("answers", "MiB"),
    "disk_mib": ("disk", "MiB"),
    "files": ("files", ""),
    "file_mib": ("one file", "MiB"),
    "processes": ("processes and threads", ""),
}
DEFAULTS = Limits()


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help='a Python file; "-" reads it from standard input')
    add_sandbox_argument(parser)
    parser.add_argument(
        "--stdin", default="", metavar="TEXT", help="what the program reads; our own standard input is not passed on"
    )
    parser.add_argument("--wall-s", type=float, default=DEFAULTS.wall_s, metavar="S", help="default %(default)g")
    for name, field in (("memory-mib", "memory_mib"), ("processes", "processes"), ("file-mib", "file_mib")):
        parser.add_argument(
            f"--{name}", type=int, default=getattr(DEFAULTS, field), metavar="N", help="default %(default)s"
        )
    parser.add_argument("--files-in", nargs="+", default=[], metavar="PATH", help="into its work folder")
    parser.add_argument(
        "--files-out", metavar="FOLDER", help="a new folder that gets its work folder's files, but no links"
    )
    parser.add_argument(
        "--network", nargs="+", default=[], metavar="HOST", help="the only hosts it may reach (default: none)"
    )
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


async def run(request: Request) -> int:
    arguments, shell = request.arguments, request.shell
    code = read_program(arguments.file)
    limits = limits_of(arguments)
    name, able = await request.available()
    async with request.backend(name) as backend:
        if arguments.files_in or arguments.files_out or arguments.network:
            result, files = await _run_in_session(backend, able, code, limits, arguments)
        else:
            result, files = await backend.run(code, stdin=arguments.stdin, limits=limits), []
    if arguments.json:
        shell.say_json(as_mapping(result, name, files))
    else:
        _show(result, name, files, shell)
    return 0 if result.status is RunStatus.OK else 1


async def _run_in_session(
    backend: SandboxBackend, able: Capabilities, code: str, limits: Limits, arguments: argparse.Namespace
) -> tuple[RunResult, list[str]]:
    if not able.sessions:
        raise UserError(f"sandbox {backend.name!r} has no sessions, which --files-in, --files-out and --network need")
    if arguments.network and not able.network_allow_list:
        raise UserError(f"sandbox {backend.name!r} has no allow list for hosts, so --network is unavailable")
    given = read_files_in(arguments.files_in)
    if arguments.files_out:
        check_empty(Path(arguments.files_out))
    try:
        async with backend.session(network=tuple(arguments.network)) as session:
            for path, data in given.items():
                await session.write(path, data)
            # a session shows the value of a last line, as Python's prompt does; a program does not
            result = await session.run(f"{code}\npass\n", stdin=arguments.stdin, limits=limits)
            files = await write_files_out(session, Path(arguments.files_out)) if arguments.files_out else []
    except FileRefused as error:
        raise UserError(f"a file cannot be passed on: {error}") from error
    return result, files


def read_program(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read the program {file!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"the program {file!r} is no UTF-8 text ({error}); save it as UTF-8") from None


def limits_of(arguments: argparse.Namespace) -> Limits:
    """CPU time is limited to the wall time. Raises UserError for a limit that is not positive and finite."""
    for flag in ("wall_s", "memory_mib", "processes", "file_mib"):
        if not 0 < getattr(arguments, flag) < math.inf:
            raise UserError(f"--{flag.replace('_', '-')} is {getattr(arguments, flag)}; give more than 0")
    return Limits(
        wall_s=arguments.wall_s,
        cpu_s=max(1, math.ceil(arguments.wall_s)),
        memory_mib=arguments.memory_mib,
        processes=arguments.processes,
        file_mib=arguments.file_mib,
    )


def limit_text(limit: LimitHit) -> str:
    """The limit as text, for example 'wall time: used 3.0 of 3 s'."""
    what, unit = RESOURCES.get(limit.resource, (limit.resource, ""))
    used = f"{limit.used:.1f}" if unit in ("s", "MiB") else f"{limit.used:.12g}"
    text = f"{what}: used {used} of {limit.allowed:.12g} {unit}".rstrip()
    too_much_at_once = limit.used < 0.95 * limit.allowed  # refused, so never used
    return f"{text} when it was refused more" if too_much_at_once else text


def as_mapping(result: RunResult, sandbox: str, files: list[str]) -> dict[str, object]:
    texts = {key: value for key, value in asdict(result).items() if not key.endswith("_bytes")}
    return {
        "sandbox": sandbox,
        **texts,
        "stdout_base64": _base64(result.stdout, result.stdout_bytes),
        "stderr_base64": _base64(result.stderr, result.stderr_bytes),
        "files": files,
    }


def _base64(text: str, data: bytes) -> str | None:
    """The bytes, where the text does not represent them exactly."""
    return base64.b64encode(data).decode() if data and data != text.encode() else None


def _show(result: RunResult, sandbox: str, files: list[str], shell: Shell) -> None:
    _hand_on(result.stdout, result.stdout_bytes, shell.out)
    _hand_on(result.stderr, result.stderr_bytes, shell.err)
    ok = result.status is RunStatus.OK
    parts = [(shell.paint.green if ok else shell.paint.red)(result.status.value)]
    if result.limit is not None:
        parts.append(limit_text(result.limit))
    if result.exit_code is not None:
        parts.append(exit_text(result.exit_code))
    if result.truncated:
        parts.append("output cut")
    parts.append(f"{result.wall_s:.3f} s wall")
    parts += [f"{result.cpu_s:.3f} s CPU"] if result.cpu_s else []  # 0 where a sandbox does not measure it
    parts += [f"{result.memory_mib:.1f} MiB"] if result.memory_mib else []
    shell.warn(f"{', '.join(parts)}, in {sandbox}")
    for path in files:
        shell.warn(f"wrote {path}")


def exit_text(code: int) -> str:
    """The exit as text, for example 'exit code 1' or 'killed by SIGSEGV'."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def _hand_on(text: str, data: bytes, stream: TextIO) -> None:
    """Unchanged bytes to a file or pipe; to a terminal, text without control characters."""
    if stream.isatty():
        stream.write(visible(text))
        if text and not text.endswith("\n"):
            stream.write("\n")
    elif data and hasattr(stream, "buffer"):
        stream.flush()
        stream.buffer.write(data)
    else:
        stream.write(text)
    stream.flush()


def visible(text: str) -> str:
    """Control characters escaped: output of a sandbox must not control the user's terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
