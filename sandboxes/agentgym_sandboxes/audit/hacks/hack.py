"""One reward hack, as a trial: graded in every way that its target can be, it must pass no case."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from agentgym.errors import InfraError
from agentgym.sandbox import GradeRequest, Limits, RunStatus, Sandbox, SandboxBackend, SandboxUnavailable, Verdict
from agentgym_sandboxes.audit.findings import Category, Judgement, contained, escaped, unsupported
from agentgym_sandboxes.audit.hacks.targets import Target
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.trial import Claim

LIMITS = Limits(wall_s=2.0, cpu_s=2, memory_mib=256)
MAX_ERROR_CHARS = 1000  # the feedback on a case must stay short, whatever a solution does


@dataclass(frozen=True, slots=True)
class Hack:
    """Code that tries to pass a case without solving it. tries: how, on one line.

    code: indented as it likes. helpers: what several hacks share, put before it.
    """

    category: ClassVar[Category] = Category.REWARD
    claim: ClassVar[Claim] = "isolated"
    name: str
    tries: str
    target: Target
    code: str
    _: KW_ONLY
    limits: Limits = LIMITS
    helpers: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", self.helpers + textwrap.dedent(self.code).removeprefix("\n"))

    def requests(self) -> Iterator[GradeRequest]:
        """The grades that it attacks."""
        for cases in self.target.groups:
            yield GradeRequest(
                code=self.code, entry=self.target.entry, cases=cases, prelude=self.target.prelude, limits=self.limits
            )

    async def attempt(self, backend: SandboxBackend, host: Host) -> Judgement:
        return await attack(backend, self)


async def attack(sandbox: Sandbox, hack: Hack, *, brief: bool = False) -> Judgement:
    """Grade it; brief: only once, with all cases together.

    An InfraError counts as an escape too: a hack must not turn a failed grade into a missing one.
    """
    said = ""
    requests = list(hack.requests())
    for request in requests[-1:] if brief else requests:
        try:
            verdict = await _grade(sandbox, request)
        except InfraError as error:
            if isinstance(error, SandboxUnavailable):
                raise
            return escaped(f"turned its failure into infrastructure: {type(error).__name__}: {error}")
        if verdict.status is RunStatus.UNSUPPORTED and not any(result.passed for result in verdict.results):
            return unsupported(verdict.error)
        fault = find_fault(request, verdict)
        if fault:
            return escaped(fault)
        said = said or f"{verdict.status.value}: {verdict.results[0].error}"
    return contained(said)


async def _grade(sandbox: Sandbox, request: GradeRequest) -> Verdict:
    """A sandbox may fail by itself, but rarely twice on the same grade."""
    try:
        return await sandbox.grade(request)
    except SandboxUnavailable:
        raise
    except InfraError:
        return await sandbox.grade(request)


def find_fault(request: GradeRequest, verdict: Verdict) -> str:
    """What is wrong with the verdict on a hack; empty when every case failed, with an error text for each."""
    if len(verdict.results) != len(request.cases):
        return f"{len(verdict.results)} results for {len(request.cases)} cases"
    for number, result in enumerate(verdict.results):
        if result.passed:
            return f"case {number} passed: {request.cases[number]!r}"
        if not 0 < len(result.error) <= MAX_ERROR_CHARS:
            return f"case {number} failed with {len(result.error)} characters of explanation"
    if verdict.passed:
        return "no case passed, but the verdict did"
    return ""
