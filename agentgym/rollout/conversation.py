"""What agent programs say through an endpoint becomes an episode's turns, token for token."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentgym.errors import UserError
from agentgym.rollout.activity import Activity
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.generator import Generator
from agentgym.rollout.runner import EpisodeBroken
from agentgym.tools import Schema, ToolCall
from agentgym.types import Episode, FinishReason, GenerateRequest, Message, SamplingParams, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """One call of an agent, in no dialect.

    messages: content is a str; `tool_calls` of an assistant have arguments as a mapping, or the text where it is no
    JSON object; tool messages have tool_call_id. max_tokens: a cap below the run's own. stop: the text ends before
    it, the ids stay. sampling: temperature, top_p, top_k, seed as asked; in a run the run's own win.
    """

    messages: tuple[Message, ...]
    tools: tuple[Schema, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """What the policy said. calls: with ids that are unique in the episode. cached_tokens: of the prompt, those that
    an earlier call had already."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: Literal["stop", "tool_calls", "length"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class CallRefused(Exception):
    """A call that has no answer. param: the parameter that is at fault, if one is."""

    def __init__(
        self, kind: Literal["context_length", "ended", "invalid", "unavailable"], message: str, *, param: str = ""
    ) -> None:
        super().__init__(message)
        self.kind: Literal["context_length", "ended", "invalid", "unavailable"] = kind
        self.param = param


class Seat(Protocol):
    """Whom a key belongs to."""

    async def call(self, request: CallRequest) -> CallAnswer:
        """Raises CallRefused. Cancelled when the client went away: then nothing is recorded."""
        ...


class EpisodeSeat:
    """The conversations of one episode.

    over: set once the episode takes no more calls. broken: what infrastructure broke; raise it where the episode is
    played.
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        generator: Generator,
        config: RolloutConfig,
        episode: Episode,
        *,
        greedy: bool = False,
        activity: Activity | None = None,
        max_turns: int | None = None,
        until_s: float | None = None,
    ) -> None:
        """max_turns: None is config's. until_s: the end of the episode's time by the loop's clock."""
        self.episode = episode
        self.over = asyncio.Event()
        self.broken: EpisodeBroken | None = None
        self._renderer, self._generator, self._config, self._greedy = renderer, generator, config, greedy

    async def call(self, request: CallRequest) -> CallAnswer:
        if self.over.is_set():
            raise CallRefused("ended", "the episode is over")
        episode, messages = self.episode, list(request.messages)
        known = max((n for n, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
        try:
            if episode.turns and known >= 0:
                last = episode.turns[-1]
                before = (*last.prompt_ids, *last.completion_ids)
                ids = before + self._renderer.reply(messages[known + 1 :], last.completion_ids)
            else:
                before, ids = (), self._renderer.prompt(messages, request.tools or None)
        except UserError as error:
            raise CallRefused("invalid", str(error), param="messages") from error
        room = min(self._config.max_episode_tokens - len(ids), self._config.max_turn_tokens)
        if room < 1:
            raise CallRefused("context_length", f"the prompt has {len(ids)} tokens")
        sampling = SamplingParams(
            max_tokens=min(room, request.max_tokens or room),
            temperature=0.0 if self._greedy else self._config.temperature,
            top_p=self._config.top_p,
            top_k=self._config.top_k,
            stop_token_ids=self._renderer.end_ids,
            seed=derive_seed(episode.seed, len(episode.turns)),
        )
        completion = await self._generator.generate(GenerateRequest(prompt_ids=ids, sampling=sampling))
        turn = Turn.of(ids, completion)
        episode.turns.append(turn)
        return _answer(self._renderer, request, turn, cached=len(before))

    def conclude(self) -> None:
        """No more calls; the episode's branches are complete."""
        self.over.set()


class FreeSeat:
    """No episode: each call is rendered and sampled on its own, with the caller's sampling."""

    def __init__(self, renderer: ChatRenderer, generator: Generator, *, max_tokens: int = 4096) -> None:
        """max_tokens: of a prompt and its completion together."""
        self._renderer, self._generator, self._max_tokens = renderer, generator, max_tokens

    async def call(self, request: CallRequest) -> CallAnswer:
        ids = self._renderer.prompt(request.messages, request.tools or None)
        room = self._max_tokens - len(ids)
        if room < 1:
            raise CallRefused("context_length", f"the prompt has {len(ids)} tokens")
        sampling = SamplingParams(
            max_tokens=min(room, request.max_tokens or room),
            temperature=request.sampling.get("temperature", 1.0),
            top_p=request.sampling.get("top_p", 1.0),
            top_k=int(request.sampling.get("top_k", 0)),
            stop_token_ids=self._renderer.end_ids,
            seed=int(request.sampling["seed"]) if "seed" in request.sampling else None,
        )
        request_ids = GenerateRequest(prompt_ids=ids, sampling=sampling, time_s=math.inf)
        turn = Turn.of(ids, await self._generator.generate(request_ids))
        return _answer(self._renderer, request, turn, cached=0)


def _answer(renderer: ChatRenderer, request: CallRequest, turn: Turn, *, cached: int) -> CallAnswer:
    content, calls = renderer.text(turn.completion_ids), tuple[ToolCall, ...]()
    if request.tools:
        parsed = renderer.parse(turn.completion_ids)
        content = parsed.content
        calls = tuple(
            ToolCall(call.name, call.arguments, f"call{len(turn.prompt_ids)}{n:02d}")
            for n, call in enumerate(parsed.calls)
            if isinstance(call, ToolCall)
        )
    return CallAnswer(
        content=content,
        reasoning="",
        calls=calls,
        finish="length" if turn.finish_reason is not FinishReason.STOP else "tool_calls" if calls else "stop",
        prompt_tokens=len(turn.prompt_ids),
        completion_tokens=len(turn.completion_ids),
        cached_tokens=cached,
    )
