"""Which sandbox a command takes when none is named."""

from __future__ import annotations

import argparse
import io

import pytest

from agentgym.cli.jobs import JobShell
from agentgym.errors import UserError
from agentgym.sandbox import Capabilities, SandboxUnavailable
from agentgym_sandboxes.commands.action import Request


class OneThatTakesPackages:
    """A registry of docker, which is not ready, and of bubblewrap, which has no such option."""

    def names(self, kind: str) -> list[str]:
        return ["bubblewrap", "docker"]

    def sandbox(self, name: str) -> object:
        def make(options: dict[str, object]) -> object:
            if name == "bubblewrap":
                raise UserError("sandbox 'bubblewrap' has no option 'packages'")
            return self

        return make

    async def probe(self) -> Capabilities:
        raise SandboxUnavailable("no image. Run `agentgym sandbox build --packages a`")

    async def close(self) -> None: ...


async def test_why_the_first_sandbox_is_missing_is_not_hidden_by_the_next_ones_options() -> None:
    request = Request(
        arguments=argparse.Namespace(sandbox=None),
        options={"packages": ["a"]},
        registry=OneThatTakesPackages(),  # type: ignore[arg-type]
        shell=JobShell(out=io.StringIO(), err=io.StringIO(), jobs=None, plugins=None),  # type: ignore[arg-type]
    )
    with pytest.raises(UserError, match="agentgym sandbox build --packages a"):
        await request.available()
