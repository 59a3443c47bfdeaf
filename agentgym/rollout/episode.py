"""Plays one episode: token ids in, token ids out, until a limit or the environment ends it."""

from __future__ import annotations

import asyncio
import hashlib
import math
from array import array
from dataclasses import dataclass

from agentgym.errors import InfraError
from agentgym.rollout.activity import Activity
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.compaction import Segment, after_summary, asked_for_summary, record_summary
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.generator import Generator
from agentgym.rollout.player import Player
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner, end_for_time
from agentgym.rollout.token_prefix import TokenPrefix
from agentgym.text.chat import ChatRenderer
from agentgym.types import (
    Completion,
    Episode,
    ErrorRecord,
    FinishReason,
    GenerateRequest,
    Outcome,
    SamplingParams,
    Stop,
    Turn,
)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on all parts and on nothing else."""
    texts = [*map(str, parts)]
    joined = "/".join(texts)
    if joined.count("/") >= len(texts):  # one is in a part: ("a/b", "c") would be ("a", "b/c")
        digest = hashlib.blake2b(repr(texts).encode(), digest_size=8, person=b"parts").digest()
    else:
        digest = hashlib.blake2b(joined.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def turn_sampling(
    config: RolloutConfig, renderer: ChatRenderer, max_tokens: int, *, seed: int | None, greedy: bool = False
) -> SamplingParams:
    """How a turn of the policy is sampled: until its end token, or until max_tokens."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0 if greedy else config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        stop_token_ids=renderer.end_ids,
        seed=seed,
    )


async def sampled(
    generator: Generator, request: GenerateRequest, config: RolloutConfig, activity: Activity
) -> Completion:
    """What the generators answer. Raises EpisodeBroken where they fail."""
    wait_s = config.queue_timeout_s
    call = activity.begin("generate")
    try:
        with activity.deadlines.within(request.time_s + wait_s):
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


@dataclass(slots=True, kw_only=True)
class EpisodePlayer(Player):
    """The built-in chat loop: the policy is a generator."""

    renderer: ChatRenderer
    generator: Generator

    async def _turns(self, runner: EpisodeRunner) -> None:
        episode, limit = runner.episode, self.config.compact_at
        opening = list(episode.messages)
        segment = Segment(array("I", self.renderer.prompt(opening, await runner.schemas())))
        while (said := await self._turn(runner, segment)) is not None:
            turn, cut = said
            reply = await runner.reply(self._read(turn, runner, cut), cut)
            if episode.stop is not None:
                return
            segment.ids.extend(turn.completion_ids)
            answer = self.renderer.reply(reply.messages, turn.completion_ids)
            if not limit or len(segment.ids) + len(answer) < limit:
                segment.ids.extend(answer)
                continue
            segment.ids.extend(self.renderer.reply(asked_for_summary(reply.messages), turn.completion_ids))
            summary = await self._summary(runner, segment)
            if summary is None:
                return
            segment = Segment(array("I", self.renderer.prompt(after_summary(opening, summary), await runner.schemas())))

    async def _summary(self, runner: EpisodeRunner, segment: Segment) -> str | None:
        """The policy's summary, which the environment does not see; None where the episode ended before its end."""
        episode = runner.episode
        said = await self._turn(runner, segment)
        if said is None:
            return None
        turn, cut = said
        words = self._read(turn, runner, cut)
        text = words.content or words.text
        record_summary(episode, text)
        runner.num_summaries += 1
        if cut is None:
            return text
        episode.stop = cut
        if self.config.cut_turns == "floor":
            episode.outcome = Outcome.INVALID
        return None

    async def _turn(self, runner: EpisodeRunner, segment: Segment) -> tuple[Turn, Stop | None] | None:
        """Sample a turn and the limit that it reached before its end; None where the episode ended before it."""
        episode, config, ids = runner.episode, self.config, segment.ids
        times_s, now_s = episode.timing_s, asyncio.get_running_loop().time
        room = config.max_episode_tokens - len(ids)
        left_s = runner.left_s
        if room < 1:
            episode.stop = Stop.EPISODE_TOKENS
            if not episode.turns:
                message = f"it has {len(ids)} tokens, rollout.max_episode_tokens is {config.max_episode_tokens}"
                record = ErrorRecord(source="prompt", kind="prompt_too_long", message=message)
                raise EpisodeBroken(record, retry=False)
            return None
        if left_s <= 0:
            end_for_time(episode, config)
            return None
        time_s = min(left_s, config.generate_timeout_s)
        request = self._request(episode, segment, min(room, config.max_turn_tokens), time_s)
        began_s = now_s()
        try:
            completion = await sampled(self.generator, request, config, self.activity)
        finally:
            times_s["generate_s"] = times_s.get("generate_s", 0.0) + now_s() - began_s
        times_s["queue_s"] = times_s.get("queue_s", 0.0) + completion.queued_s
        turn = Turn.of(request.prompt_ids, completion)
        segment.add(episode, turn)
        cut = None
        if turn.finish_reason is FinishReason.TIME:
            cut, episode.time_limit = Stop.TIME, f"rollout.generate_timeout_s = {config.generate_timeout_s:g}"
            if time_s == left_s:
                end_for_time(episode, config)
        elif turn.finish_reason is not FinishReason.STOP:  # the agent never finished what it was saying
            cut = Stop.EPISODE_TOKENS if room <= config.max_turn_tokens else Stop.TURN_TOKENS
        if cut is not None:
            runner.until_s = math.inf  # the episode ends here, and the time was the policy's
        return turn, cut

    def _read(self, turn: Turn, runner: EpisodeRunner, cut: Stop | None) -> AgentTurn:
        if runner.context.tools is None:
            return AgentTurn(self.renderer.text(turn.completion_ids))
        parsed = self.renderer.parse(turn.completion_ids)
        text = self.renderer.text(turn.completion_ids) if cut is not None else parsed.content
        return AgentTurn(text, parsed.content, parsed.calls)

    def _request(self, episode: Episode, segment: Segment, max_tokens: int, time_s: float) -> GenerateRequest:
        """time_s: the generator ends the completion then, and hands over what it has."""
        seed = derive_seed(episode.seed, len(episode.turns))
        how = turn_sampling(self.config, self.renderer, max_tokens, seed=seed, greedy=self.greedy)
        goes_on = segment.num_turns > 0
        known = episode.turns[-1].routes if goes_on else None
        return GenerateRequest(
            prompt_ids=TokenPrefix(segment.ids),
            sampling=how,
            time_s=time_s,
            continues=goes_on,
            routes_from=0 if known is None else known.end,
        )
