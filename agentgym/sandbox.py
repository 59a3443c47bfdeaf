"""What a sandbox promises: model-written code runs contained, and its results come back typed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

from agentgym.cases import DEFAULT_LIMITS as DEFAULT_LIMITS
from agentgym.cases import AssertCase as AssertCase
from agentgym.cases import CallCase as CallCase
from agentgym.cases import Case as Case
from agentgym.cases import CaseResult as CaseResult
from agentgym.cases import GradeRequest as GradeRequest
from agentgym.cases import LimitHit as LimitHit
from agentgym.cases import Limits as Limits
from agentgym.cases import RunResult as RunResult
from agentgym.cases import RunStatus as RunStatus
from agentgym.cases import StdioCase as StdioCase
from agentgym.cases import Verdict as Verdict
from agentgym.contracts import Contract
from agentgym.errors import InfraError, UserError
from agentgym.types import SandboxSpec


class SandboxUnavailable(InfraError):
    """No sandbox is available: the message says what was tried and what to do."""


class SandboxLost(InfraError):
    """The sandbox died under the call; the call may be made again."""


class SandboxDirty(InfraError):
    """The call left something that could not be removed; the sandbox was thrown away."""


class SandboxDiskFull(SandboxUnavailable):
    """The host has no room left for a sandbox: the message says where, and how much there is."""


class ImageUnusable(SandboxUnavailable):
    """A task's image is missing, can't be built, or can't run here: the message says which and why, with the engine's
    last lines. No task is scored by it."""


class FileRefused(ValueError):
    """A session's file can't be handed over: it is missing, too large, no regular file, or its path leaves
    the work folder. The agent's mistake or the caller's, never the sandbox's."""


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
    any_image: bool = False  # a session may run in any Linux image, and as a task's own machine
    grades: bool = True  # `grade` judges solutions; False: it only runs code, and tasks that are graded are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file or folder of a session's work folder. path: relative to it. size: in bytes, 0 for a folder."""

    path: str
    size: int
    is_folder: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """What a container has that differs from its image. path: absolute."""

    path: str
    kind: Literal["changed", "added", "deleted"]


class Stream(Protocol):
    """The standard input and output of a program. Raises OSError once it is gone."""

    async def read(self) -> bytes:
        """The next piece; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Return when there is room for more."""
        ...

    def abort(self) -> None:
        """Close both."""
        ...


class MachineFiles(Protocol):
    """Files of a task's container, through the engine: no program of the container plays a part.

    Paths are absolute, and none lies below /dev, /proc, /sys or /.agentgym. A missing file, one that is too large and
    a path that is refused raise FileRefused; an engine that fails raises InfraError.
    """

    async def get_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """A regular file's bytes. A link, a device, a folder and a file of more than max_bytes are refused."""
        ...

    async def get(
        self, path: str, *, max_bytes: int = 64 << 20, exclude: Sequence[str] = (), keep_links: bool = False
    ) -> bytes:
        """What a folder contains, as a tar archive with names below it; of a file, that file by its last name.

        The archive has folders, regular files without setuid bits, and links that stay inside: it may be given to `put`
        of another machine, and unpacked here. keep_links: links that leave the folder too, for `put` alone.
        exclude: patterns as of `tar --exclude`: `*.pyc`, `build/out`.
        """
        ...


class FrozenMachine(MachineFiles, Protocol):
    """A container's files as they were at one moment. No process of it runs, and none can change them.

    image: for `SandboxSpec.image`, of a session in which no process of that container ever ran.
    changes: what differs from the image that the container was made of, its /tmp and the like too, sorted by path.
    """

    image: str
    changes: tuple[FileChange, ...]


class Machine(MachineFiles, Protocol):
    """A task's own container, beside what `Session` does in it as the task's user."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str = "",
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        folder: str = ".",
        limits: Limits = DEFAULT_LIMITS,
    ) -> RunResult:
        """As `Session.exec`. user: `root`, `name`, `1000` or `1000:1000` in place of the session's; env: further
        variables. Raises UserError for a user that the image does not have."""
        ...

    def talk(
        self,
        command: Sequence[str],
        *,
        user: str = "",
        env: Mapping[str, str] | None = None,
        folder: str = ".",
        errors: str = "/dev/null",
    ) -> AbstractAsyncContextManager[Stream]:
        """Start a program, and speak with it over its standard streams while the block lasts, beside commands.

        errors: the file there to which its standard error is added. Raises InfraError where it does not start. What it
        says is the agent's as much as the container is: it may be replaced, killed and faked.
        """
        ...

    async def put(
        self, folder: str, files: bytes | Mapping[str, bytes] | Path, *, replace: bool = False, owner: int = 0
    ) -> None:
        """Lay files into a folder, which is made if need be.

        files: a tar archive that `get` returned; contents by path below the folder, of which those that begin with
        `#!` can be executed; or a folder of this machine. replace: nothing else is left in the folder, and a link in
        its place is no more. owner: the uid and gid of files that are not an archive's.
        """
        ...

    async def end_processes(self) -> None:
        """Kill all that runs in the container but our agent. Raises SandboxDirty for what can't be killed."""
        ...

    def freeze(self) -> AbstractAsyncContextManager[FrozenMachine]:
        """The container's files as an image, which is removed when the block ends; the session goes on.

        Raises FileRefused when they are more than the spec's disk_mib, and UserError where the image keeps a folder on
        a volume, which no image contains.
        """
        ...

    def untouched(self) -> AbstractAsyncContextManager[MachineFiles]:
        """The files of the image that the container was made of, while the block lasts."""
        ...


