"""What a sandbox promises: model-written code runs contained, and its results come back typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from agentgym.errors import InfraError, UserError
from agentgym.types import Json, SandboxSpec
from agentgym.utf8 import clean_fields


class SandboxUnavailable(InfraError):
    """No sandbox is available: the message says what was tried and what to do."""


class SandboxLost(InfraError):
    """The sandbox died under the call; the call may be made again."""


class SandboxDirty(InfraError):
    """The call left something that could not be removed; the sandbox was thrown away."""


class SandboxDiskFull(SandboxUnavailable):
    """The host has no room left for a sandbox: the message says where, and how much there is."""


class FileRefused(ValueError):
    """A session's file can't be handed over: it is missing, too large, no regular file, or its path leaves
    the work folder. The agent's mistake or the caller's, never the sandbox's."""


class RunStatus(StrEnum):
    OK = "ok"
    ERROR = "error"  # the code raised, or exited with another code than 0
    TIMEOUT = "timeout"  # of wall time or of CPU time
    OOM = "oom"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"  # no room or no inode left in the sandbox, or a file grew too large
    PROCESS_LIMIT = "process_limit"  # it could not start another process or thread, and ended with that
    UNSUPPORTED = "unsupported"  # this interpreter can't run it; it says nothing about the code


_MOST = {
    "wall_s": 1_000_000,
    "cpu_s": 1_000_000,
    "memory_mib": 1 << 24,
    "file_mib": 1 << 24,
    "processes": 1 << 22,
    "output_bytes": 1 << 30,
    "answer_mib": 1 << 14,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may use. Raises UserError for a limit that no machine could keep."""

    wall_s: float = 10.0
    """Seconds of wall time."""
    cpu_s: int = 10
    """Seconds of CPU time."""
    memory_mib: int = 512
    """Memory, in MiB."""
    file_mib: int = 16
    """The size of each file that it writes, in MiB."""
    processes: int = 32
    """Processes and threads at the same time."""
    output_bytes: int = 64 * 1024
    """Bytes that are kept of each stream; the call is killed at 128 times that."""
    answer_mib: int = 32
    """MiB that all of a solution's return values may take on their way to the grade."""

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 0 < getattr(self, name) <= most:  # what can't be set would look like the code's failure
                raise UserError(f"limit {name} is {getattr(self, name)}; it must be above 0, at most {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHit:
    """The limit that ended a call. resource names it with its unit: wall_s, cpu_s, memory_mib, output_bytes,
    answer_mib, disk_mib, files, file_mib or processes."""

    resource: str
    used: float
    allowed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a program did. stdout and stderr are cut at the limit; truncated says so.

    stdout_bytes, stderr_bytes: the same, as written; in the text, what is no UTF-8 reads U+FFFD.
    limit: what was used and allowed, when status is a limit's. state_lost: of a session, its Python had to be
    killed, so names are gone; files are not.
    """

    status: RunStatus
    exit_code: int | None
    stdout: str
    stderr: str
    truncated: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mib: float = 0.0
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    limit: LimitHit | None = None
    state_lost: bool = False

    def __post_init__(self) -> None:
        clean_fields(self, "stdout", "stderr")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """Call the entry function and compare what it returns. Raises UserError when args is not a tuple or list.

    args, kwargs, expected: plain builtin values (None, bool, int, float, str, bytes, list, tuple, set, dict).
    Types count: True is not 1, (1,) is not [1]. tolerance: for floats, relative and absolute; 0 is exact.
    expected_args: what the positional arguments must be after the call, for functions that work in place.
    as_list: an iterator or a generator that it returns is read to its end first, and compared as a list.
    """

    args: tuple[object, ...]
    expected: object = None
    kwargs: tuple[tuple[str, object], ...] = ()
    tolerance: float = 0.0
    expected_args: tuple[object, ...] | None = None
    as_list: bool = False

    def __post_init__(self) -> None:
        for name in ("args", "expected_args"):
            given = getattr(self, name)
            if not isinstance(given, (tuple, list)) and (name == "args" or given is not None):
                text = f"{name} of a case is {given!r:.100}; give a tuple, of one argument as {name}=(x,)"
                raise UserError(text)  # the letters of a text would become its arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertCase:
    """Python source that raises when the solution is wrong; it sees the entry's name and `candidate`.

    Arguments that the solution changed in place are changed here too. What it returns that is not a plain value
    (a generator, an instance of its own class) is used through a proxy.
    """

    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioCase:
    """Run the code as a program of its own on `stdin`, and compare what it prints.

    Lines are compared without the white space at their ends, and without empty lines at the end. tolerance:
    above 0, words that are numbers on both sides may differ by that, relative and absolute.
    """

    stdin: str
    expected: str
    tolerance: float = 0.0


Case: TypeAlias = CallCase | AssertCase | StdioCase


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRequest:
    """A solution and the cases that judge it.

    entry: the function or class under test; `Solution.method` makes an instance for every call. Stdio cases
    need none, and don't mix with others: each is a program of its own, with the limits for itself.
    prelude: trusted source that the test side runs first, as helper functions that a prompt gave.
    Raises UserError for calls without an entry.
    """

    code: str
    entry: str
    cases: tuple[Case, ...]
    prelude: str = ""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not self.entry.strip() and any(isinstance(case, CallCase) for case in self.cases):
            raise UserError("a case calls the entry, and the entry is ''; name the function or class under test")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """How one case went. error: what a person would want to read, for example
    'returned 3, expected 4' or 'ZeroDivisionError: division by zero'; empty when it passed."""

    passed: bool
    error: str = ""

    def __post_init__(self) -> None:
        clean_fields(self, "error")


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
    limit: LimitHit | None = None

    def __post_init__(self) -> None:
        clean_fields(self, "error")

    @property
    def passed(self) -> bool:
        return bool(self.results) and all(result.passed for result in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend enforces on this machine; `detail` is one line for a person."""

    backend: str
    detail: str
    isolated: bool = False  # another kernel view than ours: files, processes, users
    full_python: bool = False
    network_off: bool = False
    memory_limit: bool = False
    process_limit: bool = False
    per_call_uid: bool = False
    seccomp: bool = False
    disk_limit: bool = False
    sessions: bool = False
    network_allow_list: bool = False  # a session may be given a proxy to named hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file or folder of a session's work folder. path: relative to it. size: in bytes, 0 for a folder."""

    path: str
    size: int
    is_folder: bool = False


class Session(Protocol):
    """A sandbox for one episode: names, files and processes last from call to call, until reset or close.

    Calls take turns. All raise InfraError when the sandbox, not the code, failed; the episode is then made
    again. Paths are relative to the work folder.
    """

    async def run(self, code: str, *, stdin: str = "", limits: Limits = Limits()) -> RunResult:
        """Run code in the session's Python, where names last; as at a prompt, the value of a last expression
        is printed. At the wall limit it is interrupted, which keeps the names, and killed when it goes on."""
        ...

    async def exec(
        self, command: str | Sequence[str], *, stdin: str = "", folder: str = ".", limits: Limits = Limits()
    ) -> RunResult:
        """Run a command: a string goes to `sh -c`. What it starts in the background lasts with the session."""
        ...

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """A regular file. Raises FileRefused for all else."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Make or replace a regular file, and the folders above it. Raises FileRefused."""
        ...

    async def files(self, path: str = ".") -> tuple[FileInfo, ...]:
        """All below a folder, sorted by path; links and devices are left out. Raises FileRefused."""
        ...

    async def reset(self) -> None:
        """Makes the sandbox as new: no process, no name, no file is left."""
        ...

    async def snapshot(self) -> bytes:
        """The work folder as a tar archive of folders and regular files. Raises FileRefused when too large."""
        ...

    async def restore(self, snapshot: bytes) -> None:
        """Put a snapshot in place of all files; names and processes go. Raises FileRefused for a bad archive."""
        ...

    async def forward(self, target: str) -> int:
        """Lead a port on 127.0.0.1, in the session, to one server of ours, while the session lasts; its number.

        target: `unix:/path` or `http://127.0.0.1:PORT` of this machine; a session has one. Nothing else becomes
        reachable, and no network is needed for it. Raises UserError for another target.
        """
        raise UserError("sessions of this sandbox lead to no server of ours; take the sandbox 'docker'")


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

    def session(self, *, network: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Session]:
        """A sandbox leased for an episode: `async with sandbox.session() as session`.

        network: the only hosts it may reach, as `pypi.org`, `*.example.org` or `host:8080`; none by default.
        Raises UserError where the backend has no sessions, SandboxUnavailable when none comes free in time.
        """
        raise UserError(f"sandbox {self.name!r} has no sessions; `agentgym sandbox doctor` reports which have")


class SandboxBackend(Sandbox, Protocol):
    """A sandbox that is started once a run and serves all its episodes. Inherit it for `async with` and `session`."""

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

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class ImageBackend(Protocol):
    """A backend that runs images: what `agentgym sandbox build` and `clean` call."""

    async def build(self, say: Callable[[str], None], *, pull: str | None = None) -> str:
        """Pull the image by digest, or build it from a Debian root file system; returns its id."""
        ...

    async def clean(self, say: Callable[[str], None]) -> int:
        """Remove what dead owners left; returns how many containers that were."""
        ...


SandboxOptions: TypeAlias = dict[str, Json]
"""What a recipe has under `sandbox.options`; each backend turns it into a config of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPlugin:
    """What the hook `sandboxes` gives for a name: how to create the backend, and what it declares before that.

    create: makes the backend, not started, and imports its libraries only then. Raises UserError for options that it
        does not take. What it enforces on this machine, its `probe` reports; `auto` takes only what is isolated.
    auto_rank: its place when `auto` chooses, the lowest first; None is chosen by its name only.
    interpreter: it runs a part of Python, so `auto` takes it only for tasks that allow it by name.
    contents: options that decide what solutions find in it, as packages. When one is set, `auto` takes no sandbox
        that lacks the option.
    needs: Python distributions, as pip takes them: `engine>=2`.
    setup: what to do to get it, in a sentence with its commands in backticks.
    config: import path of the dataclass whose fields are the options, so that `agentgym settings` lists them.
    """

    create: Callable[[SandboxOptions], SandboxBackend]
    auto_rank: int | None = None
    interpreter: bool = False
    contents: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    setup: str = ""
    config: str = ""

    def __call__(self, options: SandboxOptions) -> SandboxBackend:
        return self.create(options)
