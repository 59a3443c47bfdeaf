"""What a task's own oracle shows: that it earns the full reward, which reward file its tests write, what it changes.

Found once by a run of the oracle and of nothing at all, and kept on disk by a hash of the task's folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from agentgym.sandbox import Sandbox
from agentgym_envs.harbor.folder import Phase, TaskFolder
from agentgym_envs.harbor.judging import Judged, Seen, judge, untouched
from agentgym_envs.harbor.origin import begin, begin_phase, run_oracle
from agentgym_envs.harbor.testing import Tested

log = logging.getLogger(__name__)

MOST_S: Final = 3600.0  # of an oracle whose task sets no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Of one phase. oracle, nothing: the rewards of the oracle and of no agent; None for none that is valid.

    fault: why the oracle does not earn a reward. idle: what was wrong with the tests' run where no agent was."""

    files: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    oracle: float | None = None
    nothing: float | None = None
    fault: str = ""
    idle: str = ""

    @property
    def seen(self) -> Seen:
        return Seen(files=self.files, changed=frozenset(self.changed))


class Playable(Protocol):
    """A task with an oracle. pin: changes with all that a verdict on it depends on."""

    @property
    def name(self) -> str: ...
    @property
    def pin(self) -> str: ...


T = TypeVar("T", bound=Playable)


class Pins(Generic[T]):
    """What is known of tasks, by name; it is kept in the user's cache, in a folder of the environment's name.

    play: plays a task's oracle, and nothing. Raises InfraError where a container fails.
    """

    def __init__(self, environment: str, play: Callable[[Sandbox, T], Awaitable[tuple[Shown, ...]]]) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        self._folder = Path(base) / "agentgym" / environment
        self._play = play
        self._known: dict[str, tuple[Shown, ...]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def known(self, task: T) -> tuple[Shown, ...] | None:
        """By phase; None where the oracle was not played yet."""
        if task.name not in self._known:
            try:
                found = json.loads(self._path(task).read_text())
                self._known[task.name] = tuple(
                    Shown(**{**one, "files": tuple(one["files"]), "changed": tuple(one["changed"])}) for one in found
                )
            except (OSError, ValueError, TypeError, KeyError):
                return None
        return self._known[task.name]

    def fault(self, task: T) -> str:
        """Why a task can't be scored: what its oracle lacks; empty where that is unknown or nothing."""
        shown = self.known(task) or ()
        return next((one.fault for one in shown if one.fault), "")

    async def find(self, sandbox: Sandbox, task: T) -> tuple[Shown, ...]:
        """Play the oracle, once. Raises InfraError where a container fails."""
        async with self._locks.setdefault(task.name, asyncio.Lock()):
            shown = self.known(task)
            if shown is None:
                shown = await self._play(sandbox, task)
                self._known[task.name] = shown
                self._save(task, shown)
            return shown

    def _save(self, task: T, shown: Sequence[Shown]) -> None:
        path = self._path(task)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps([asdict(one) for one in shown]))
            part.replace(path)
        except OSError as error:
            log.warning("what the oracle of %s shows is not kept: %s", task.name, error)

    def _path(self, task: T) -> Path:
        return self._folder / f"{task.pin}.json"


async def play_oracle(sandbox: Sandbox, task: TaskFolder) -> tuple[Shown, ...]:
    """What the oracle of a task folder shows, by phase."""
    shown: list[Shown] = []
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(sandbox.session_for(replace(task.spec, beside=True)))
        machine, origin = session.machine, await begin(session, task)
        for phase in task.phases:
            await begin_phase(machine, task, phase, origin)
            failed = await run_oracle(machine, task, phase, origin, most_s=MOST_S)
            leave = {"leave": stack.aclose} if phase is task.phases[-1] and phase.mode != "live" else {}
            judged = await judge(sandbox, machine, task, phase, origin=origin, seen=Seen(), undo=False, **leave)
            shown.append(_shown(phase, judged, await untouched(sandbox, task, phase, origin), failed))
            if shown[-1].fault:
                break
    return tuple(shown)


def _shown(phase: Phase, judged: Judged, idle: Tested, failed: str) -> Shown:
    """idle: what the tests said where no agent was. failed: what went wrong with the oracle's script."""
    tested, most = judged.tested, min(1.0, phase.verifier.most)
    fault = ""
    if tested.score is None or tested.score < most - 1e-9:
        said = f"; the tests' last words: {tested.output[-200:].strip()!r}" if tested.output.strip() else ""
        earned = tested.detail or f"it earns {tested.score:g} of {most:g}{said}"
        fault = f"its oracle does not solve it{f' ({failed})' if failed else ''}: {earned}"
    elif idle.score is not None and idle.score >= most - 1e-9:
        fault = "doing nothing earns the full reward"
    return Shown(
        files=tested.files,
        changed=judged.changed,
        oracle=tested.score,
        nothing=idle.score,
        fault=fault[:600],
        idle=idle.fault,
    )
