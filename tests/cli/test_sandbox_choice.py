"""Which sandbox a command takes when none is named."""

from __future__ import annotations

import argparse
import io

import pytest

from agentgym.cli.jobs import JobShell
from agentgym.errors import UserError
from agentgym.sandbox import Capabilities, SandboxBackend, SandboxOptions, SandboxPlugin, SandboxUnavailable
from agentgym_sandboxes.commands.action import Request


class OneThatTakesPackages:
    """The first by rank takes packages and is not ready; the second has no such option."""

    def sandboxes(self) -> dict[str, SandboxPlugin]:
        def second(options: SandboxOptions) -> SandboxBackend:
            raise UserError("sandbox 'second' has no option 'packages'")

        return {
            "first": SandboxPlugin(create=lambda options: self, auto_rank=1),  # type: ignore[arg-type, return-value]
            "second": SandboxPlugin(create=second, auto_rank=2),
            "unsafe": SandboxPlugin(create=lambda options: pytest.fail("it was tried")),
        }

    def sandbox(self, name: str) -> SandboxPlugin:
        return self.sandboxes()[name]

    async def probe(self) -> Capabilities:
        raise SandboxUnavailable("no image. Run `agentgym sandbox build --packages a`")

    async def close(self) -> None: ...


async def test_why_the_first_sandbox_is_unavailable_is_not_hidden_by_the_next_ones_options() -> None:
    request = Request(
        arguments=argparse.Namespace(sandbox=None),
        options={"packages": ["a"]},
        registry=OneThatTakesPackages(),  # type: ignore[arg-type]
        shell=JobShell(out=io.StringIO(), err=io.StringIO(), jobs=None, plugins=None),  # type: ignore[arg-type]
    )
    with pytest.raises(UserError, match="agentgym sandbox build --packages a"):
        await request.available()
