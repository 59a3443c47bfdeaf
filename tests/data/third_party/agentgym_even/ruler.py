"""A sandbox that runs no program: it prints how long it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from agentgym import GradeRequest, Limits, RunResult, RunStatus, SandboxSpec, Verdict
from agentgym.sandbox import Capabilities, SandboxBackend

ANY = Limits()


@dataclass
class Ruler(SandboxBackend):
    """unit: characters that count as one."""

    unit: int = 1
    num_calls: int = 0

    @property
    def name(self) -> str:
        return "ruler"

    def supports(self, spec: SandboxSpec) -> bool:
        return self.name in spec.allow_interpreters and not spec.session

    async def probe(self) -> Capabilities:
        return Capabilities(backend=self.name, detail="measures programs", isolated=True)

    async def start(self) -> Self:
        return self

    async def close(self) -> None: ...

    async def run(self, code: str, *, stdin: str = "", limits: Limits = ANY) -> RunResult:
        self.num_calls += 1
        return RunResult(status=RunStatus.OK, exit_code=0, stdout=str(len(code) // self.unit), stderr="")

    async def grade(self, request: GradeRequest) -> Verdict:
        return Verdict(status=RunStatus.UNSUPPORTED, results=(), error="it runs nothing")

    def metrics(self) -> dict[str, float]:
        return {"sandbox/calls_total": self.num_calls}
