"""One environment played as text in, text out, a call at a time; what the Gymnasium faces are made of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

from agentgym.env import Environment, EpisodeContext
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.rollout.sandboxes import choose_sandbox, leased_session
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import SandboxBackend, SandboxOptions
from agentgym.types import Episode, Json, Message, Outcome, Split, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGameConfig:
    """options: of the environment. rewards: weights by name; empty takes the environment's own.

    num_tasks: how many of the split's tasks a seed draws from; a split may be endless. sandbox: as in a
    recipe; none is started where no task needs one.
    """

    name: str
    options: Mapping[str, Json] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    split: Split = "train"
    num_tasks: int = 256
    max_turns: int | None = None
    sandbox: str = "auto"
    sandbox_options: SandboxOptions = field(default_factory=dict)
    timeout_s: float = 60.0  # of one call into the environment


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStep:
    """What one action led to. reward: 0.0 until the episode ends."""

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Json]


class TextGame:
    """What the episodes of an environment share: its tasks, its scorer and its sandbox."""

    def __init__(
        self,
        environment: Environment,
        tasks: Sequence[Task],
        scorer: Scorer,
        sandbox: SandboxBackend | None,
        config: TextGameConfig,
    ) -> None:
        self.environment = environment
        self.tasks = tasks
        self.scorer = scorer
        self.sandbox = sandbox
        self.timeout_s = config.timeout_s
        self.max_turns = config.max_turns or environment.max_turns

    @classmethod
    async def start(cls, registry: PluginRegistry, config: TextGameConfig) -> Self:
        """Raises UserError for unknown names and where no sandbox can be had, InfraError when one breaks."""
        environment = registry.environment(config.name)(**config.options)
        scorer = Scorer.from_registry(registry, config.rewards or environment.rewards)
        tasks = list(islice(environment.tasks(config.split), config.num_tasks))
        if not tasks:
            raise UserError(f"{config.name} has no task in the split {config.split!r}")
        sandbox = await choose_sandbox(config.sandbox, config.sandbox_options, tasks, registry, log.info)
        if sandbox is not None:
            sandbox = await sandbox.start()
        return cls(environment, tasks, scorer, sandbox, config)

    def task(self, seed: int) -> Task:
        """The task that a seed draws."""
        return self.tasks[seed % len(self.tasks)]

    async def close(self) -> None:
        """End the processes of the scorer and the sandbox."""
        await self.scorer.close()
        if self.sandbox is not None:
            await self.sandbox.close()


class TextEpisode:
    """One episode after another: `reset` begins the next, `step` says something in it."""

    def __init__(self, game: TextGame) -> None:
        self._game = game
        self._context: EpisodeContext | None = None
        self._leases = AsyncExitStack()

    async def reset(self, seed: int) -> tuple[str, dict[str, Json]]:
        """Begin the episode of a seed; returns the prompt."""
        await self.close()
        task = self._game.task(seed)
        session = await self._leases.enter_async_context(leased_session(self._game.sandbox, task))
        context = EpisodeContext(
            task=task,
            messages=list(task.prompt),
            max_turns=self._game.max_turns,
            seed=seed,
            sandbox=self._game.sandbox if task.sandbox is not None else None,
            session=session,
        )
        self._context = context
        async with asyncio.timeout(self._game.timeout_s):
            await self._game.environment.start(context)
        return _text(task.prompt), {"task_id": task.task_id, "difficulty": task.difficulty}

    async def step(self, action: str) -> TextStep:
        """Say something. Raises InfraError when the episode can't be scored: that is no reward of 0."""
        context = self._context
        if context is None:
            raise RuntimeError("the episode is over; call reset()")
        context.messages.append({"role": "assistant", "content": action})
        context.turn += 1
        async with asyncio.timeout(self._game.timeout_s):
            reply = await self._game.environment.reply(context)
        context.messages.extend(reply.messages)
        text = _text(reply.messages)
        terminated = reply.done or reply.invalid
        truncated = not terminated and context.turn >= context.max_turns
        if not terminated and not truncated:
            return TextStep(text=text, reward=0.0, terminated=False, truncated=False, info={})
        await self.close()
        reward, info = await self._score(context, invalid=reply.invalid)
        return TextStep(text=text, reward=reward, terminated=terminated, truncated=truncated, info=info)

    async def close(self) -> None:
        """Release what the episode holds; safe to call twice."""
        context, self._context = self._context, None
        async with self._leases:
            if context is not None:
                async with asyncio.timeout(self._game.timeout_s):
                    await self._game.environment.finish(context)

    def transcript(self) -> str:
        """The conversation so far, for a person."""
        messages = self._context.messages if self._context is not None else []
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)

    async def _score(self, context: EpisodeContext, *, invalid: bool) -> tuple[float, dict[str, Json]]:
        episode = Episode(
            episode_id=context.task.task_id,
            task=context.task,
            seed=context.seed,
            messages=context.messages,
            info=context.info,
            outcome=Outcome.INVALID if invalid else None,
        )
        if invalid:
            episode.reward = self._game.scorer.floor
        else:
            await self._game.scorer.score(episode)
        if episode.reward is None:
            raise InfraError(f"{context.task.task_id} can't be scored: {episode.error or episode.rewards}")
        return episode.reward, {**context.info, "rewards": dict(episode.rewards), "invalid": invalid}


def _text(messages: Sequence[Message]) -> str:
    return "\n\n".join(message["content"] for message in messages)
