"""`agentgym sandbox`: build the image, see what is enforced here, run a file, clean up."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

from agentgym.cli.parser import Parser
from agentgym.cli.shell import Shell
from agentgym.cli.stopping import run_until_stopped
from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import (
    ImageBackend,
    Limits,
    RunStatus,
    SandboxBackend,
    SandboxOptions,
    SandboxUnavailable,
)

DESCRIPTION = """
Sandboxes run what a policy writes.
  build   get the image: pull it by digest with --pull, else build it from a Debian root file system
  doctor  what each sandbox enforces on this machine, or why it can't be had
  run     run a Python file in one ("-" reads it from standard input); exit code 0 when it ended well
  clean   remove the containers that runs left when they were killed
Options of the sandbox are given as --sandbox.options.NAME VALUE.
"""
EXAMPLES = """
agentgym sandbox doctor
agentgym sandbox build
agentgym sandbox build --pull registry.example/agentgym-sandbox@sha256:...
echo 'print(6 * 7)' | agentgym sandbox run - --wall-s 2
agentgym sandbox run program.py --sandbox monty
agentgym sandbox clean
"""
TAKES_OVERRIDES = True


def add_arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=("build", "doctor", "run", "clean"))
    parser.add_argument("file", nargs="?", metavar="FILE", help="for `run`")
    parser.add_argument("--sandbox", metavar="NAME", help="default: docker; for `doctor`: all")
    parser.add_argument("--pull", metavar="IMAGE", help="for `build`: the image with its digest")
    parser.add_argument("--stdin", default="", metavar="TEXT", help="for `run`: what the program reads")
    parser.add_argument("--wall-s", type=float, default=10.0, metavar="S", help="for `run` (default 10)")
    parser.add_argument("--memory-mib", type=int, default=512, metavar="N", help="for `run` (default 512)")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    if (arguments.action == "run") != (arguments.file is not None):
        wrong = "needs a FILE" if arguments.action == "run" else f"takes no file, but got {arguments.file!r}"
        raise UserError(f"`agentgym sandbox {arguments.action}` {wrong}")
    registry = shell.plugins()
    options = _options(arguments.overrides)
    actions: dict[str, Callable[[], Coroutine[Any, Any, int]]] = {
        "doctor": lambda: _doctor(registry, arguments, options, shell),
        "build": lambda: _build(registry.sandbox(arguments.sandbox or "docker")(options), arguments, shell),
        "clean": lambda: _clean(registry.sandbox(arguments.sandbox or "docker")(options), shell),
        "run": lambda: _run(registry.sandbox(arguments.sandbox or "docker")(options), arguments, shell),
    }
    return run_until_stopped(actions[arguments.action](), shell.warn)


async def _doctor(
    registry: PluginRegistry, arguments: argparse.Namespace, options: SandboxOptions, shell: Shell
) -> int:
    names = [arguments.sandbox] if arguments.sandbox else registry.names("sandboxes")
    found: list[dict[str, object]] = []
    for name in names:
        backend = registry.sandbox(name)(options if arguments.sandbox else {})
        try:
            able = await backend.probe()
        except SandboxUnavailable as error:
            found.append({"sandbox": name, "available": False, "detail": str(error)})
        else:
            limits = {
                "isolated": able.isolated,
                "full_python": able.full_python,
                "network_off": able.network_off,
                "memory_limit": able.memory_limit,
                "process_limit": able.process_limit,
                "per_call_uid": able.per_call_uid,
                "seccomp": able.seccomp,
            }
            found.append({"sandbox": name, "available": True, "detail": able.detail, **limits})
        finally:
            await backend.close()
    if arguments.json:
        shell.say_json(found)
    else:
        _show_capabilities(found, shell)
    return 0 if any(one["available"] for one in found) else 1


def _show_capabilities(found: list[dict[str, object]], shell: Shell) -> None:
    paint = shell.paint
    for one in found:
        state = paint.green("available") if one["available"] else paint.red("not available")
        shell.say(f"{paint.bold(str(one['sandbox']))}: {state}")
        shell.say("\n".join(f"  {line}" for line in str(one["detail"]).splitlines()))
        for key, value in one.items():
            if isinstance(value, bool) and key != "available":
                mark = paint.green("yes") if value else paint.yellow("no")
                shell.say(f"  {key.replace('_', ' ').ljust(14)} {mark}")


async def _build(backend: SandboxBackend, arguments: argparse.Namespace, shell: Shell) -> int:
    try:
        image = await _images(backend).build(shell.warn, pull=arguments.pull)
    finally:
        await backend.close()
    shell.say_json({"image": image}) if arguments.json else shell.say(f"image {image}")
    return 0


async def _clean(backend: SandboxBackend, shell: Shell) -> int:
    try:
        count = await _images(backend).clean(shell.warn)
    finally:
        await backend.close()
    shell.say(f"removed {count} container(s) that dead runs left")
    return 0


async def _run(backend: SandboxBackend, arguments: argparse.Namespace, shell: Shell) -> int:
    code = _read_program(arguments.file)
    limits = Limits(
        wall_s=arguments.wall_s,
        cpu_s=max(1, round(arguments.wall_s)),
        memory_mib=arguments.memory_mib,
    )
    try:
        await backend.probe()
    except SandboxUnavailable as error:
        await backend.close()
        raise UserError(
            f"sandbox {backend.name!r} can't be had: {error}\n`agentgym sandbox doctor` lists the others"
        ) from error
    async with backend:
        result = await backend.run(code, stdin=arguments.stdin, limits=limits)
    if arguments.json:
        shell.say_json(
            {
                "status": result.status.value,
                "exit_code": result.exit_code,
                "stdout": result.stdout,
                "stderr": result.stderr,
                "truncated": result.truncated,
                "wall_s": result.wall_s,
                "cpu_s": result.cpu_s,
                "memory_mib": result.memory_mib,
            }
        )
    else:
        shell.out.write(result.stdout)
        shell.err.write(result.stderr)
        shell.warn(
            f"{result.status.value}, exit code {result.exit_code}, {result.wall_s:.3f} s wall, "
            f"{result.cpu_s:.3f} s cpu, {result.memory_mib:.1f} MiB, in {backend.name}"
        )
    return 0 if result.status is RunStatus.OK else 1


def _images(backend: SandboxBackend) -> ImageBackend:
    if not callable(getattr(backend, "build", None)) or not callable(getattr(backend, "clean", None)):
        raise UserError(f"sandbox {backend.name!r} needs no image, so there is nothing to build or clean")
    return cast(ImageBackend, backend)


def _read_program(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read the program {file!r}: {error}") from None


def _options(overrides: list[str]) -> SandboxOptions:
    given = apply_overrides({"sandbox": {"options": {}}}, overrides)
    sandbox = given["sandbox"]
    options = sandbox.get("options") if isinstance(sandbox, dict) and len(sandbox) == 1 else None
    if len(given) > 1 or not isinstance(options, dict):
        raise UserError("only --sandbox.options.NAME VALUE can be set here")
    return options
