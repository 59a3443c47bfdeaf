"""Plays one episode: token ids in, token ids out, until a limit or the environment ends it."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from array import array
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from agentgym.env import Environment
from agentgym.errors import InfraError, waited_for
from agentgym.rollout.activity import Activity
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.generator import Generator
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner, EpisodeTimeOver
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox
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
    TokenPrefix,
    Turn,
)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on all parts and on nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Turns(Protocol):
    """What takes an episode's turns instead of the loop below: see `agentgym.rollout.by_agent`."""

    @property
    def wants_session(self) -> bool: ...

    def place(self) -> AbstractAsyncContextManager[None]: ...

    async def play(self, runner: EpisodeRunner, *, greedy: bool) -> None:
        """Ends with `episode.stop` set. Raises EpisodeBroken."""
        ...


async def sampled(
    generator: Generator, request: GenerateRequest, config: RolloutConfig, activity: Activity
) -> Completion:
    """What the generators answer. Raises EpisodeBroken where they fail."""
    wait_s = config.queue_timeout_s
    call = activity.begin("generate")
    try:
        async with asyncio.timeout(request.time_s + wait_s):
            return await generator.generate(request)
    except TimeoutError as error:
        message = (
            f"no answer, not even a part of one, within {request.time_s + wait_s:g} s: "
            f"rollout.queue_timeout_s = {wait_s:g} for the engine's queue, and the rest for the tokens"
        )
        raise EpisodeBroken.by("generator", TimeoutError(message), retry=True) from error
    except InfraError as error:
        raise EpisodeBroken.by("generator", error, retry=True) from error
    except ValueError as error:  # a request that no replica can serve
        raise EpisodeBroken.by("generator", error, retry=False) from error
    finally:
        activity.end("generate", call)


def end_for_time(episode: Episode, config: RolloutConfig) -> None:
    """Stop the episode. Raises EpisodeBroken when it was not the policy's tokens that took most of its time."""
    episode.stop = Stop.TIME
    limit_s, times_s = config.episode_time_s, episode.timing_s
    tokens_s = times_s.get("generate_s", 0.0) - times_s.get("queue_s", 0.0)
    if tokens_s * 2 < limit_s:
        message = (
            f"the episode took longer than rollout.episode_time_s = {limit_s:g}; it waited for the policy's tokens "
            f"for {tokens_s:.3g} s, and for the environment and its sandbox for the rest"
        )
        raise EpisodeBroken.by("episode", TimeoutError(message), retry=False)


