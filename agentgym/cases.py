"""What a sandbox is given and gives back: limits, what a program did, cases, and verdicts on solutions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from agentgym.errors import UserError
from agentgym.utf8 import clean_fields


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
    reserves: bool = False
    """Whether it reserves far more memory than it uses, as JavaScript engines do. For commands of a session: only the
    memory of the whole sandbox limits them then."""

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 0 < getattr(self, name) <= most:  # what can't be set would look like the code's failure
                raise UserError(f"limit {name} is {getattr(self, name)}; it must be above 0, at most {most}")


DEFAULT_LIMITS = Limits()


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
    limits: Limits = DEFAULT_LIMITS

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
