"""One environment played as text in, text out, a call at a time; the Gymnasium adapters are made of it.

The prompt of an environment with tools lists them, and an action calls them in tags, as Hermes and Qwen write it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Literal, NamedTuple, Self, TypeVar

from agentgym.env import Environment
from agentgym.errors import InfraError, UserError, nearest
from agentgym.hooks import PluginRegistry
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.environments import build_environment
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner
from agentgym.rollout.sandboxes import choose_sandbox
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.tasks import drawn
from agentgym.sandbox import SandboxBackend, SandboxOptions
from agentgym.text.tool_formats.hermes import Hermes
from agentgym.text.tool_text import tools_text, with_tools
from agentgym.tools import Schema
from agentgym.types import Episode, Json, Message, Outcome, Split, Stop, Task

_CALLS = Hermes()  # how an action calls tools, and how the prompt says so
log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGameConfig:
    name: str
    """The environment, by name or import path."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Weights of rewards by name; empty takes the environment's own."""
    split: Split = "train"
    """The split of the tasks."""
    num_tasks: int = 256
    """Tasks of the split that a seed draws from; a split may be endless."""
    max_turns: int | None = None
    """Turns at most; None leaves it to the environment."""
    max_turn_chars: int = 0
    """Characters of an action; a longer one is cut, and then cut_turns decides; 0 is no limit."""
    cut_turns: Literal["floor", "score"] = "floor"
    """What a cut action leads to, as rollout.cut_turns says."""
    max_retries: int = 2
    """How often an episode is begun again, with the same seed and actions, after infrastructure failed."""
    sandbox: str = "auto"
    """The sandbox, as in a recipe; none is started where no task needs one."""
    sandbox_options: SandboxOptions = field(default_factory=dict)
    """Options of the sandbox."""
    timeout_s: float = 60.0
    """Seconds of one call into the environment."""


class TextStep(NamedTuple):
    """What one action led to, as `gymnasium.Env.step` returns it. reward: 0.0 until the episode ends."""

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(slots=True)
class TextGame:
    """What the episodes of an environment share: its tasks, its scorer and its sandbox."""

    environment: Environment[Any]
    tasks: Sequence[Task]
    scorer: Scorer
    sandbox: SandboxBackend | None
    config: TextGameConfig
    limits: RolloutConfig = field(init=False)

    def __post_init__(self) -> None:
        self.limits = RolloutConfig(
            max_turns=self.config.max_turns,
            cut_turns=self.config.cut_turns,
            max_retries=self.config.max_retries,
            env_timeout_s=self.config.timeout_s,
        )

    @classmethod
    async def start(cls, registry: PluginRegistry, config: TextGameConfig) -> Self:
        """Raises UserError for unknown names and where no sandbox is available, InfraError when one breaks."""
        environment = build_environment(registry, config.name, config.options)
        scorer = Scorer.of(environment, registry, config.rewards)
        tasks = list(islice(drawn(environment, config.split), config.num_tasks))
        if not tasks:
            raise UserError(f"{config.name} has no task in the split {config.split!r}")
        sandbox = await choose_sandbox(config.sandbox, config.sandbox_options, tasks, registry, log.info)
        if sandbox is not None:
            await sandbox.start()
        return cls(environment, tasks, scorer, sandbox, config)

    def task(self, task_id: str) -> Task:
        """Raises UserError when no task has the id."""
        for task in self.tasks:
            if task.task_id == task_id:
                return task
        few = {task.task_id for task in self.tasks[:5]}
        close = difflib.get_close_matches(task_id, [task.task_id for task in self.tasks], n=1, cutoff=0.5)
        raise UserError(
            f"no task {task_id!r} among the {len(self.tasks)} of {self.config.name} that num_tasks and split "
            f"{self.config.split!r} select.{nearest(task_id, few.union(close))}"
        )

    async def close(self) -> None:
        """End the processes of the scorer and the sandbox."""
        await self.scorer.close()
        if self.sandbox is not None:
            await self.sandbox.close()


