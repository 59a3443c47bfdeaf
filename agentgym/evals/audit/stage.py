"""Where an environment is played: its scorer and sandbox, and one episode after a script."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentgym.env import Environment
from agentgym.evals.audit.watched import Hangs, Watched
from agentgym.hooks import PluginRegistry
from agentgym.policies.scripted import play_script
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.sandboxes import choose_sandbox, watched
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox, SandboxOptions
from agentgym.types import Episode, Message, Outcome, Task

AT_ONCE = 4  # episodes; more would only wait for the workers and the sandbox

Says = Callable[[Watched], Iterator[Message]]
"""Makes what is said in an episode, from the environment that it is said to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode, and what was seen of its environment. held_s: the longest that it held the event loop.

    schemas: of the tools that it gave its agent.
    """

    episode: Episode
    held_s: float
    trace: str
    schemas: Sequence[Mapping[str, Any]]

    @property
    def unsupported(self) -> bool:
        """The sandbox's interpreter cannot run such code, which says nothing about the environment."""
        error = self.episode.error
        return error is not None and error.kind == "unsupported"

    @property
    def failed(self) -> bool:
        """Something broke; an answer that no reward scores did not break anything."""
        error = self.episode.error
        unscored = error is not None and error.kind == "unscored"
        return self.episode.outcome is Outcome.INFRA_ERROR and not self.unsupported and not unscored


@dataclass(slots=True)
class Stage:
    """What all episodes of a check share. Episodes of one seed are the same each time they are played."""

    environment: Environment[Any]
    scorer: Scorer
    sandbox: Sandbox | None
    config: RolloutConfig
    hung: list[Played] = field(default_factory=list)
    _over: list[str] = field(default_factory=list)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        environment: Environment[Any],
        tasks: Iterable[Task],
        registry: PluginRegistry,
        *,
        rewards: Mapping[str, float],
        sandbox: str,
        sandbox_options: SandboxOptions,
        config: RolloutConfig,
        say: Callable[[str], None],
    ) -> AsyncIterator[Stage]:
        """Raises UserError for unknown rewards, and where no sandbox is available."""
        scorer = Scorer.of(environment, registry, rewards)
        backend = await choose_sandbox(sandbox, sandbox_options, tasks, registry, say)
        try:
            if backend is not None:
                await backend.start()
            yield cls(environment, scorer, None if backend is None else watched(backend, Activity()), config)
        finally:
            await scorer.close()
            if backend is not None:
                await backend.close()

    async def play(self, task: Task, says: Says, *, seed: int = 0) -> Played:
        """One scored episode. What fails is on the episode. Raises Hangs when it held the loop, or the second hung."""
        watched = Watched(self.environment, self._over)
        async with self._slots:
            episode = await play_script(
                watched.as_environment,
                task,
                says(watched),
                seed=seed,
                sandbox=self.sandbox,
                scorer=self.scorer,
                config=self.config,
            )
        played = Played(episode=episode, held_s=watched.held_s, trace=watched.trace, schemas=watched.schemas)
        if played.failed and episode.error is not None and episode.error.kind == "TimeoutError":
            self.hung.append(played)
            if self._over or len(self.hung) > 1:
                raise Hangs
        return played

    async def play_all(self, parts: Sequence[tuple[Task, Says]]) -> tuple[list[Played], float]:
        """Episodes at the same time, each with its number for a seed; and how long they took together, in seconds."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(self.play(task, says, seed=n)) for n, (task, says) in enumerate(parts)]
        return [job.result() for job in jobs], time.monotonic() - began