@dataclass(slots=True, kw_only=True)
class EpisodePlayer:
    """What all episodes of a run share. greedy: the likeliest token is taken, whatever config.temperature is.

    by_agent: a program plays, and asks the policy through an endpoint; None is the loop below.
    """

    environment: Environment[Any]
    renderer: ChatRenderer
    generator: Generator
    scorer: Scorer
    config: RolloutConfig
    sandbox: Sandbox | None
    activity: Activity
    greedy: bool = False
    by_agent: Turns | None = None

    async def play(self, task: Task, *, episode_id: str, seed: int) -> Episode:
        """One scored episode. What fails is on the episode, never raised, unless it is a bug of ours."""
        retries = 0
        while True:
            episode = Episode(episode_id=episode_id, task=task, seed=seed, retries=retries)
            runner = EpisodeRunner(
                environment=self.environment,
                scorer=self.scorer,
                config=self.config,
                sandbox=self.sandbox,
                episode=episode,
                wants_session=self.by_agent is not None and self.by_agent.wants_session,
            )
            try:
                if runner.needs_session or self.by_agent is not None:
                    async with AsyncExitStack() as stack:  # these waits are not counted in the episode's time
                        if self.by_agent is not None:
                            await stack.enter_async_context(self.by_agent.place())
                        await runner.lease(stack)
                        await self._play(runner)
                else:
                    await self._play(runner)
                await runner.score()
                return episode
            except EpisodeBroken as broken:
                episode.stop = episode.stop or Stop.ERROR
                episode.outcome, episode.error = Outcome.INFRA_ERROR, broken.record
                if not broken.retry or retries >= self.config.max_retries:
                    return episode
                retries += 1

    async def _play(self, runner: EpisodeRunner) -> None:
        episode = runner.episode
        began = time.monotonic()
        runner.until_s = asyncio.get_running_loop().time() + self.config.episode_time_s
        try:
            async with runner.started():
                if self.by_agent is None:
                    await self._turns(runner)
                else:
                    await self.by_agent.play(runner, greedy=self.greedy)
        except EpisodeTimeOver as over:
            assert over.__cause__ is not None
            if (cause := waited_for(over.__cause__)) is not None:
                episode.stop = Stop.TIME
                raise EpisodeBroken.by("sandbox", cause, retry=True) from over
            end_for_time(episode, self.config)
            episode.outcome = Outcome.INVALID  # a reply was cut short: there is nothing to score
        finally:
            episode.timing_s["episode_s"] = time.monotonic() - began

    async def _turns(self, runner: EpisodeRunner) -> None:
        episode, config = runner.episode, self.config
        ids = array("I", self.renderer.prompt(episode.messages, await runner.schemas()))
        while True:
            room = config.max_episode_tokens - len(ids)
            left_s = runner.until_s + episode.timing_s.get("queue_s", 0.0) - asyncio.get_running_loop().time()
            if room < 1:
                episode.stop = Stop.EPISODE_TOKENS
                if not episode.turns:
                    message = f"it has {len(ids)} tokens, rollout.max_episode_tokens is {config.max_episode_tokens}"
                    record = ErrorRecord(source="prompt", kind="prompt_too_long", message=message)
                    raise EpisodeBroken(record, retry=False)
                return
            if left_s <= 0:
                end_for_time(episode, self.config)
                return
            time_s = min(left_s, config.generate_timeout_s)
            request = self._request(episode, TokenPrefix(ids), min(room, config.max_turn_tokens), time_s)
            turn = Turn.of(request.prompt_ids, await self._sample(episode, request))
            episode.turns.append(turn)
            cut = None
            if turn.finish_reason is FinishReason.TIME:
                cut = Stop.TIME
                if time_s == left_s:
                    end_for_time(episode, self.config)
            elif turn.finish_reason is not FinishReason.STOP:  # the agent never finished what it was saying
                cut = Stop.EPISODE_TOKENS if room <= config.max_turn_tokens else Stop.TURN_TOKENS
            if cut is not None:
                runner.until_s = math.inf  # the episode ends here, and the time was the policy's
            reply = await runner.reply(self._read(turn, runner, cut), cut)
            if episode.stop is not None:
                return
            ids.extend(turn.completion_ids)
            ids.extend(self.renderer.reply(reply.messages, turn.completion_ids))

    def _read(self, turn: Turn, runner: EpisodeRunner, cut: Stop | None) -> AgentTurn:
        if runner.context.tools is None:
            return AgentTurn(self.renderer.text(turn.completion_ids))
        parsed = self.renderer.parse(turn.completion_ids)
        text = self.renderer.text(turn.completion_ids) if cut is not None else parsed.content
        return AgentTurn(text, parsed.content, parsed.calls)

    def _request(self, episode: Episode, ids: TokenPrefix, max_tokens: int, time_s: float) -> GenerateRequest:
        """time_s: the generator ends the completion then, and hands over what it has."""
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if self.greedy else self.config.temperature,
            top_p=self.config.top_p,
            top_k=self.config.top_k,
            stop_token_ids=self.renderer.end_ids,
            seed=derive_seed(episode.seed, len(episode.turns)),
        )
        return GenerateRequest(prompt_ids=ids, sampling=sampling, time_s=time_s)

    async def _sample(self, episode: Episode, request: GenerateRequest) -> Completion:
        times_s, clock_s = episode.timing_s, asyncio.get_running_loop().time
        began = clock_s()
        try:
            completion = await sampled(self.generator, request, self.config, self.activity)
        finally:
            times_s["generate_s"] = times_s.get("generate_s", 0.0) + clock_s() - began
        times_s["queue_s"] = times_s.get("queue_s", 0.0) + completion.queued_s
        return completion
