"""Plays an episode with an agent program, which calls the policy at an endpoint and the environment by its context."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from agentgym.agents import Agent, AgentContext, AgentFailed, ProgramEnvironment
from agentgym.env import EpisodeContext, Reply
from agentgym.errors import InfraError, UserError, waited_for
from agentgym.plugin_errors import origin_of
from agentgym.policies.conversation import CallHandler, EpisodeHandler
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner, EpisodeTimeOver, end_for_time
from agentgym.sandbox import Session
from agentgym.tools import Schema, ToolCall
from agentgym.types import Json, Message, Outcome, Stop
from agentgym.utf8 import clean, clean_text

log = logging.getLogger(__name__)

GRACE_S: Final = 5.0  # for a program to end by itself, once its episode is over
CLEANUP_S: Final = 30.0  # for `play` to end what it started, once it is cancelled
OVERDUE_S: Final = 0.1  # how often it is looked again whether a call that began in time has ended
MAX_FAULT_CHARS: Final = 4000


class ProgramEndpoint(Protocol):
    """The endpoint through which programs reach the policy; `agentgym.serve.endpoint.Endpoint` is one."""

    @property
    def url(self) -> str: ...

    @property
    def model(self) -> str: ...

    def admit(self, handler: CallHandler) -> str: ...

    def conclude(self, key: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class OwnProgram(Agent):
    """The program of an environment, which plays in the place of an agent."""

    environment: ProgramEnvironment[Any]

    async def play(self, context: AgentContext) -> None:
        assert isinstance(context, PlayingContext), "it is played by AgentPlayer"
        await self.environment.play(context.episode, context)
        context.played()


@dataclass(slots=True, kw_only=True)
class AgentPlayer(EpisodePlayer):
    """An agent's program takes the turns. name: of the agent, for errors.

    A program that fails, hangs or ends too early leaves an outcome of its own on the episode.
    """

    agent: Agent
    name: str
    endpoint: ProgramEndpoint

    @property
    def wants_session(self) -> bool:
        return self.agent.wants_session

    def slot(self) -> AbstractAsyncContextManager[None]:
        return self.agent.slot()

    async def _turns(self, runner: EpisodeRunner) -> None:
        handler = EpisodeHandler(
            self.renderer,
            self.generator,
            self.config,
            runner.episode,
            greedy=self.greedy,
            activity=self.activity,
            until_s=runner.until_s,
            drops=self.agent.drops,
            is_side_call=self.agent.is_side_call,
            max_idle_calls=self.agent.max_idle_calls,
        )
        key = self.endpoint.admit(handler)
        context = PlayingContext(runner, self.endpoint, key)
        await context.refresh()
        playing = asyncio.create_task(self.agent.play(context), name=f"agent of {runner.episode.episode_id}")
        ends = [asyncio.create_task(event.wait()) for event in (context.over, handler.over)]
        try:
            in_time = await self._wait(runner, context, handler, playing, ends)
            self.endpoint.conclude(key)
            if in_time and context.failure is None and handler.broken is None:
                await asyncio.wait([playing], timeout=GRACE_S)
        finally:
            context.close()
            runner.until_s = math.inf  # `finish` comes after it
            self.endpoint.conclude(key)
            handler.conclude()
            for task in ends:
                task.cancel()
            await _ended(playing)
        self._settle(runner, context, handler, playing, in_time)

    async def _wait(
        self,
        runner: EpisodeRunner,
        context: PlayingContext,
        handler: EpisodeHandler,
        playing: asyncio.Task[None],
        ends: Sequence[asyncio.Task[object]],
    ) -> bool:
        """Waits until the program or the episode ends. False: the episode's time ended first.

        A call of the policy or of the environment that began in time has limits of its own, and is waited for.
        """
        times_s, clock_s = runner.episode.timing_s, asyncio.get_running_loop().time
        while True:
            left_s = runner.until_s + times_s.get("queue_s", 0.0) - clock_s()
            if left_s <= 0 and not handler.in_flight and not context.in_flight:
                return False
            done, _ = await asyncio.wait(
                [playing, *ends], timeout=max(left_s, OVERDUE_S), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return True

    def _settle(
        self,
        runner: EpisodeRunner,
        context: PlayingContext,
        handler: EpisodeHandler,
        playing: asyncio.Task[None],
        in_time: bool,
    ) -> None:
        """Why it ended. Raises EpisodeBroken where that was not the program's doing."""
        episode = runner.episode
        if isinstance(context.failure, EpisodeTimeOver):
            assert context.failure.__cause__ is not None
            if (cause := waited_for(context.failure.__cause__)) is not None:
                episode.stop = Stop.TIME
                raise EpisodeBroken.by(runner.of_sandbox, cause, retry=True) from context.failure
            in_time = False
        elif context.failure is not None:
            raise context.failure
        if episode.stop is Stop.TIME:
            in_time = False  # the handler met the limit first
        elif handler.broken is not None:
            raise handler.broken
        error = None if playing.cancelled() or not playing.done() else playing.exception()
        if error is not None and episode.stop is not Stop.AGENT:  # the handler has noted why it ended it
            context.note("failure", _described(error, self.name, self.agent))
        if not in_time:
            self._end_at_limit(runner)
        elif episode.stop is not None:
            return
        elif isinstance(error, (InfraError, UserError)):
            raise EpisodeBroken.by(self._source, error, retry=isinstance(error, InfraError)) from error
        elif error is not None and (infra := waited_for(error)) is not None:
            raise EpisodeBroken.by(runner.of_sandbox, infra, retry=True) from error
        elif error is not None and isinstance(self.agent, OwnProgram):
            raise EpisodeBroken.by(self._source, error, retry=False, thing=self.environment) from error
        elif error is not None:
            episode.stop, episode.outcome = Stop.AGENT, Outcome.INVALID
        else:
            episode.stop = Stop.MAX_TURNS if context.spent else Stop.ABANDONED

    @property
    def _source(self) -> str:
        """Of errors that are the program's."""
        own = isinstance(self.agent, OwnProgram)
        return f"environment:{self.environment.name}.play" if own else f"agent:{self.name}"

    def _end_at_limit(self, runner: EpisodeRunner) -> None:
        """The program's fault, unless the environment and its sandbox took half of the time.

        A program that hangs by itself reached no limit of the machine's: `time_limit` stays empty.
        """
        episode, limit_s = runner.episode, self.config.episode_time_s
        if isinstance(self.agent, OwnProgram):
            end_for_time(episode, self.config, self._source)
            episode.outcome = Outcome.INVALID
            return
        times_s, episode.stop = episode.timing_s, Stop.TIME
        environment_s, queue_s = times_s.get("environment_s", 0.0), times_s.get("queue_s", 0.0)
        waited_s = environment_s + times_s.get("generate_s", 0.0) - queue_s
        if "generate_timeout_s" not in episode.time_limit:
            episode.time_limit = f"rollout.episode_time_s = {limit_s:g}" if waited_s * 2 >= limit_s else ""
        if environment_s * 2 >= limit_s:
            message = (
                f"the episode took longer than rollout.episode_time_s = {limit_s:g}; the agent waited for the "
                f"environment and its sandbox for {environment_s:.3g} s of it"
            )
            raise EpisodeBroken.by("episode", TimeoutError(message), retry=False)
        episode.outcome = Outcome.INVALID


