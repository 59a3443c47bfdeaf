"""The verdict on what an agent left: its tests run in a second container, in which none of its processes ever ran."""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from agentgym.sandbox import FileRefused, FrozenMachine, ImageUnusable, Machine, Sandbox
from agentgym.types import SandboxSpec
from agentgym_envs.harbor.folder import PUBLISHED, Phase, TaskFolder
from agentgym_envs.harbor.origin import Origin, lay_environment, limits_of
from agentgym_envs.harbor.restoring import (
    Tampered,
    check_restored,
    links_to_tests,
    may_be_system,
    restore,
    system_changes,
)
from agentgym_envs.harbor.task_config import Artifact
from agentgym_envs.harbor.testing import Tested, run_tests

CARRIED_BYTES: Final = 256 << 20
_STARTED_BY_PYTEST: Final = ("conftest.py", "pytest.ini", ".pytest.ini", "sitecustomize.py", "usercustomize.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Which files count in a verdict: the reward files that the oracle's tests wrote, and what it changed itself."""

    files: tuple[str, ...] = ()
    changed: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Judged:
    """A verdict with what else was noticed. changed: the system files that the agent changed."""

    tested: Tested
    flags: list[str] = field(default_factory=list)
    changed: tuple[str, ...] = ()


async def _stay() -> None:
    """The agent's container goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What `judge` gets. machine: the agent's."""

    sandbox: Sandbox
    machine: Machine
    task: TaskFolder
    phase: Phase
    origin: Origin
    seen: Seen
    undo: bool
    leave: Callable[[], Awaitable[None]]

    async def tested(self, machine: Machine) -> Tested:
        return await run_tests(machine, self.task, self.phase, allowed=self.seen.files, work=self.origin.work)


async def judge(
    sandbox: Sandbox,
    machine: Machine,
    task: TaskFolder,
    phase: Phase,
    *,
    origin: Origin,
    seen: Seen,
    undo: bool = True,
    leave: Callable[[], Awaitable[None]] = _stay,
) -> Judged:
    """Raises InfraError for what is not the agent's.

    undo: False for the oracle, whose changes are only recorded. leave: called once the container is not needed.
    """
    case = _Case(
        sandbox=sandbox, machine=machine, task=task, phase=phase, origin=origin, seen=seen, undo=undo, leave=leave
    )
    if phase.mode == "live":
        return _checked(Judged(tested=await case.tested(machine), flags=["live"]), seen)
    for hook in phase.verifier.collect:
        await machine.exec(hook.command, user=hook.user, folder=origin.work, limits=limits_of(hook.timeout_s))
    await machine.end_processes()
    return _checked(await (_carried(case) if phase.mode == "carry" else _frozen(case)), seen)


async def untouched(sandbox: Sandbox, task: TaskFolder, phase: Phase, origin: Origin) -> Tested:
    """What the tests say where no agent did anything."""
    async with sandbox.session_for(_spec(task, phase)) as session:
        if phase.tests:  # else its image has all that it needs
            await lay_environment(session.machine, task, origin)
        return await run_tests(session.machine, task, phase, allowed=(), work=origin.work)


def _spec(task: TaskFolder, phase: Phase) -> SandboxSpec:
    """Of a container for the tests."""
    if phase.judge is not None:
        return replace(phase.judge, beside=True)
    network = task.config.machine.network if phase.verifier.network is None else phase.verifier.network
    return replace(task.spec, user="", network=network, beside=True)


def _checked(judged: Judged, seen: Seen) -> Judged:
    """A reward in a file that the oracle's tests do not write is none."""
    tested = judged.tested
    judged.flags += [f"full reward, but {one}" for one in tested.disagrees]
    other = [name for name in tested.files if seen.files and name not in seen.files]
    if other:
        judged.flags.append(f"{', '.join(other)} beside {', '.join(seen.files)}")
        judged.tested = replace(tested, rewards={"reward": 0.0}, fault="")
    return judged


async def _carried(case: _Case) -> Judged:
    judged, phase, origin = Judged(tested=Tested()), case.phase, case.origin
    declared = [one for one in phase.artifacts if one.source.rstrip("/") != PUBLISHED]
    paths = [*phase.artifacts, *([] if declared or phase.judge is not None else [Artifact(source=origin.work)])]
    taken: list[tuple[str, bytes]] = []
    for artifact in paths:
        at = posixpath.normpath(posixpath.join(origin.work, artifact.source))
        try:
            taken.append((at, await case.machine.get(at, max_bytes=CARRIED_BYTES, exclude=artifact.exclude)))
        except FileRefused as error:
            if at != PUBLISHED:
                judged.flags.append(f"not carried: {error}")
    await case.leave()
    async with case.sandbox.session_for(_spec(case.task, phase)) as session:
        second, changed = session.machine, set[str]()
        if phase.tests:
            await lay_environment(second, case.task, origin)
        for at, archive in taken:
            if case.undo:
                archive = await _without_hooks(second, at, archive, case.seen.changed, changed)
            else:
                changed |= {posixpath.join(at, name) for name in _hooks_in(archive)}
            await _lay(second, at, archive)
        judged.changed = tuple(sorted(changed))
        judged.flags += [f"undone: {path}" for path in judged.changed if case.undo]
        judged.tested = await case.tested(second)
    return judged


def _hooks_in(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as read:
        return [name for name in read.getnames() if posixpath.basename(name) in _STARTED_BY_PYTEST]


async def _without_hooks(second: Machine, at: str, archive: bytes, allowed: Collection[str], undone: set[str]) -> bytes:
    """Files that Python and pytest read by themselves are the image's, unless the oracle changes them, too."""
    own: dict[str, bytes | None] = {}
    for name in _hooks_in(archive):
        path = posixpath.join(at, name)
        if path in allowed:
            continue
        try:
            own[name] = await second.get_file(path)
        except FileRefused:
            own[name] = None
    if not own:
        return archive
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as read, tarfile.open(fileobj=out, mode="w") as made:
        for entry in read:
            data = b"" if not entry.isreg() else (file.read() if (file := read.extractfile(entry)) else b"")
            original = own.get(entry.name, data)
            if original != data:
                undone.add(posixpath.join(at, entry.name))
            if original is not None:
                entry.size = len(original) if entry.isreg() else 0
                made.addfile(entry, io.BytesIO(original) if entry.isreg() else None)
    return out.getvalue()


async def _lay(second: Machine, at: str, archive: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as read:
        names = read.getnames()
        is_file = names == [posixpath.basename(at)] and read.getmember(names[0]).isreg()
    if is_file:
        await second.put(posixpath.dirname(at), archive)
    else:
        await second.put(at, archive, replace=True)


async def _frozen(case: _Case) -> Judged:
    judged = Judged(tested=Tested())
    try:
        async with _clean(case, judged) as frozen:
            await case.leave()
            spec = replace(_spec(case.task, case.phase), image=frozen.image, context=None)
            async with _opened(case.sandbox, spec) as second:
                if second is None:
                    judged.tested = Tested(fault="image", detail="no container of its files could be started")
                else:
                    judged.tested = await case.tested(second)
    except Tampered as error:
        judged.flags.append("tampered")
        judged.tested = Tested(rewards={"reward": 0.0}, detail=str(error))
    except FileRefused as error:  # more than the task's disk
        judged.flags.append(str(error))
        judged.tested = Tested(rewards={"reward": 0.0}, detail=str(error))
    return judged


@asynccontextmanager
async def _opened(sandbox: Sandbox, spec: SandboxSpec) -> AsyncIterator[Machine | None]:
    """None where no container of the image starts; a wait that was too long is an error, as it is not the agent's."""
    manager = sandbox.session_for(spec)
    try:
        session = await manager.__aenter__()
    except ImageUnusable:
        yield None
        return
    try:
        yield session.machine
    finally:
        await manager.__aexit__(None, None, None)


@asynccontextmanager
async def _clean(case: _Case, judged: Judged) -> AsyncIterator[FrozenMachine]:
    """The agent's container, frozen, with the image's own system files."""
    machine, origin, undo = case.machine, case.origin, case.undo
    allowed = case.seen.changed if undo else ()
    async with AsyncExitStack() as stack:
        frozen = await stack.enter_async_context(machine.freeze())
        links = [one for one in await links_to_tests(frozen, origin.work) if one.path not in allowed]
        if links or may_be_system(frozen.changes, origin.path):
            async with machine.untouched() as fresh:
                changed = await system_changes(frozen.changes, origin.path, fresh, allowed=allowed)
                changed |= {one.path: one for one in links}
                judged.changed = tuple(changed)
                if changed and undo:
                    judged.flags += [f"undone: {one}" for one in changed]
                    made = await restore(machine, fresh, changed)
                    await stack.aclose()
                    frozen = await stack.enter_async_context(machine.freeze())
                    left = [*await system_changes(frozen.changes, origin.path, fresh, allowed=allowed)]
                    left += [one.path for one in await links_to_tests(frozen, origin.work) if one.path not in allowed]
                    await check_restored(frozen, made, left)
        yield frozen