class Session(Contract, Protocol):
    """A sandbox for one episode: names, files and processes last from call to call, until reset or close.

    Calls take turns. All raise InfraError when the sandbox, not the code, failed; the episode is then made
    again. Paths are relative to the work folder.
    """

    @abstractmethod
    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        """Run code in the session's Python, where names last; as at a prompt, the value of a last expression
        is printed. At the wall limit it is interrupted, which keeps the names, and killed when it goes on."""

    @abstractmethod
    async def exec(
        self, command: str | Sequence[str], *, stdin: str = "", folder: str = ".", limits: Limits = DEFAULT_LIMITS
    ) -> RunResult:
        """Run a command: a string goes to `sh -c`. What it starts in the background lasts with the session."""

    @abstractmethod
    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """A regular file. Raises FileRefused for all else."""

    @abstractmethod
    async def write(self, path: str, data: bytes) -> None:
        """Make or replace a regular file, and the folders above it. Raises FileRefused."""

    @abstractmethod
    async def files(self, path: str = ".") -> tuple[FileInfo, ...]:
        """All below a folder, sorted by path; links and devices are left out. Raises FileRefused."""

    @abstractmethod
    async def reset(self) -> None:
        """Makes the sandbox as new: no process, no name, no file is left."""

    @abstractmethod
    async def snapshot(self) -> bytes:
        """The work folder as a tar archive of folders and regular files. Raises FileRefused when too large."""

    @abstractmethod
    async def restore(self, snapshot: bytes) -> None:
        """Put a snapshot in place of all files; names and processes go. Raises FileRefused for a bad archive."""

    async def forward(self, target: str) -> int:
        """Lead a port on 127.0.0.1, in the session, to one server of ours, while the session lasts; its number.

        target: `unix:/path` or `http://127.0.0.1:PORT` of this machine; a session has one. Nothing else becomes
        reachable, and no network is needed for it. Raises UserError for another target.
        """
        raise UserError("sessions of this sandbox lead to no server of ours; take the sandbox 'docker'")

    @property
    def machine(self) -> Machine:
        """The container of a session with profile "task", for the environment. Raises UserError for all others."""
        raise UserError("only sessions of profile 'task' of the sandbox 'docker' have a machine of their own")


class Sandbox(Protocol):
    """What environments call. Calls may overlap; each is isolated from every other."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        """Run a program. Raises InfraError when the sandbox, not the program, failed."""

    async def grade(self, request: GradeRequest) -> Verdict:
        """Judge a solution. Raises InfraError when the sandbox, not the solution, failed.

        `agentgym.grading` has graders that need no more than `run`. A backend without any only runs code: it leaves
        this method out, and its `Capabilities.grades` is False.
        """
        raise UserError(
            f"sandbox {self.name!r} runs code and judges no solutions; with SandboxSpec(grades=True) the tasks are "
            "refused before a run starts"
        )

    def session(self, *, network: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Session]:
        """A sandbox leased for an episode: `async with sandbox.session() as session`.

        network: the only hosts it may reach, as `pypi.org`, `*.example.org` or `host:8080`; none by default.
        Raises UserError where the backend has no sessions, SandboxUnavailable when none comes free in time.
        """
        raise UserError(f"sandbox {self.name!r} has no sessions; `agentgym sandbox doctor` reports which have")

    def session_for(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Session]:
        """A session as a task's spec asks for it: its hosts, its image, its profile. Raises as `session` does."""
        if spec.image is not None or spec.profile == "task":
            raise UserError(
                f"sandbox {self.name!r} has no sessions in images that a task names; take the sandbox 'docker'"
            )
        if spec.network == "public":
            raise UserError(f"sessions of sandbox {self.name!r} have no network 'public'; take the sandbox 'docker'")
        return self.session(network=spec.network)

    def expect(self, specs: Iterable[SandboxSpec]) -> None:
        """Sessions that will be asked for, in this order: what takes long is prepared meanwhile, as images are.

        It may be called again with what comes after those, and does nothing where there is nothing to prepare.
        """
        return

    async def make_images(self, specs: Iterable[SandboxSpec]) -> Mapping[SandboxSpec, str]:
        """Build what sessions of these specs need and bring, before any of them opens; why some can't be made.

        Images that have to be fetched are left for `expect`. Raises InfraError where the sandbox itself fails.
        """
        return {}


class SandboxBackend(Sandbox, Contract, Protocol):
    """A sandbox that is started once a run and serves all its episodes. Inherit it for `async with` and `session`."""

    @abstractmethod
    def supports(self, spec: SandboxSpec) -> bool: ...

    @abstractmethod
    async def probe(self) -> Capabilities:
        """What it enforces here. Raises SandboxUnavailable with the way to get it."""

    @abstractmethod
    async def start(self) -> Self: ...

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind; safe to call twice."""

    def images(self) -> Mapping[str, str]:
        """The images of tasks since the start, by the name or the folder that a task gave: digests, or ids."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Counts and times since the start, named `sandbox/<what>_<unit>`; none unless it is overridden."""
        return {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class ImageBackend(Protocol):
    """A backend that runs images: what `agentgym sandbox build` and `clean` call."""

    async def build(self, say: Callable[[str], None], *, pull: str | None = None) -> str:
        """Pull the image by digest, or build it from a Debian root file system; returns its id."""

    async def clean(self, say: Callable[[str], None]) -> int:
        """Remove what dead owners left; returns how many containers that were.

        One that also takes `volumes: bool` can remove its cached volumes, too (`clean --volumes`).
        """


SandboxOptions: TypeAlias = dict[str, Any]
"""What a recipe has under `sandbox.options`: JSON that each backend turns into a config of its own."""


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
