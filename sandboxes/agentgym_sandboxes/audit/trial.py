"""One trial of the hostile suite: a program, or a scene that needs more than one call."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Literal, Protocol, TypeAlias

from agentgym.sandbox import Limits, RunResult, RunStatus, SandboxBackend
from agentgym_sandboxes.audit.findings import Category, Judgement, Outcome
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.prelude import program

Claim: TypeAlias = Literal[
    "isolated",
    "network_off",
    "memory_limit",
    "process_limit",
    "disk_limit",
    "per_call_uid",
    "seccomp",
    "sessions",
    "any_image",
]
"""The field of Capabilities that promises what a trial tests."""

LIMITS = Limits(wall_s=2.0, cpu_s=2, memory_mib=256)
TRIES = 4


class Trial(Protocol):
    """What `verify` runs. Where the backend does not make the claim, or is not isolated, it is not run."""

    @property
    def name(self) -> str: ...

    @property
    def category(self) -> Category: ...

    @property
    def tries(self) -> str: ...

    @property
    def claim(self) -> Claim: ...

    async def attempt(self, backend: SandboxBackend, host: Host) -> Judgement:
        """Try it and judge, on our side, what came of it. InfraErrors are judged by the caller."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A hostile program. `check` judges what it did; what it left is judged by the next-call check.

    Run again when its time was over before it had done anything, as on a stalled machine.

    code: gets the helpers of `prelude.py` unless it is plain, for interpreters of a part of Python, and `@NAME@`
    replaced by the host's values (see `Host`).
    """

    name: str
    tries: str
    check: Callable[[RunResult], Judgement]
    code: str
    _: KW_ONLY
    category: Category
    claim: Claim = "isolated"
    limits: Limits = LIMITS
    stdin: str = ""
    plain: bool = False

    async def attempt(self, backend: SandboxBackend, host: Host) -> Judgement:
        code = host.fill(textwrap.dedent(self.code))
        code = code if self.plain else program(code)
        for _ in range(TRIES):
            result = await backend.run(code, stdin=self.stdin, limits=self.limits)
            judgement = self.check(result)
            if judgement.outcome is not Outcome.BROKEN or result.status is not RunStatus.TIMEOUT:
                break
        return judgement


@dataclass(frozen=True, slots=True)
class Scene:
    """A trial of several calls, of a session, or of a grade."""

    name: str
    tries: str
    act: Callable[[SandboxBackend, Host], Awaitable[Judgement]]
    _: KW_ONLY
    category: Category
    claim: Claim = "isolated"

    async def attempt(self, backend: SandboxBackend, host: Host) -> Judgement:
        return await self.act(backend, host)
