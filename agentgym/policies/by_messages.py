"""Plays an episode with a policy that is known by what it says alone: messages in, messages out, no tokens."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import cast

from agentgym.errors import InfraError
from agentgym.policies.outside.answers import (
    ChatAnswer,
    ChatRequest,
    ContextFull,
    Filtered,
    RequestRefused,
    Usage,
    sent_message,
    sent_turn,
)
from agentgym.policies.outside.policy import Answered, ServedPolicy, ServerGone
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.player import Player
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner, end_for_time
from agentgym.runs.usage import RECORD, turns_of
from agentgym.types import Episode, ErrorRecord, Json, Stop

log = logging.getLogger(__name__)

EPISODES_PER_REQUEST = 8  # that are played at a time, for each request: the others wait for their environments
_CUTS = {"refused": Stop.REFUSED, "filtered": Stop.FILTERED}


@dataclass(slots=True, kw_only=True)
class MessagePlayer(Player):
    """The policy is a server's. Limits and outcomes are those of the built-in chat loop.

    Tokens are as the server counts them; waits for its retries and limits are not the episode's time. A refusal and a
    filtered turn are cut turns (`rollout.cut_turns`). What the user has to change is raised, and so is a server that is
    gone.
    """

    policy: ServedPolicy
    _playing: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._playing = asyncio.Semaphore(EPISODES_PER_REQUEST * self.policy.config.concurrency)

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Episodes that have begun are finished before others begin: what is interrupted has lost few."""
        return self._playing

    async def _turns(self, runner: EpisodeRunner) -> None:
        episode, config = runner.episode, self.config
        sent = [sent_message(message) for message in episode.messages]
        used = 0  # tokens of the conversation, as of its last turn
        while True:
            room = config.max_episode_tokens - used
            if room < 1:
                episode.stop = Stop.EPISODE_TOKENS
                return
            if runner.left_s <= 0:
                end_for_time(episode, config)
                return
            tools = await runner.schemas()  # they may change from turn to turn
            number = len(_record(episode))
            request = ChatRequest(
                model=self.policy.model,
                messages=tuple(sent),
                tools=tuple(tools or ()),
                max_tokens=min(room, config.max_turn_tokens),
                temperature=0.0 if self.greedy else config.temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                seed=derive_seed(episode.seed, number),
                options=self.policy.config.options,
            )
            answer = await self._ask(episode, request)
            if answer is None:
                return
            if tools is None and answer.calls:  # of tools that it was not given
                answer = replace(answer, calls=())
            used = answer.usage.prompt_tokens + answer.usage.completion_tokens
            cut = _CUTS.get(answer.finish)
            if answer.finish == "length":
                cut = Stop.EPISODE_TOKENS if room <= config.max_turn_tokens else Stop.TURN_TOKENS
            if cut is not None:
                runner.until_s = math.inf  # the episode ends here, and the time was the policy's
            ids = [f"call{len(episode.tool_calls) + at:05d}" for at in range(len(answer.calls))]  # as the runner's
            reply = await runner.reply(AgentTurn(answer.content, answer.content, answer.calls), cut)
            if episode.stop is not None:
                return
            sent.append(sent_turn(answer, ids, with_reasoning=self.policy.config.return_reasoning))
            sent += map(sent_message, reply.messages)

    async def _ask(self, episode: Episode, request: ChatRequest) -> ChatAnswer | None:
        """None where the episode has ended without an answer."""
        times_s, clock_s = episode.timing_s, asyncio.get_running_loop().time
        began = clock_s()
        call = self.activity.begin("generate")
        try:
            answered = await self.policy.answer(request)
        except ContextFull as full:
            episode.stop = Stop.EPISODE_TOKENS
            if len(request.messages) == len(episode.task.prompt):
                record = ErrorRecord(source="prompt", kind="prompt_too_long", message=str(full))
                raise EpisodeBroken(record, retry=False) from full
            return None
        except Filtered as filtered:
            log.info("episode %s: filtered: %s", episode.episode_id, filtered)
            answered = Answered(_filtered(request), 0.0, paid=True)
        except ServerGone:
            raise
        except (InfraError, RequestRefused) as error:  # it was asked again as often as the recipe says
            raise EpisodeBroken.by("policy", error, retry=False) from error
        finally:
            self.activity.end("generate", call)
            times_s["generate_s"] = times_s.get("generate_s", 0.0) + clock_s() - began
        times_s["queue_s"] = times_s.get("queue_s", 0.0) + answered.waited_s
        turns, again = _record(episode), turns_of(episode.info, "again")
        if answered.from_cache:  # of the attempt that broke, and paid once
            again[:] = [one for one in again if one["turn"] != len(turns)]
        turns.append(_turn_record(answered, seconds=clock_s() - began - answered.waited_s))
        return answered.answer

    def carried(self, broken: Episode) -> dict[str, Json]:
        """Its answers were paid, and count."""
        turns = [{**turn, "turn": number} for number, turn in enumerate(turns_of(broken.info))]
        answers = [*turns_of(broken.info, "again"), *turns]
        return {RECORD: cast("Json", {"turns": [], "again": answers})} if answers else {}


def _filtered(request: ChatRequest) -> ChatAnswer:
    """A turn that was never said."""
    return ChatAnswer(
        content="", reasoning="", reasoning_field="", calls=(), finish="filtered", usage=Usage(), model=request.model
    )


def _record(episode: Episode) -> list[Json]:
    """Records what the server said besides the messages, one mapping a turn; see `agentgym.runs.usage`."""
    return cast("list[Json]", cast("dict[str, Json]", episode.info.setdefault(RECORD, {"turns": []}))["turns"])


def _turn_record(answered: Answered, *, seconds: float) -> dict[str, Json]:
    answer = answered.answer
    found: dict[str, Json] = {"model": answer.model, "finish": answer.finish, **answer.usage.to_mapping()}
    if answer.reasoning:
        found["reasoning"] = answer.reasoning
    if answered.lost:
        found["lost"] = {**answered.lost}
    return {**found, "paid": answered.paid, "from_cache": answered.from_cache, "seconds": round(seconds, 3)}