class PlayingContext:
    """One episode, as its agent sees it; it implements `agentgym.AgentContext`.

    over: set when the episode takes nothing more from the agent. failure: what broke in a call of the agent into the
    environment. spent: the environment's last turn was taken by calls, so it takes no other.
    """

    def __init__(self, runner: EpisodeRunner, endpoint: ProgramEndpoint, key: str) -> None:
        self.url, self.model, self.key = endpoint.url, endpoint.model, key
        self.over = asyncio.Event()
        self.failure: EpisodeBroken | EpisodeTimeOver | None = None
        self.spent = False
        self.in_flight = 0
        self._runner = runner
        self._tools: Sequence[Schema] = ()
        self._one_at_a_time = asyncio.Lock()
        self._turns_at_call = -1  # how many turns the policy had taken at the last call of a tool
        self._closed = asyncio.Event()

    @property
    def episode(self) -> EpisodeContext[Any]:
        """The episode, as its environment sees it."""
        return self._runner.context

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._runner.context.messages)

    @property
    def tools(self) -> Sequence[Schema]:
        return self._tools

    @property
    def session(self) -> Session | None:
        return self._runner.context.session

    @property
    def time_s(self) -> float:
        runner = self._runner
        until_s = runner.until_s + runner.episode.timing_s.get("queue_s", 0.0)
        return max(0.0, until_s - asyncio.get_running_loop().time())

    @property
    def seed(self) -> int:
        return self._runner.episode.seed

    async def refresh(self) -> None:
        """Ask the environment for its tools. Raises EpisodeBroken."""
        self._tools = await self._runner.schemas() or ()

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> str:
        """See `agentgym.AgentContext`. Calls of one of the policy's turns are one turn of the environment."""
        async with self._one_at_a_time:
            context, episode = self._runner.context, self._runner.episode
            if context.tools is None:
                return f"Error: no tool {name!r:.80}: this environment has none"
            same_turn = self._turns_at_call == len(episode.turns) and context.turn > 0
            if self.spent and not same_turn:
                episode.stop = Stop.MAX_TURNS
                await self._end()
            if same_turn:
                context.turn -= 1  # the runner counts a turn for each
            self._turns_at_call = len(episode.turns)
            reply = await self._ask(AgentTurn(text="", calls=(ToolCall(name, arguments),)))
            return "\n\n".join(message["content"] for message in reply.messages)

    async def answer(self, text: str) -> Reply:
        """See `agentgym.AgentContext`."""
        async with self._one_at_a_time:
            episode = self._runner.episode
            if self.spent:
                episode.stop = Stop.MAX_TURNS
                await self._end()
            limit = episode.stop
            reply = await self._ask(AgentTurn(text))
            if limit is not None:
                self.over.set()
            self._turns_at_call = -1
            return Reply(messages=reply.messages, done=self.over.is_set(), invalid=reply.invalid)

    def note(self, key: str, value: Json) -> None:
        """See `agentgym.AgentContext`. Raises TypeError or ValueError for what is not JSON."""
        json.dumps(value, allow_nan=False)
        notes = self._runner.episode.info.setdefault("agent", {})
        assert isinstance(notes, dict)
        notes[clean_text(key)] = clean(value)

    def played(self) -> None:
        """The environment's own program has ended by itself."""
        self._runner.episode.stop = self._runner.episode.stop or Stop.DONE

    def close(self) -> None:
        """The environment takes nothing more."""
        self._closed.set()
        self.over.set()

    async def _ask(self, said: AgentTurn) -> Reply:
        """The environment's answer. A limit of the policy's tokens or time stays the reason why the episode ended:
        what the agent has by then still counts, unless the limit made it invalid."""
        episode = self._runner.episode
        if self.over.is_set() or episode.outcome is not None:
            await self._end()
        limit, episode.stop = episode.stop, None
        self.in_flight += 1
        try:
            reply = await self._runner.reply(said)
            self._tools = await self._runner.schemas() or ()
            if said.calls and episode.stop is Stop.MAX_TURNS:
                self.spent, episode.stop = True, None  # others of this turn may follow
            if episode.stop is not None:
                self.over.set()
            episode.stop = limit or episode.stop
            return reply
        except (EpisodeBroken, EpisodeTimeOver) as error:
            self.failure = self.failure or error
            await self._end()
        finally:
            self.in_flight -= 1

    async def _end(self) -> NoReturn:
        """The episode is over, whatever the program makes of it: wait to be cancelled."""
        self.over.set()
        await self._closed.wait()
        raise asyncio.CancelledError


async def _ended(playing: asyncio.Task[None]) -> None:
    """Cancel it, and wait for what it has to end."""
    playing.cancel()
    done, _ = await asyncio.wait([playing], timeout=CLEANUP_S)
    if not done:
        log.warning("%s did not end within %g s of being cancelled", playing.get_name(), CLEANUP_S)


def _described(error: BaseException, name: str, agent: Agent) -> dict[str, Json]:
    if isinstance(error, AgentFailed):
        return {"kind": error.kind, "message": error.message[-MAX_FAULT_CHARS:]}
    text = "".join(traceback.format_exception(error))
    whose = f" (agent {name!r}{origin_of(agent, ', {}')})"
    return {"kind": type(error).__name__, "message": f"{text.rstrip()[-MAX_FAULT_CHARS:]}{whose}"}
