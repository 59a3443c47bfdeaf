"""Drives an environment through one episode: session, start, replies, finish, score, each within its limit."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, TypeVar

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, waited_for
from agentgym.held_loop import line_of
from agentgym.plugin_errors import PluginError, detail_of
from agentgym.rollout.calls import (
    PART,
    AgentTurn,
    Call,
    answer_calls,
    assistant_message,
    call_id,
    checked,
    tool_message,
)
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.sandboxes import leased_session, recorded
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.tasks import messages_fault
from agentgym.rollout.waiting import Begun
from agentgym.sandbox import Sandbox
from agentgym.tools import MalformedCall, Schema, ToolCall, ToolResult, Tools, clean_schemas
from agentgym.types import Episode, ErrorRecord, Message, Outcome, Stop
from agentgym.utf8 import clean, clean_text

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class EpisodeBroken(Exception):
    """A part of the system failed in the middle of an episode. retry: it may work when played again."""

    def __init__(self, record: ErrorRecord, *, retry: bool) -> None:
        super().__init__(str(record))
        self.record = record
        self.retry = retry

    @classmethod
    def by(cls, source: str, error: BaseException, *, retry: bool, thing: object = None) -> EpisodeBroken:
        """source: what is to blame, unless the error says so itself. thing: the plugin's object that raised it."""
        kind, message = type(error).__name__, str(error)
        if isinstance(error, InfraError):
            source, retry = error.source or source, retry and not isinstance(error, PluginError)
        if isinstance(error, PluginError):
            caller = line_of(error)
            kind, message = error.kind, error.detail + (f"; called at {caller}" if caller else "")
        elif not isinstance(error, InfraError):
            message = detail_of(error, thing)
        return cls(ErrorRecord(source=source, kind=kind, message=clean_text(message)[:2000]), retry=retry)


class EpisodeTimeOver(Exception):
    """The episode's time ended in a call into the environment. Its cause says what that was waiting for."""


def end_for_time(episode: Episode, config: RolloutConfig, source: str = "episode") -> None:
    """Stop the episode. Raises EpisodeBroken when it was not the policy's tokens that took most of its time.

    source: what is to blame then; an evaluation counts those of "episode" as cut, others as broken.
    """
    limit_s, times_s = config.episode_time_s, episode.timing_s
    episode.stop, episode.time_limit = Stop.TIME, f"rollout.episode_time_s = {limit_s:g}"
    tokens_s = times_s.get("generate_s", 0.0) - times_s.get("queue_s", 0.0)
    if tokens_s * 2 < limit_s:
        message = (
            f"the episode took longer than rollout.episode_time_s = {limit_s:g}; it waited for the policy's tokens "
            f"for {tokens_s:.3g} s, and for the environment and its sandbox for the rest"
        )
        raise EpisodeBroken.by(source, TimeoutError(message), retry=False)


