"""One task played by hand: an episode whose turns come from a person, on an event loop that is not the server's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from agentgym.env import Environment, default_weights
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.policies.by_hand import HandEpisode, Table
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.runner import EpisodeBroken
from agentgym.rollout.sandboxes import choose_sandbox
from agentgym.rollout.scoring import Scorer
from agentgym.runs.records import pack
from agentgym.sandbox import Sandbox
from agentgym.tables.problems import Problem
from agentgym.tools import Schema, ToolCall
from agentgym.types import Episode, Stop, Task

MAX_CHARS = 20_000
MAX_CALLS = 16
IDLE_S = 600.0
CALL_S = 60.0  # into the environment
CONFIG = RolloutConfig(cut_turns="score", env_timeout_s=CALL_S, max_retries=0)


@dataclass(slots=True, kw_only=True)
class Play:
    """What a play has in common with the page. turns: what the person said and the play has not taken yet."""

    id: str
    env: str
    environment: Environment[Any]
    task: Task
    seed: int
    registry: PluginRegistry
    idle_s: float = IDLE_S
    sandbox: str = ""
    tools: Sequence[Schema] | None = None
    game: HandEpisode | None = None
    error: str = ""  # before there was an episode
    done: bool = False
    last_s: float = field(default_factory=time.monotonic)
    turns: asyncio.Queue[tuple[AgentTurn, asyncio.Future[None]]] = field(default_factory=asyncio.Queue)
    waiting: asyncio.Future[None] | None = None  # who said the last turn
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Plays from the start to the score; what holds a sandbox or a process is gone when it returns."""
        try:
            async with AsyncExitStack() as stack:
                sandbox = await self._open_sandbox(stack)
                scorer = Scorer.of(self.environment, self.registry)
                stack.push_async_callback(scorer.close)
                table = Table(environment=self.environment, scorer=scorer, config=CONFIG, sandbox=sandbox)
                self.game = HandEpisode(table, self.task, self.seed)
                await self._play(self.game)
        except (UserError, InfraError) as error:
            self.error = str(error)
        finally:
            self.done = True
            self.started.set()
            while not self.turns.empty():
                self.turns.get_nowait()[1].cancel()

    async def say(self, said: AgentTurn) -> None:
        """One turn; returns when it is answered. Raises Problem when the play is over."""
        if self.done:
            raise Problem("gone", f"the play {self.id} is over")
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_s = time.monotonic()
        self.turns.put_nowait((said, answered))
        try:
            await answered
        except asyncio.CancelledError:
            if not self.done:
                raise
            raise Problem("gone", f"the play {self.id} is over") from None

    async def _open_sandbox(self, stack: AsyncExitStack) -> Sandbox | None:
        backend = await choose_sandbox("auto", {}, [self.task], self.registry, lambda text: None)
        if backend is None:
            return None
        stack.push_async_callback(backend.close)
        self.sandbox = backend.name
        return await backend.start()

    async def _play(self, game: HandEpisode) -> None:
        try:
            try:
                await game.begin()
                await self._turns(game)
            finally:
                await game.close()
        except EpisodeBroken as broken:
            game.fail(broken)
        finally:
            self.done = True
            if self.waiting is not None and not self.waiting.done():
                self.waiting.set_result(None)

    async def _turns(self, game: HandEpisode) -> None:
        """Plays turns until the episode stops, or nobody says anything. Who said the last turn is answered after the
        score.
        """
        self.tools = await game.schemas()
        self.started.set()
        while True:
            try:
                async with asyncio.timeout(self.idle_s):
                    said, self.waiting = await self.turns.get()
            except TimeoutError:
                game.episode.stop = Stop.ABANDONED
                return
            await game.take(said)
            if game.is_over:
                return
            self.tools = await game.schemas()
            self.waiting.set_result(None)

    def as_json(self) -> dict[str, Any]:
        """The JSON that the page shows."""
        runner = self.game.runner if self.game else None
        episode = runner.episode if runner else None
        weights = default_weights(self.environment)
        return {
            "id": self.id,
            "env": self.env,
            "task_id": self.task.task_id,
            "split": self.task.split,
            "messages": pack(list(episode.messages if episode else self.task.prompt)),
            "turn": runner.context.turn if runner else 0,
            "max_turns": runner.context.max_turns if runner else self.environment.max_turns,
            "tools": None if self.tools is None else list(self.tools),
            "tool_calls": [
                {
                    "turn": call.turn,
                    "name": call.name,
                    "arguments": pack(call.arguments),
                    "result": call.result,
                    "error": call.error,
                    "seconds": call.seconds,
                }
                for call in (episode.tool_calls if episode else [])
            ],
            "done": self.done,
            "stop": episode.stop.value if episode and episode.stop else None,
            "outcome": episode.outcome.value if episode and episode.outcome else None,
            "reward": episode.reward if episode else None,
            "rewards": [
                {"name": name, "value": value, "weight": weights.get(name)}
                for name, value in (episode.rewards if episode else {}).items()
            ],
            "success": episode.known_success if episode and self.done else None,
            "info": pack(episode.info) if episode else {},
            "error": self._error(episode),
            "sandbox": self.sandbox,
            "idle_limit_s": self.idle_s,
            "left_s": None if self.done else max(0.0, self.idle_s - (time.monotonic() - self.last_s)),
        }

    def _error(self, episode: Episode | None) -> dict[str, str] | None:
        if self.error:
            return {"source": "start", "kind": "unavailable", "message": self.error}
        if episode is None or episode.error is None:
            return None
        return {"source": episode.error.source, "kind": episode.error.kind, "message": episode.error.message}


def read_turn(body: Mapping[str, Any]) -> AgentTurn:
    """A person's turn: text, calls, or both. Raises Problem."""
    text, calls = body.get("text", ""), body.get("calls", [])
    if not isinstance(text, str) or not isinstance(calls, list) or not (text or calls):
        raise Problem(
            "invalid", 'give {"text": "...", "calls": [{"name": "...", "arguments": {}}]}, one of the two or both'
        )
    if len(text) > MAX_CHARS or len(str(calls)) > MAX_CHARS or len(calls) > MAX_CALLS:
        raise Problem("too_large", f"a turn may have {MAX_CHARS} characters and {MAX_CALLS} calls")
    read = []
    for call in calls:
        match call:
            case {"name": str(name), "arguments": dict(arguments)}:
                read.append(ToolCall(name, arguments))
            case _:
                raise Problem("invalid", 'a call is {"name": "...", "arguments": {}}')
    return AgentTurn(text=text, content=text, calls=tuple(read))
