"""What an action of `agentgym sandbox` is given, and how it finds its sandbox."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import Capabilities, SandboxBackend, SandboxOptions, SandboxUnavailable

CONTAINING = ("docker", "bubblewrap")
"""What is tried, in this order, when no sandbox is named: never what does not contain."""


class Action(Protocol):
    """A module of `agentgym_sandboxes.commands`."""

    SUMMARY: str
    DESCRIPTION: str
    EXAMPLES: str

    def add_arguments(self, parser: Parser) -> None: ...

    async def run(self, request: Request) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of an action. options: the `--sandbox.options`."""

    arguments: argparse.Namespace
    options: SandboxOptions
    registry: PluginRegistry
    shell: Shell

    def backend(self, name: str) -> SandboxBackend:
        """Not started. Raises UserError for an unknown name or option."""
        return self.registry.sandbox(name)(self.options)

    async def available(self) -> tuple[str, Capabilities]:
        """The sandbox that was named, or the first that contains. Raises UserError with what to do."""
        named: str | None = self.arguments.sandbox
        installed = self.registry.names("sandboxes")
        names = [named] if named else [name for name in CONTAINING if name in installed]
        refused: list[tuple[str, Exception]] = []
        for name in names:
            try:
                return name, await probe(self.backend(name))
            except SandboxUnavailable as error:
                refused.append((name, error))
            except UserError as error:
                if not refused:
                    raise
                refused.append(
                    (name, error)
                )  # options belong to one sandbox: that another lacks them is not a mistake
        raise refusal(refused)


def refusal(refused: Sequence[tuple[str, Exception]]) -> UserError:
    """Why none of the sandboxes that were tried is available."""
    lines = [f"sandbox {name!r} is unavailable: {error}" for name, error in refused]
    if not lines:
        lines = [f"no sandbox that contains is installed; looked for {', '.join(CONTAINING)}"]
    return UserError("\n".join([*lines, "`agentgym sandbox doctor` shows what is available"]))


async def probe(backend: SandboxBackend) -> Capabilities:
    """What a backend enforces; closes it. Raises SandboxUnavailable."""
    try:
        return await backend.probe()
    finally:
        await backend.close()


def add_sandbox_argument(parser: Parser) -> None:
    parser.add_argument("--sandbox", metavar="NAME", help=f"default: the first of {', '.join(CONTAINING)}")


def options_of(overrides: list[str]) -> SandboxOptions:
    """Raises UserError for overrides of anything else."""
    given = apply_overrides({"sandbox": {"options": {}}}, overrides)
    sandbox = given["sandbox"]
    options = sandbox.get("options") if isinstance(sandbox, dict) and len(sandbox) == 1 else None
    if len(given) > 1 or not isinstance(options, dict):
        raise UserError("only --sandbox.options.NAME VALUE can be set here")
    return options