@dataclass(slots=True, kw_only=True)
class EpisodeRunner:
    """One attempt at an episode. The player hands in the agent's turns; the record is on `episode`.

    Call `lease`, then take the turns inside `started()` until `episode.stop` is set, then `score`. All raise
    EpisodeBroken for what fails in the environment or the sandbox, and EpisodeTimeOver where `until_s` is set.
    """

    environment: Environment[Any]
    scorer: Scorer
    config: RolloutConfig
    sandbox: Sandbox | None
    episode: Episode
    context: EpisodeContext[Any] = field(init=False)
    wants_session: bool = False  # also where the task asks for none
    num_summaries: int = 0  # turns of the policy that the environment did not see
    until_s: float = math.inf  # the end of the episode's time by the loop's clock, without waits in the engine's queue

    def __post_init__(self) -> None:
        task = self.episode.task
        self.sandbox = None if self.sandbox is None else recorded(self.sandbox, self.episode)
        self.context = EpisodeContext(
            task=task,
            messages=list(clean(task.prompt)),
            max_turns=self.config.max_turns or self.environment.max_turns,
            seed=self.episode.seed,
            sandbox=self.sandbox if task.sandbox is not None else None,
            info=self.episode.info,
        )
        self.episode.messages = self.context.messages

    @property
    def needs_session(self) -> bool:
        spec = self.episode.task.sandbox
        return self.sandbox is not None and spec is not None and (spec.session or self.wants_session)

    async def lease(self, stack: AsyncExitStack) -> None:
        """Wait for the session that the task asks for; it is closed with the stack."""
        try:
            lease = leased_session(self.sandbox, self.episode.task, wanted=self.wants_session)
            self.context.session = await stack.enter_async_context(lease)
        except InfraError as error:
            raise EpisodeBroken.by(self.of_sandbox, error, retry=True) from error
        began, times_s = time.monotonic(), self.episode.timing_s
        stack.callback(lambda: times_s.update(session_s=time.monotonic() - began))

    @property
    def of_sandbox(self) -> str:
        """The source of an error that is the sandbox's."""
        return "sandbox" if self.sandbox is None else f"sandbox:{self.sandbox.name}"

    def started(self) -> Started:
        """`async with`: the environment has started; on the way out it finishes, whatever happened, in `start` too."""
        return Started(self)

    async def reply(self, said: AgentTurn, cut: Stop | None = None) -> Reply:
        """Give the environment the agent's turn: its calls are made, or else it is asked for its reply.

        cut: the limit that the turn reached before its end. Returns all that the agent is told.
        """
        episode, context = self.episode, self.context
        context.turn += 1
        calls = () if context.tools is None else tuple(map(checked, said.calls))
        if cut is not None and calls and isinstance(calls[-1], MalformedCall):
            calls = calls[:-1]  # it was cut, which is not a fault of form
        if said.calls:
            said = AgentTurn(said.text, said.content, calls)
        ids = [call_id(len(episode.tool_calls) + n) for n in range(len(calls))]
        context.messages.append(assistant_message(said, ids))
        if cut is not None and self.config.cut_turns == "floor":
            episode.outcome, episode.stop = Outcome.INVALID, cut
            return Reply()
        results = await self._answer(calls, ids)
        if episode.stop is Stop.MALFORMED:
            return Reply()
        reply = await self._ask("after_calls" if calls else "reply")
        context.messages.extend(reply.messages)
        if reply.invalid:
            episode.outcome = Outcome.INVALID
        if cut is not None:
            episode.stop = cut
        elif reply.done or reply.invalid:
            episode.stop = Stop.DONE
        elif context.turn >= context.max_turns:
            episode.stop = Stop.MAX_TURNS
        elif self.environment.dynamic_tools:
            context.tools = await self.call("toolbox", self.environment.toolbox)
        return Reply(messages=(*results, *reply.messages), done=reply.done, invalid=reply.invalid) if results else reply

    async def _answer(self, calls: Sequence[Call], ids: Sequence[str]) -> list[Message]:
        """Make a turn's calls; returns the messages that answer them, which are in the conversation already."""
        episode, config, tools = self.episode, self.config, self.context.tools
        if not calls or tools is None:
            return []
        if config.malformed_calls != "tell" and any(isinstance(call, MalformedCall) for call in calls):
            if config.malformed_calls == "end":
                episode.outcome, episode.stop = Outcome.INVALID, Stop.MALFORMED
                calls = [call for call in calls if isinstance(call, MalformedCall)]  # the others are not made
            elif episode.turns:  # none where a text or a script played it
                episode.turns[-1] = replace(episode.turns[-1], masked=True)
        known = len(episode.tool_calls)
        await answer_calls(
            calls,
            self._call_tool,
            episode.tool_calls,
            turn=self.context.turn + self.num_summaries,
            max_chars=config.max_tool_chars,
            together=len(calls) > 1 and await self._are_parallel_safe(calls, tools),
        )
        if episode.stop is Stop.MALFORMED:
            return []
        results = [tool_message(*one) for one in zip(calls, ids, episode.tool_calls[known:], strict=True)]
        self.context.messages.extend(results)
        return results

    @property
    def left_s(self) -> float:
        """What is left of the episode's time; waits in a queue are not counted."""
        return self.until_s + self.episode.timing_s.get("queue_s", 0.0) - asyncio.get_running_loop().time()

    async def schemas(self) -> Sequence[Schema] | None:
        """The schemas of the episode's tools; None if it has none."""
        tools = self.context.tools
        if tools is None:
            return None

        async def ask(context: EpisodeContext[Any]) -> Sequence[Schema]:
            return clean_schemas(tools)

        return await self.call("toolbox", ask)

    async def _are_parallel_safe(self, calls: Sequence[Call], tools: Tools) -> bool:
        async def ask(context: EpisodeContext[Any]) -> bool:
            return all(isinstance(call, MalformedCall) or tools.is_parallel_safe(call.name) for call in calls)

        return await self.call("toolbox", ask)

    async def _call_tool(self, call: ToolCall) -> ToolResult:
        async def make(context: EpisodeContext[Any]) -> ToolResult:
            assert context.tools is not None
            return await context.tools.call(call)

        return await self.call(call.name, make)

    async def _ask(self, what: Literal["reply", "after_calls"]) -> Reply:
        environment = self.environment
        reply = await self.call(what, environment.reply if what == "reply" else environment.after_calls)
        fault = f"it returned {reply!r:.80}; return a Reply" if not isinstance(reply, Reply) else ""
        if fault := fault or messages_fault("the Reply's `messages`", reply.messages):
            error = TypeError(fault)
            raise EpisodeBroken.by(self._source(what), error, retry=False, thing=environment)
        return reply

    async def score(self) -> None:
        """Fill the episode's rewards and its outcome."""
        episode = self.episode
        episode.info = clean(episode.info)
        said: Any = episode.info.get("success")
        if getattr(said, "dtype", None) == "bool" and not said.shape:  # numpy's
            episode.info["success"] = bool(said)
        elif said is not None and not isinstance(said, bool):
            error = TypeError(f"info['success'] is {said!r:.40} of type {type(said).__name__}; record True or False")
            raise EpisodeBroken.by(f"environment:{self.environment.name}", error, retry=False, thing=self.environment)
        if episode.outcome is Outcome.INVALID:
            episode.reward = self.scorer.floor
            return
        began = time.monotonic()
        await self.scorer.score(episode)
        episode.timing_s["score_s"] = time.monotonic() - began
        if episode.outcome is None and episode.reward is None:
            kind = "unsupported" if episode.info.get("unsupported") else "unscored"
            message = f"no reward could be given: {episode.rewards}"
            episode.outcome = Outcome.INFRA_ERROR
            episode.error = ErrorRecord(source="rewards", kind=kind, message=message)
        elif episode.outcome is None:
            episode.outcome = Outcome.SCORED

    async def grade(self) -> None:
        """Have the environment judge an episode that ended and has no outcome yet."""
        episode, environment = self.episode, self.environment
        if episode.stop is None or episode.outcome is not None or _is_default(environment.grade, Environment.grade):
            return
        self.until_s = math.inf  # the episode's time is over
        began = time.monotonic()
        PART.set("grade")
        try:
            await self.call("grade", environment.grade, environment.grade_timeout_s)
        finally:
            PART.set(None)
        episode.timing_s["grade_s"] = time.monotonic() - began

    async def call(
        self, what: str, method: Callable[[EpisodeContext[Any]], Awaitable[Answer]], limit_s: float = 0.0
    ) -> Answer:
        """Call into the environment. Timers are set only for a call that waits: most do not.

        limit_s: where it is more than what such calls may take.
        """
        time_s = asyncio.get_running_loop().time  # that of the timeouts
        began, times_s = time_s(), self.episode.timing_s
        try:
            begun = Begun(method(self.context), self.config.env_timeout_s)
            return begun.answer if begun.ended else await self._limited(begun, limit_s)
        except EpisodeTimeOver:
            raise
        except InfraError as error:
            raise EpisodeBroken.by(self._source(what), error, retry=True) from error
        except (Exception, SystemExit) as error:  # plugin code: anything may come
            if isinstance(error, TimeoutError) and (cause := waited_for(error)) is not None:
                raise EpisodeBroken.by(self.of_sandbox, cause, retry=True) from error
            raise EpisodeBroken.by(self._source(what), error, retry=False, thing=self.environment) from error
        finally:
            times_s["environment_s"] = times_s.get("environment_s", 0.0) + time_s() - began

    async def _limited(self, begun: Begun[Answer], limit_s: float) -> Answer:
        left_s = self.left_s
        limit_s = max(limit_s, self.config.env_timeout_s, self.environment.call_timeout_s)
        try:
            async with asyncio.timeout(min(left_s, limit_s)) as limit:
                return await begun
        except TimeoutError as error:
            if not limit.expired() or limit_s <= left_s:
                raise
            self.until_s = math.inf  # `finish` comes after it
            raise EpisodeTimeOver from error

    def _source(self, what: str) -> str:
        return f"environment:{self.environment.name}.{what}"


@dataclass(frozen=True, slots=True)
class Started:
    """The span from an environment's `start` to its `grade` and `finish`."""

    _runner: EpisodeRunner

    async def __aenter__(self) -> None:
        runner = self._runner
        try:
            if not _is_default(runner.environment.start, Environment.start):
                runner.context.state = await runner.call("start", runner.environment.start)
            if runner.environment.tools is not None or not _is_default(runner.environment.toolbox, Environment.toolbox):
                runner.context.tools = await runner.call("toolbox", runner.environment.toolbox)
        except BaseException:
            await self._finish_after_error()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._finish_after_error()
            return
        try:
            await self._runner.grade()
        except BaseException:
            await self._finish_after_error()
            raise
        if not _is_default(self._runner.environment.finish, Environment.finish):
            await self._runner.call("finish", self._runner.environment.finish)

    async def _finish_after_error(self) -> None:
        try:
            await self._runner.call("finish", self._runner.environment.finish)
        except EpisodeBroken as second:  # the first error is the one that ended the episode
            log.warning("episode %s: %s", self._runner.episode.episode_id, second)


def _is_default(method: object, default: object) -> bool:
    """Whether a method is the base class's, which does nothing and so need not be called."""
    return getattr(method, "__func__", None) is default
