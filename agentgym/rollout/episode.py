"""Plays one episode: token ids in, token ids out, until a limit or the environment ends it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError
from agentgym.rollout.activity import Activity
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.generator import Generator
from agentgym.rollout.sandboxes import leased_session
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox, Session
from agentgym.types import (
    Completion,
    Episode,
    ErrorRecord,
    FinishReason,
    GenerateRequest,
    Outcome,
    SamplingParams,
    Stop,
    Task,
    Turn,
)

Answer = TypeVar("Answer")


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on all parts and on nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class _Broken(Exception):
    """A part of the system failed in mid-episode."""

    def __init__(self, record: ErrorRecord, *, retry: bool) -> None:
        super().__init__(f"{record.source}: {record.message}")
        self.record = record
        self.retry = retry


@dataclass(slots=True, kw_only=True)
class EpisodePlayer:
    """Everything that episodes share. `sampling` is the template for each turn's parameters."""

    environment: Environment
    renderer: ChatRenderer
    generator: Generator
    scorer: Scorer
    config: RolloutConfig
    sandbox: Sandbox | None
    activity: Activity

    async def play(self, task: Task, *, episode_id: str, seed: int) -> Episode:
        """One scored episode. What fails is on the episode, never raised, unless it is a bug of ours."""
        retries = 0
        while True:
            episode = Episode(episode_id=episode_id, task=task, seed=seed, retries=retries)
            try:
                await self._run(episode)
                await self._score(episode)
                return episode
            except _Broken as broken:
                episode.stop = episode.stop or Stop.ERROR
                episode.outcome, episode.error = Outcome.INFRA_ERROR, broken.record
                if not broken.retry or retries >= self.config.max_retries:
                    return episode
                retries += 1

    async def _run(self, episode: Episode) -> None:
        async with AsyncExitStack() as stack:
            try:
                lease = leased_session(self.sandbox, episode.task)
                session = await stack.enter_async_context(lease)  # its wait is none of the episode's time
            except InfraError as error:
                raise _broken("sandbox", error, retry=True) from error
            await self._play(episode, session)

    async def _play(self, episode: Episode, session: Session | None) -> None:
        environment = self.environment
        context = EpisodeContext(
            task=episode.task,
            messages=list(episode.task.prompt),
            max_turns=self.config.max_turns or environment.max_turns,
            seed=episode.seed,
            sandbox=self.sandbox if episode.task.sandbox is not None else None,
            session=session,
            info=episode.info,
        )
        episode.messages = context.messages
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.config.episode_time_s) as limit:
                await self._environment(episode, "start", environment.start(context))
                try:
                    episode.stop = await self._turns(episode, context)
                finally:
                    await self._environment(episode, "finish", environment.finish(context))
        except TimeoutError:
            if not limit.expired():
                raise
            episode.stop = Stop.TIME
            message = f"the episode took longer than rollout.episode_time_s = {self.config.episode_time_s:g}"
            record = ErrorRecord(source="episode", kind="TimeoutError", message=message)
            raise _Broken(record, retry=False) from None
        finally:
            episode.timing_s["episode_s"] = time.monotonic() - began

    async def _turns(self, episode: Episode, context: EpisodeContext) -> Stop:
        ids = self.renderer.prompt(context.messages)
        while True:
            room = self.config.max_episode_tokens - len(ids)
            if room < 1:
                return Stop.EPISODE_TOKENS
            turn = await self._turn(episode, ids, min(room, self.config.max_turn_tokens), context.turn)
            context.turn += 1
            ids = ids + turn.completion_ids
            context.messages.append({"role": "assistant", "content": self.renderer.text(turn.completion_ids)})
            cut = None
            if turn.finish_reason is not FinishReason.STOP:  # the agent never finished what it was saying
                cut = Stop.EPISODE_TOKENS if room <= self.config.max_turn_tokens else Stop.TURN_TOKENS
                if self.config.cut_turns == "floor":
                    episode.outcome = Outcome.INVALID
                    return cut
            reply: Reply = await self._environment(episode, "reply", self.environment.reply(context))
            context.messages.extend(reply.messages)
            if reply.invalid:
                episode.outcome = Outcome.INVALID
            if cut is not None:
                return cut
            if reply.done or reply.invalid:
                return Stop.DONE
            if context.turn >= context.max_turns:
                return Stop.MAX_TURNS
            ids = ids + self.renderer.reply(reply.messages)

    async def _turn(self, episode: Episode, ids: tuple[int, ...], max_tokens: int, number: int) -> Turn:
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            top_k=self.config.top_k,
            stop_token_ids=self.renderer.end_ids,
            seed=derive_seed(episode.seed, number),
        )
        completion = await self._sample(episode, GenerateRequest(prompt_ids=ids, sampling=sampling))
        turn = Turn(
            prompt_ids=ids,
            completion_ids=completion.completion_ids,
            logprobs=completion.logprobs,
            versions=completion.versions,
            finish_reason=completion.finish_reason,
        )
        episode.turns.append(turn)
        return turn

    async def _sample(self, episode: Episode, request: GenerateRequest) -> Completion:
        try:
            with self.activity.doing("generate"):
                call = self.generator.generate(request)
                return await self._timed(episode, "generate_s", call, self.config.generate_timeout_s)
        except (InfraError, TimeoutError) as error:
            raise _broken("generator", error, retry=True) from error
        except ValueError as error:  # a request that no replica can serve
            raise _broken("generator", error, retry=False) from error

    async def _environment(self, episode: Episode, what: str, call: Awaitable[Answer]) -> Answer:
        source = f"environment:{self.environment.name}.{what}"
        try:
            return await self._timed(episode, "environment_s", call, self.config.env_timeout_s)
        except InfraError as error:
            raise _broken("sandbox", error, retry=True) from error
        except TimeoutError as error:
            raise _broken(source, error, retry=False) from error
        except Exception as error:  # plugin code: anything may come
            raise _broken(source, error, retry=False) from error

    async def _timed(self, episode: Episode, key: str, call: Awaitable[Answer], limit_s: float) -> Answer:
        began = time.monotonic()
        try:
            return await asyncio.wait_for(call, limit_s)
        finally:
            episode.timing_s[key] = episode.timing_s.get(key, 0.0) + time.monotonic() - began

    async def _score(self, episode: Episode) -> None:
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


def _broken(source: str, error: Exception, *, retry: bool) -> _Broken:
    message = str(error) or "it took longer than its limit"
    record = ErrorRecord(source=source, kind=type(error).__name__, message=message[:2000])
    return _Broken(record, retry=retry)


def with_temperature(player: EpisodePlayer, temperature: float) -> EpisodePlayer:
    """The same player, sampling at another temperature."""
    return replace(player, config=replace(player.config, temperature=temperature))
