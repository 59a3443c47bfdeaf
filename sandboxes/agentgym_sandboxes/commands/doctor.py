"""`agentgym sandbox doctor`: what each sandbox enforces on this machine, or how to get it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import commands_in, table_lines, wrap
from agentgym.errors import UserError
from agentgym.sandbox import Capabilities, SandboxUnavailable
from agentgym_sandboxes.commands.action import Request, probe

SUMMARY = "what is available, what is missing, how to get it"
DESCRIPTION = """
Look at every sandbox: what it enforces on this machine, or why it is unavailable and what to do. Nothing is
changed. Exit code 0 when one full sandbox is available: isolated, with all of Python, without network, and with
limits on memory and processes; with --sandbox, when that one is available.
"""
EXAMPLES = """
agentgym sandbox doctor
agentgym sandbox doctor --sandbox docker --sandbox.options.runtime runsc
agentgym sandbox doctor --json
"""
FULL = ("isolated", "full_python", "network_off", "memory_limit", "process_limit")
ENFORCED = tuple(field.name for field in fields(Capabilities) if field.name not in ("backend", "detail"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One sandbox. able: None when it is unavailable; detail then holds the reason and what to do."""

    name: str
    detail: str
    able: Capabilities | None = None

    @property
    def is_full(self) -> bool:
        return self.able is not None and all(getattr(self.able, name) for name in FULL)

    @property
    def commands(self) -> list[str]:
        """The commands that its message suggests."""
        return [] if self.able else commands_in(self.detail)

    def to_mapping(self) -> dict[str, object]:
        flags = {name: getattr(self.able, name) for name in ENFORCED} if self.able else {}
        return {
            "sandbox": self.name,
            "available": self.able is not None,
            "full": self.is_full,
            "detail": self.detail,
            "commands": self.commands,
            **flags,
        }


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--sandbox", metavar="NAME", help="only this one (default: all)")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


async def run(request: Request) -> int:
    named: str | None = request.arguments.sandbox
    found = [await _look(request, name) for name in ([named] if named else request.registry.names("sandboxes"))]
    good = any(one.able is not None if named else one.is_full for one in found)
    if request.arguments.json:
        request.shell.say_json([one.to_mapping() for one in found])
    else:
        _show(found, request.shell)
        if not named:
            _conclude(found, request.shell)
    return 0 if good else 1


async def _look(request: Request, name: str) -> Found:
    """Options belong to a named sandbox: no two take the same."""
    try:
        if request.arguments.sandbox:
            able = await probe(request.backend(name))
        else:
            able = await probe(request.registry.sandbox(name)({}))
    except SandboxUnavailable as error:
        return Found(name=name, detail=str(error))
    except (UserError, ImportError) as error:
        if request.arguments.sandbox:
            raise
        return Found(name=name, detail=str(error))  # it needs options, or its plugin is broken
    return Found(name=name, detail=able.detail, able=able)


def _show(found: list[Found], shell: Shell) -> None:
    """Status and remedy of each sandbox; then what they enforce, side by side."""
    paint, width = shell.paint, shell.width
    for one in found:
        state = paint.green("available") if one.able else paint.yellow("not available")
        shell.say(f"{paint.bold(one.name)}: {state}")
        shell.say(wrap(one.detail, width))
        for command in one.commands:
            shell.say(f"  {paint.dim('>')} {paint.cyan(command)}")
    there = [one for one in found if one.able is not None]
    if not there:
        return
    shell.say()
    fits = len(table_lines(*_enforced(there))[1]) <= width
    for some in [there] if fits else [[one] for one in there]:
        shell.say_table(*_enforced(some))


def _enforced(found: list[Found]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: what each of the sandboxes enforces."""
    rows = [
        (name.replace("_", " "), *("yes" if getattr(one.able, name) else "no" for one in found)) for name in ENFORCED
    ]
    return ("enforced", *(one.name for one in found)), rows


def _conclude(found: list[Found], shell: Shell) -> None:
    full = [one.name for one in found if one.is_full]
    if full:
        shell.say(f"\nRuns that execute code can use: {', '.join(full)}.")
        return
    shell.say(f"\n{shell.paint.red('No full sandbox is available here.')} To get one:")
    label = 4 + max(len(one.name) for one in found)
    for one in found:
        for number, command in enumerate(one.commands):
            shell.say(f"  {'' if number else one.name + ':'}".ljust(label) + command)
