"""A complete sandbox that does nothing: a test overrides what it is about."""

from __future__ import annotations

from typing import Self

from agentgym.sandbox import DEFAULT_LIMITS, Capabilities, Limits, RunResult, RunStatus, SandboxBackend
from agentgym.types import SandboxSpec


class BareBackend(SandboxBackend):
    name = "bare"

    def supports(self, spec: SandboxSpec) -> bool:
        return True

    async def probe(self) -> Capabilities:
        grades = type(self).grade is not SandboxBackend.grade
        return Capabilities(backend=self.name, detail="a fake", isolated=True, grades=grades)

    async def start(self) -> Self:
        return self

    async def close(self) -> None: ...

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        return RunResult(status=RunStatus.OK, exit_code=0, stdout="", stderr="")