class TextEpisode:
    """One episode after another: `reset` begins the next, `step` says something in it."""

    def __init__(self, game: TextGame) -> None:
        self._game = game
        self._seed = 0
        self._chosen: Task | None = None
        self._actions: list[str | AgentTurn] = []
        self._answer: tuple[Message, ...] = ()
        self._record: Episode | None = None
        self._runner: EpisodeRunner | None = None  # None: no episode is under way
        self._stack = AsyncExitStack()  # what it holds

    @property
    def task(self) -> Task:
        """The one that was asked for, or that the last seed draws."""
        return self._chosen or self._game.tasks[self._seed % len(self._game.tasks)]

    @property
    def answer(self) -> tuple[Message, ...]:
        """What the last action was answered with."""
        return self._answer

    @property
    def record(self) -> Episode:
        """The episode so far, or the one that ended last."""
        assert self._record is not None, "reset it first"
        return self._record

    async def schemas(self) -> Sequence[Schema] | None:
        """The schemas of the tools that the agent has now; None without. Raises InfraError."""
        return await self._retrying(EpisodeRunner.schemas)

    async def reset(self, seed: int, task_id: str | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the episode of a seed, of one task if its id is given; returns the prompt.

        Raises UserError for a task that is not among the game's.
        """
        chosen = None if task_id is None else self._game.task(task_id)
        await self.close()
        self._seed, self._actions, self._chosen = seed, [], chosen
        text = await self._retrying(_prompt)
        return text, {"task_id": self.task.task_id, "difficulty": self.task.difficulty}

    async def step(self, action: str | AgentTurn) -> TextStep:
        """Say something; a text calls tools in tags.

        Raises InfraError when the episode cannot be scored: that is not a reward of 0.
        """
        if self._runner is None:
            raise RuntimeError("the episode is over; call reset()")

        async def act(runner: EpisodeRunner) -> TextStep:
            text = await self._say(runner, action)
            if runner.episode.stop is None:
                return TextStep(text, 0.0, terminated=False, truncated=False, info={})
            await self._release()  # an environment finishes before it is scored, as in training
            return await self._scored(runner, text)

        step = await self._retrying(act)
        self._actions.append(action)
        return step

    async def close(self) -> None:
        """Release what the episode holds; safe to call twice. Raises InfraError when that fails."""
        try:
            await self._release()
        except EpisodeBroken as broken:
            raise InfraError(f"{self.task.task_id}: {broken}") from broken.__cause__

    async def _release(self) -> None:
        self._runner = None
        await self._stack.aclose()

    async def _retrying(self, act: Callable[[EpisodeRunner], Awaitable[Result]]) -> Result:
        """Act in the episode; where infrastructure fails, begin it again and repeat its actions first."""
        for retries in count():
            try:
                if self._runner is None:
                    self._runner = await self._begin(retries)
                    for action in self._actions:
                        await self._say(self._runner, action)
                return await act(self._runner)
            except BaseException as error:
                try:
                    await self._release()
                except EpisodeBroken as second:  # the error that ended the episode is the one that counts
                    log.warning("%s: %s", self.task.task_id, second)
                if not isinstance(error, EpisodeBroken):
                    raise
                if not error.retry or retries >= self._game.limits.max_retries:
                    raise InfraError(f"{self.task.task_id}: {error}") from error.__cause__
        raise AssertionError("unreachable")

    async def _begin(self, retries: int) -> EpisodeRunner:
        game, task = self._game, self.task
        runner = EpisodeRunner(
            environment=game.environment,
            scorer=game.scorer,
            config=game.limits,
            sandbox=game.sandbox,
            episode=Episode(episode_id=task.task_id, task=task, seed=self._seed, retries=retries),
        )
        self._record = runner.episode
        await runner.lease(self._stack)
        await self._stack.enter_async_context(runner.started())
        return runner

    async def _say(self, runner: EpisodeRunner, action: str | AgentTurn) -> str:
        limit, cut = self._game.config.max_turn_chars, None
        if isinstance(action, AgentTurn):
            said = action
        else:
            cut = Stop.TURN_TOKENS if 0 < limit < len(action) else None
            said = AgentTurn(action[:limit] if cut else action)
            if runner.context.tools is not None:
                parsed = _CALLS.parse(said.text)
                said = AgentTurn(said.text, parsed.content, parsed.calls)
        self._answer = (await runner.reply(said, cut)).messages
        return _text(self._answer)

    async def _scored(self, runner: EpisodeRunner, text: str) -> TextStep:
        await runner.score()
        episode = runner.episode
        if episode.reward is None:
            raise InfraError(f"{self.task.task_id} cannot be scored: {episode.error or episode.rewards}")
        invalid, done = episode.outcome is Outcome.INVALID, episode.stop is Stop.DONE
        info = {**episode.info, "rewards": dict(episode.rewards), "invalid": invalid}
        return TextStep(text, episode.reward, terminated=done, truncated=not done, info=info)


async def _prompt(runner: EpisodeRunner) -> str:
    prompt, schemas = runner.episode.task.prompt, await runner.schemas()
    return _text(prompt if schemas is None else with_tools(prompt, tools_text(schemas, _CALLS)))


def _text(messages: Sequence[Message]) -> str:
    return "\n\n".join(message["content"] for message in messages)
