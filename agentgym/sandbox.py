"""What a sandbox promises: model-written code runs contained, and its results come back typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from agentgym.errors import InfraError
from agentgym.types import Json, SandboxSpec


class SandboxUnavailable(InfraError):
    """No sandbox can be had: the message says what was tried and what to do."""


class SandboxLost(InfraError):
    """The sandbox died under the call; the call may be made again."""


class SandboxDirty(InfraError):
    """The call left something that could not be removed; the sandbox was thrown away."""


class RunStatus(StrEnum):
    OK = "ok"
    ERROR = "error"  # the code raised, or exited with another code than 0
    TIMEOUT = "timeout"
    OOM = "oom"
    OUTPUT_LIMIT = "output_limit"
    UNSUPPORTED = "unsupported"  # this interpreter can't run it; it says nothing about the code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may use."""

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_mib: int = 512
    file_mib: int = 16
    processes: int = 32
    output_bytes: int = 64 * 1024  # kept of each stream; the call is killed at 128 times that


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a program did. stdout and stderr are cut at the limit; truncated says so."""

    status: RunStatus
    exit_code: int | None
    stdout: str
    stderr: str
    truncated: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """Call the entry function and compare what it returns.

    args, kwargs, expected: plain builtin values (None, bool, int, float, str, bytes, list, tuple, set, dict).
    Types count: True is not 1, (1,) is not [1]. tolerance: for floats, relative and absolute; 0 is exact.
    """

    args: tuple[object, ...]
    expected: object
    kwargs: tuple[tuple[str, object], ...] = ()
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertCase:
    """Python source that raises when the solution is wrong; it sees the entry's name and `candidate`."""

    source: str


Case: TypeAlias = CallCase | AssertCase


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRequest:
    """A solution and the cases that judge it. prelude: source that the test side runs first."""

    code: str
    entry: str
    cases: tuple[Case, ...]
    prelude: str = ""
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """How one case went. error: what a person would want to read, for example
    'returned 3, expected 4' or 'ZeroDivisionError: division by zero'; empty when it passed."""

    passed: bool
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a solution did, case by case; as many results as there were cases.

    status: ok when every case was judged. error: why the solution could not be judged at all (it does not
    compile, it timed out, …); then the cases that were not reached count as failed.
    """

    status: RunStatus
    results: tuple[CaseResult, ...]
    error: str = ""
    wall_s: float = 0.0

    @property
    def passed(self) -> bool:
        return bool(self.results) and all(result.passed for result in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend enforces on this machine; `detail` is one line for a person."""

    backend: str
    detail: str
    isolated: bool  # another kernel view than ours: files, processes, users
    full_python: bool
    network_off: bool
    memory_limit: bool
    process_limit: bool
    per_call_uid: bool
    seccomp: bool


class Sandbox(Protocol):
    """What environments call. Calls may overlap; each is isolated from every other."""

    @property
    def name(self) -> str: ...

    async def run(self, code: str, *, stdin: str = "", limits: Limits = Limits()) -> RunResult:
        """Run a program. Raises InfraError when the sandbox, not the program, failed."""
        ...

    async def grade(self, request: GradeRequest) -> Verdict:
        """Judge a solution. Raises InfraError when the sandbox, not the solution, failed."""
        ...


class SandboxBackend(Sandbox, Protocol):
    """A sandbox that is started once a run and serves all its episodes."""

    def supports(self, spec: SandboxSpec) -> bool: ...

    async def probe(self) -> Capabilities:
        """What it enforces here. Raises SandboxUnavailable with the way to get it."""
        ...

    async def start(self) -> Self: ...

    async def close(self) -> None:
        """Leave nothing behind; safe to call twice."""
        ...

    def metrics(self) -> dict[str, float]:
        """Counts and times since the start, named `sandbox/<what>_<unit>`."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class ImageBackend(Protocol):
    """A backend that runs images: what `agentgym sandbox build` and `clean` call."""

    async def build(self, say: Callable[[str], None], *, pull: str | None = None) -> str:
        """Pull the image by digest, or build it from a Debian root file system; returns its id."""
        ...

    async def clean(self, say: Callable[[str], None]) -> int:
        """Remove what dead owners left; returns how many containers that were."""
        ...


SandboxOptions: TypeAlias = dict[str, Json]
"""What a recipe says under `sandbox.options`; each backend turns it into a config of its own."""
