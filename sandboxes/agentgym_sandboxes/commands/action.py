"""What an action of `agentgym sandbox` is given, and how it finds its sandbox."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import Capabilities, SandboxBackend, SandboxOptions, SandboxUnavailable
from agentgym.types import Json


class Action(Protocol):
    """A module of `agentgym_sandboxes.commands`."""

    SUMMARY: str
    DESCRIPTION: str
    EXAMPLES: str

    def add_arguments(self, parser: Parser) -> None: ...

    async def run(self, request: Request) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of an action. options: the `--sandbox.options`; env_options: the `--env.options`, if it takes them."""

    arguments: argparse.Namespace
    options: SandboxOptions
    registry: PluginRegistry
    shell: Shell
    env_options: Mapping[str, Json] = field(default_factory=dict)

    def backend(self, name: str) -> SandboxBackend:
        """The backend, not started. Raises UserError for an unknown name or option."""
        return self.registry.sandbox(name)(self.options)

    async def available(self) -> tuple[str, Capabilities]:
        """The sandbox that was named, or the first by rank that is not an interpreter.

        Raises UserError with what to do.
        """
        named: str | None = self.arguments.sandbox
        plugins = self.registry.sandboxes()
        ranked = [k for k, plugin in plugins.items() if plugin.auto_rank is not None and not plugin.interpreter]
        if not named and not ranked:
            known = ", ".join(plugins) or "(none is installed)"
            raise UserError(f"no installed sandbox is chosen by itself; name one with --sandbox: {known}")
        refused: list[tuple[str, Exception]] = []
        for name in [named] if named else ranked:
            try:
                return name, await probe(self.backend(name))
            except SandboxUnavailable as error:
                refused.append((name, error))
            except UserError as error:
                if not refused:
                    raise
                refused.append((name, error))  # options are one sandbox's: another may refuse them
        raise refusal(refused)


def refusal(refused: Sequence[tuple[str, Exception]]) -> UserError:
    """Why none of the sandboxes that were tried is available."""
    lines = [f"sandbox {name!r} is unavailable: {error}" for name, error in refused]
    return UserError("\n".join([*lines, "`agentgym sandbox doctor` shows what is available"]))


async def probe(backend: SandboxBackend) -> Capabilities:
    """What a backend enforces; closes it. Raises SandboxUnavailable."""
    try:
        return await backend.probe()
    finally:
        await backend.close()


def add_sandbox_argument(parser: Parser) -> None:
    parser.add_argument("--sandbox", metavar="NAME", help="default: the first that `auto` would take")


def options_of(overrides: list[str], *, env: bool = False) -> tuple[SandboxOptions, dict[str, Json]]:
    """Those of the sandbox, and where `env` of the environment. Raises UserError for overrides of anything else."""
    names = ["sandbox", "env"] if env else ["sandbox"]
    given = apply_overrides({name: {"options": {}} for name in names}, overrides)
    parts = [given[name] for name in names]
    found = [part.get("options") if isinstance(part, dict) and len(part) == 1 else None for part in parts]
    if len(given) > len(names) or not all(isinstance(options, dict) for options in found):
        raise UserError(f"only {' and '.join(f'--{name}.options.NAME VALUE' for name in names)} can be set here")
    sandbox, *others = cast("list[dict[str, Json]]", found)
    return sandbox, others[0] if others else {}
