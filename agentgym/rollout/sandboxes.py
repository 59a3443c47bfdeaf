"""Which sandbox a run uses, and how long its calls are in flight."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.rollout.activity import Activity
from agentgym.sandbox import (
    FileInfo,
    GradeRequest,
    Limits,
    RunResult,
    Sandbox,
    SandboxBackend,
    SandboxOptions,
    SandboxUnavailable,
    Session,
    Verdict,
)
from agentgym.types import SandboxSpec, Task

log = logging.getLogger(__name__)

DEFAULT_LIMITS = Limits()
CONTAINING = ("docker", "bubblewrap")  # what `auto` tries for any task, in this order
# Options of Docker's without which solutions could not import what they need.
CONTENTS = ("image", "packages")
WITH_SESSIONS = ("docker",)  # of these


async def choose_sandbox(
    name: str,
    options: SandboxOptions,
    tasks: Iterable[Task],
    registry: PluginRegistry,
    say: Callable[[str], None],
) -> SandboxBackend | None:
    """The backend, probed but not started; None when no task asks for one.

    `auto` takes Docker, else bubblewrap, else the first interpreter that every task allows: never what does
    not contain. options are Docker's then. Raises UserError for options that it does not take, and when a named
    sandbox can't serve the tasks or isn't there, and says what to do.
    """
    specs = [task.sandbox for task in tasks if task.sandbox is not None]
    if not specs:
        return None
    if name != "auto":
        backend = registry.sandbox(name)(options)
        _check_serves(backend, specs)
        try:
            await backend.probe()
        except SandboxUnavailable as error:
            raise UserError(f"sandbox {name!r} can't be had: {error}") from error
        return backend
    return await _choose_any(options, specs, registry, say)


async def _choose_any(
    options: SandboxOptions,
    specs: list[SandboxSpec],
    registry: PluginRegistry,
    say: Callable[[str], None],
) -> SandboxBackend:
    allowed = [
        name for name in specs[0].allow_interpreters if all(name in s.allow_interpreters for s in specs)
    ]
    reasons: list[str] = []
    if options and "docker" in registry.names("sandboxes"):
        registry.sandbox("docker")(options)  # a mistake in them is no reason to take another sandbox
    contents = [f"sandbox.options.{name}" for name in CONTENTS if options.get(name)]
    for name in ["docker"] if contents else [*CONTAINING, *allowed]:
        try:
            backend = registry.sandbox(name)(options if name == "docker" else {})
            _check_serves(backend, specs)
            await backend.probe()
        except (SandboxUnavailable, UserError) as error:
            reasons.append(f"{name}: {error}")
            continue
        if name != "docker":
            what = "" if name in CONTAINING else ", an interpreter that these tasks allow"
            unused = "; sandbox.options are Docker's and do not count" if options else ""
            say(f"sandbox: {name}{what}, because {reasons[0].splitlines()[0]}{unused}")
        return backend
    if contents:
        reasons.append(f"others were not tried: they have nothing of {' and '.join(contents)}")
    raise UserError(
        "these tasks run code, and no sandbox can be had:\n  " + "\n  ".join(reasons) + "\n"
        "Start Docker (`agentgym sandbox doctor` says how), then `agentgym sandbox build`."
    )


def _check_serves(backend: SandboxBackend, specs: list[SandboxSpec]) -> None:
    for spec in specs:
        if not backend.supports(spec):
            able = WITH_SESSIONS if spec.session else (*CONTAINING, *spec.allow_interpreters)
            raise UserError(
                f"sandbox {backend.name!r} can't serve these tasks, which need {_needs(spec)}; "
                f"take one of: {', '.join(able)}"
            )


def _needs(spec: SandboxSpec) -> str:
    needs = ["a session"] if spec.session else []
    needs += [f"the image {spec.image!r}"] if spec.image is not None else []
    needs += [] if spec.allow_interpreters else ["all of Python"]
    return ", ".join([*needs, f"{spec.memory_mib} MiB"])


@asynccontextmanager
async def leased_session(sandbox: Sandbox | None, task: Task) -> AsyncIterator[Session | None]:
    """The session that a task's spec asks for, as long as its episode lasts; else None."""
    spec = task.sandbox
    if sandbox is None or spec is None or not spec.session:
        yield None
        return
    async with sandbox.session(network=spec.network) as session:
        yield session


class WatchedSandbox:
    """A sandbox whose calls are counted as activity of the kind `sandbox`."""

    def __init__(self, inner: Sandbox, activity: Activity) -> None:
        self._inner = inner
        self._activity = activity

    @property
    def name(self) -> str:
        return self._inner.name

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        with self._activity.doing("sandbox"):
            return await self._inner.run(code, stdin=stdin, limits=limits)

    async def grade(self, request: GradeRequest) -> Verdict:
        with self._activity.doing("sandbox"):
            return await self._inner.grade(request)

    def session(self, *, network: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Session]:
        return self._watched_session(network)

    @asynccontextmanager
    async def _watched_session(self, network: tuple[str, ...]) -> AsyncIterator[Session]:
        async with self._inner.session(network=network) as session:
            yield WatchedSession(session, self._activity)


class WatchedSession:
    """A session whose calls are counted as activity of the kind `sandbox`."""

    def __init__(self, inner: Session, activity: Activity) -> None:
        self._inner = inner
        self._activity = activity

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        with self._activity.doing("sandbox"):
            return await self._inner.run(code, stdin=stdin, limits=limits)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str = "",
        folder: str = ".",
        limits: Limits = DEFAULT_LIMITS,
    ) -> RunResult:
        with self._activity.doing("sandbox"):
            return await self._inner.exec(command, stdin=stdin, folder=folder, limits=limits)

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        with self._activity.doing("sandbox"):
            return await self._inner.read(path, max_bytes=max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        with self._activity.doing("sandbox"):
            await self._inner.write(path, data)

    async def files(self, path: str = ".") -> tuple[FileInfo, ...]:
        with self._activity.doing("sandbox"):
            return await self._inner.files(path)

    async def reset(self) -> None:
        with self._activity.doing("sandbox"):
            await self._inner.reset()

    async def snapshot(self) -> bytes:
        with self._activity.doing("sandbox"):
            return await self._inner.snapshot()

    async def restore(self, snapshot: bytes) -> None:
        with self._activity.doing("sandbox"):
            await self._inner.restore(snapshot)
