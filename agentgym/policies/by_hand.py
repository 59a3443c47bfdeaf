"""An episode whose turns are a policy's or a person's, and can be taken back; played one call at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from agentgym.env import Environment
from agentgym.errors import UserError, nearest
from agentgym.policies.conversation import CallAnswer, CallHandler, CallRequest
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox
from agentgym.tools import Schema, ToolCall
from agentgym.types import Episode, Json, Message, Outcome, Stop, Task
from agentgym.utf8 import clean_text


@dataclass(slots=True, kw_only=True)
class Table:
    """What the episodes that are played by hand share. handler: the policy's; without one a person takes every turn."""

    environment: Environment[Any]
    scorer: Scorer
    config: RolloutConfig
    sandbox: Sandbox | None
    handler: CallHandler | None = None
    greedy: bool = False

    def sampling(self, seed: int) -> dict[str, float]:
        config = self.config
        temperature = 0.0 if self.greedy else config.temperature
        return {"temperature": temperature, "top_p": config.top_p, "top_k": config.top_k, "seed": seed}


@dataclass(slots=True)
class _Said:
    """A turn, and what its answer's last message was changed to."""

    turn: AgentTurn
    edited: str | None = None


@dataclass(slots=True)
class HandEpisode:
    """Begin it with `begin`; each turn returns what was answered; `close` at the end.

    An environment's state cannot be copied: what is taken back is left out when the turns before are played again, with
    the same seed. All raise EpisodeBroken for what fails in the environment or the sandbox. runner: the newest one;
    there is one from `begin` on.
    """

    table: Table
    task: Task
    seed: int = 0
    runner: EpisodeRunner | None = None
    _said: list[_Said] = field(default_factory=list)
    _opening: str | None = None  # what the last message before the first turn was changed to
    _tries: int = 0
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def episode(self) -> Episode:
        return self._running.episode

    @property
    def _running(self) -> EpisodeRunner:
        assert self.runner is not None, "begin it first"
        return self.runner

    @property
    def messages(self) -> list[Message]:
        return self._running.context.messages

    @property
    def is_over(self) -> bool:
        return self.episode.stop is not None

    async def begin(self) -> None:
        """Start the environment, and play again what was said and not taken back."""
        await self.close()
        table = self.table
        episode = Episode(episode_id=self.task.task_id, task=self.task, seed=self.seed)
        self.runner = runner = EpisodeRunner(
            environment=table.environment,
            scorer=table.scorer,
            config=table.config,
            sandbox=table.sandbox,
            episode=episode,
        )
        if runner.needs_session:
            await runner.lease(self._stack)
        await self._stack.enter_async_context(runner.started())
        self._change_last(self._opening)
        for said in self._said:
            await runner.reply(said.turn)
            self._change_last(said.edited)

    async def close(self) -> None:
        """The environment finishes; safe to call twice."""
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def schemas(self) -> Sequence[Schema] | None:
        """The schemas of the tools that the agent has now. None: the environment has no tools at all."""
        return await self._running.schemas()

    async def ask(self) -> CallAnswer:
        """The policy takes a turn. Raises CallRefused."""
        assert self.table.handler is not None, "there is no policy"
        schemas = await self.schemas() or ()
        self._tries += 1
        request = CallRequest(
            messages=tuple(self.messages),
            tools=tuple(schemas),
            max_tokens=self.table.config.max_turn_tokens,
            sampling=self.table.sampling(derive_seed(self.seed, len(self._said), self._tries)),
        )
        answer = await self.table.handler.call(request)
        cut = Stop.TURN_TOKENS if answer.finish == "length" else None
        calls = tuple(answer.calls)
        await self.take(AgentTurn(answer.content, answer.content, calls), cut)
        return answer

    async def say(self, text: str) -> None:
        """A person's turn in the policy's place."""
        await self.take(AgentTurn(text, text))

    async def call(self, name: str, arguments: Mapping[str, Json]) -> None:
        """A person's call of a tool in the policy's place. Raises UserError where there is no such tool."""
        names = [str(_function(schema).get("name")) for schema in await self.schemas() or ()]
        if name not in names:
            raise UserError(f"no tool {name!r}.{nearest(name, names)}")
        await self.take(AgentTurn("", "", (ToolCall(name, arguments),)))

    async def edit(self, text: str) -> None:
        """Change the environment's last message, as it is read. Raises UserError where the agent spoke last."""
        if self.is_over or not self.messages or self.messages[-1]["role"] == "assistant":
            raise UserError("the last message is not the environment's; take the turn back first")
        self._change_last(text)
        if self._said:
            self._said[-1].edited = text
        else:
            self._opening = text

    async def take_back(self) -> None:
        """Takes back the last turn, and its reply. Raises UserError where there is none."""
        if not self._said:
            raise UserError("there is no turn to take back")
        self._said.pop()
        await self.begin()

    async def take(self, turn: AgentTurn, cut: Stop | None = None) -> None:
        """One turn, whoever it is by; the last one is followed by the score."""
        if self.is_over:
            raise UserError("the episode is over; take a turn back, or take another task")
        await self._running.reply(turn, cut)
        self._said.append(_Said(turn))
        if self.is_over:
            await self._end()

    async def _end(self) -> None:
        """Finish and score. What broke is on the episode."""
        try:
            await self.close()
            await self._running.score()
        except EpisodeBroken as broken:
            self.fail(broken)

    def fail(self, broken: EpisodeBroken) -> None:
        episode = self.episode
        episode.stop = episode.stop or Stop.ERROR
        episode.outcome, episode.error = Outcome.INFRA_ERROR, broken.record

    def _change_last(self, text: str | None) -> None:
        if text is not None:
            self.messages[-1] = {**self.messages[-1], "content": clean_text(text)}


def _function(schema: Schema) -> Mapping[str, Json]:
    function = schema["function"]
    assert isinstance(function, Mapping)
    return function
