"""What agent programs say through an endpoint becomes an episode's turns, token for token.

A call's messages are compared with the conversations of the episode. Where they go on from a turn that was sampled, the
prompt is the ids of that turn's path as they were sampled, and the new messages behind them: nothing that was sampled
is rendered again. Where history was rewritten, the call begins a branch, which is counted with its reason.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from agentgym.policies.call_handler import CallAnswer, CallHandler, CallRefused, CallRequest, too_long
from agentgym.policies.free_handler import FreeHandler
from agentgym.policies.normal_form import Heard, heard, joined, spoken_key, tools_key
from agentgym.policies.prompting import prompt_ids, understood
from agentgym.policies.reading import Reading, answer_of, read_turn
from agentgym.policies.tree import BranchPoint, Spoken, Tree
from agentgym.rollout.activity import Activity
from agentgym.rollout.calls import AgentTurn, assistant_message
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import derive_seed, sampled, turn_sampling
from agentgym.rollout.generator import Generator
from agentgym.rollout.runner import EpisodeBroken, end_for_time
from agentgym.rollout.token_prefix import TokenPrefix
from agentgym.text.chat import ChatRenderer
from agentgym.tools import Schema, ToolCall
from agentgym.types import Completion, Episode, ErrorRecord, FinishReason, GenerateRequest, Message, Outcome, Stop, Turn

__all__ = ["CallAnswer", "CallHandler", "CallRefused", "CallRequest", "EpisodeHandler", "FreeHandler"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call that is about to be sampled. number: its place among the episode's calls, of which its seed follows."""

    request: CallRequest
    tools_key: str
    tools: tuple[Schema, ...]
    talk: list[Heard]
    branch_point: BranchPoint
    ids: array[int]
    prompt: TokenPrefix
    number: int
    max_tokens: int
    limit: Stop | None  # that of the run which is reached with max_tokens; None: the agent's own cap
    left_s: float


class EpisodeHandler:
    """The calls of one episode, several at once too, as its turns and branches.

    over: set once the episode takes no more calls, by a limit or by `conclude`. broken: what infrastructure broke;
    whoever plays the episode raises it. counts: what agents asked for and did not get, and calls that went away.
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
        drops: Collection[str] = (),
        is_side_call: Callable[[Sequence[Message], Sequence[Schema]], bool] = lambda messages, tools: False,
        max_idle_calls: int = 0,
    ) -> None:
        """max_turns: of the policy; None is config's. drops, is_side_call, max_idle_calls: see `agentgym.Agent`.

        until_s: the end of the episode's time by the loop's clock, without waits in the engine's queue; None begins
        config.episode_time_s with the first call.
        """
        self.episode = episode
        self.over = asyncio.Event()
        self.broken: EpisodeBroken | None = None
        self.counts: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._renderer, self._generator, self._config = renderer, generator, config
        self.drops = drops
        self._is_side_call = is_side_call
        self._side_turns: list[int] = []
        self._max_idle_calls, self._idle_calls, self._longest_prompt = max_idle_calls, 0, 0
        self._greedy, self._activity = greedy, activity or Activity()
        self._max_turns = max_turns or config.max_turns or math.inf
        self._until_s = until_s
        self._tree = Tree()
        self._numbers: set[int] = set()  # of calls that are under way or recorded
        self._call_ids = itertools.count()
        self._counted_s: dict[str, float] = {}  # the loop's time up to which seconds of a kind are counted
        self._too_long = ""
        self._concluded = False

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return len(self._numbers) - len(self.episode.turns)

    async def call(self, request: CallRequest) -> CallAnswer:
        asked = self._asked(request)
        spoken = asked.branch_point.spoken
        if spoken is not None:
            spoken.claims += 1
        self._numbers.add(asked.number)
        try:
            completion = await self._sampled(asked)
            if self._concluded:
                raise CallRefused("ended", "the episode is over")
        except BaseException as error:
            self._numbers.discard(asked.number)
            if spoken is not None:
                spoken.claims -= 1
            self.counts["cancelled" if isinstance(error, asyncio.CancelledError) else "failed"] += 1
            raise
        return self._recorded(asked, completion)  # nothing is awaited from here on: a call is recorded whole or not

    def conclude(self) -> None:
        """No more calls, and those under way are not recorded. Sets the stop of an episode that outgrew its context,
        and masks the turns of side calls."""
        self._concluded = True
        self.over.set()
        turns, notes = self.episode.turns, self.episode.info.get("agent", {})
        assert isinstance(notes, dict)
        counted = {"not_honoured": self.counts, "accepted": self._accepted}
        notes |= {name: dict(counts) for name, counts in counted.items() if counts}
        if 0 < len(self._side_turns) < len(turns):
            notes["side_turns"] = [number + 1 for number in self._side_turns]
            for number in self._side_turns:
                turns[number] = replace(turns[number], masked=True)
        if notes:
            self.episode.info["agent"] = notes
        if self._too_long and self.episode.stop is None:
            self.episode.stop = Stop.EPISODE_TOKENS
            if not self.episode.turns:
                record = ErrorRecord(source="prompt", kind="prompt_too_long", message=self._too_long)
                self.broken = self.broken or EpisodeBroken(record, retry=False)

    def count(self, request: CallRequest) -> int:
        """The tokens of the prompt that `call` would send. Raises CallRefused."""
        talk, key = understood(request), tools_key(request.tools)
        tools = self._tree.tools(key, request.tools)
        return len(prompt_ids(self._renderer, self._tree.find(key, talk), tools))

    def conversation(self) -> list[Message]:
        """The messages up to the last turn, that one included; other branches are not in it."""
        return self._tree.last_conversation()

    def _asked(self, request: CallRequest) -> _Asked:
        """Raises CallRefused. Changes nothing but the stop of an episode that is over by its limits."""
        if self.over.is_set():
            raise CallRefused("ended", f"the episode is over{f': {self.episode.stop}' if self.episode.stop else ''}")
        config = self._config
        key = tools_key(request.tools)
        talk, branch_point = self._placed(key, request)
        if len(self._numbers) >= self._max_turns:
            self._end(Stop.MAX_TURNS)
            raise CallRefused("context_length", f"the episode has had its {self._max_turns} turns: rollout.max_turns")
        left_s = self._left_s()
        if left_s <= 0:
            self._end_for_time()
            raise CallRefused(
                "ended", f"the episode's time is over: rollout.episode_time_s = {config.episode_time_s:g}"
            )
        tools = self._tree.tools(key, request.tools)
        ids = prompt_ids(self._renderer, branch_point, tools)
        room = config.max_episode_tokens - len(ids)
        if room < 1:
            self._too_long = too_long(len(ids), config.max_episode_tokens, "rollout.max_episode_tokens")
            raise CallRefused("context_length", self._too_long, param="messages")
        own = min(room, config.max_turn_tokens)
        most = min(own, request.max_tokens or own)
        limit = Stop.EPISODE_TOKENS if room <= config.max_turn_tokens else Stop.TURN_TOKENS
        for name, value in request.sampling.items():
            if name not in ("temperature", "top_p", "top_k") or value != getattr(config, name):
                self.counts[f"overridden_{name}"] += 1
        self.counts.update(f"dropped {name}" for name in request.dropped)
        self._accepted.update(request.accepted)
        number = next(n for n in itertools.count() if n not in self._numbers)
        prompt = TokenPrefix(ids)
        return _Asked(
            request, key, tools, talk, branch_point, ids, prompt, number, most, limit if most == own else None, left_s
        )

    def _placed(self, tools_key: str, request: CallRequest) -> tuple[list[Heard], BranchPoint]:
        """The call's messages, and how far they are known. Raises CallRefused."""
        talk = understood(request)
        branch_point = self._tree.find(tools_key, talk)
        if (whole := joined(request.messages)) is not None:
            other = heard(whole)
            found = self._tree.find(tools_key, other)
            if found.num_ids > branch_point.num_ids:
                return other, found
        return talk, branch_point

    def _left_s(self) -> float:
        now_s = asyncio.get_running_loop().time()
        if self._until_s is None:
            self._until_s = now_s + self._config.episode_time_s
        return self._until_s + self.episode.timing_s.get("queue_s", 0.0) - now_s

    async def _sampled(self, asked: _Asked) -> Completion:
        config = self._config
        seed = derive_seed(self.episode.seed, asked.number)
        how = turn_sampling(config, self._renderer, asked.max_tokens, seed=seed, greedy=self._greedy)
        time_s = min(asked.left_s, config.generate_timeout_s)
        continues = bool(self.episode.turns)
        request = GenerateRequest(prompt_ids=asked.prompt, sampling=how, time_s=time_s, continues=continues)
        clock_s = asyncio.get_running_loop().time
        began_s = clock_s()
        try:
            completion = await sampled(self._generator, request, config, self._activity)
        except EpisodeBroken as broken:
            self.broken = self.broken or broken
            self.over.set()
            raise CallRefused("unavailable", str(broken)) from broken
        finally:
            self._count_s("generate_s", began_s, clock_s())
        self._count_s("queue_s", began_s, began_s + completion.queued_s)
        return completion

    def _count_s(self, kind: str, begin_s: float, end_s: float) -> None:
        """Calls at the same time are counted once."""
        begin_s = max(begin_s, self._counted_s.get(kind, begin_s))
        if end_s > begin_s:
            times_s = self.episode.timing_s
            times_s[kind] = times_s.get(kind, 0.0) + end_s - begin_s
            self._counted_s[kind] = end_s

    def _recorded(self, asked: _Asked, completion: Completion) -> CallAnswer:
        episode, config = self.episode, self._config
        turn = Turn.of(asked.prompt, completion)
        stopped = turn.finish_reason is FinishReason.STOP
        reading = read_turn(
            self._renderer, turn.completion_ids, tools=asked.tools, stop=asked.request.stop, cut=not stopped
        )
        if reading.malformed and config.malformed_calls == "mask":
            turn = replace(turn, masked=True)
        calls = tuple(ToolCall(call.name, call.arguments, f"call{next(self._call_ids):05d}") for call in reading.calls)
        if self._is_side_call(asked.request.messages, asked.tools):
            self._side_turns.append(len(episode.turns))
        self._grow(asked, turn, reading, calls)
        self._too_long = ""
        self._count_idle(asked, calls)
        if turn.finish_reason is FinishReason.TIME:
            self._cut(Stop.TIME)
            episode.time_limit = f"rollout.generate_timeout_s = {config.generate_timeout_s:g}"
            if asked.left_s <= config.generate_timeout_s:
                self._end_for_time()
        elif not stopped and (asked.limit is not None or turn.finish_reason is not FinishReason.LENGTH):
            self._cut(asked.limit or Stop.TURN_TOKENS)
        elif reading.malformed and config.malformed_calls == "end":
            episode.outcome = Outcome.INVALID
            self._end(Stop.MALFORMED)
        return answer_of(turn, reading, calls, cached_tokens=asked.branch_point.num_ids)

    def _grow(self, asked: _Asked, turn: Turn, reading: Reading, calls: tuple[ToolCall, ...]) -> None:
        ids, episode = asked.ids, self.episode
        ids.extend(turn.completion_ids)
        spoken = Spoken(
            turn=len(episode.turns),
            parent=asked.branch_point.spoken,
            completion_ids=turn.completion_ids,
            ids=ids,
            length=len(ids),
            call_ids=tuple(call.call_id for call in calls),
            ended=turn.finish_reason is FinishReason.STOP,
        )
        key = spoken_key(reading.content, calls)
        said = Heard(key, assistant_message(AgentTurn(reading.content, reading.content, calls), spoken.call_ids))
        also = [spoken_key(text, calls) for text in reading.also]
        self._tree.add(asked.tools_key, asked.tools, asked.talk, asked.branch_point, said, spoken, also)
        episode.turns.append(turn)
        episode.branches, episode.branch_reasons = self._tree.branches, self._tree.branch_reasons()

    def _count_idle(self, asked: _Asked, calls: tuple[ToolCall, ...]) -> None:
        """Ends an agent that never stops compacting, as one does whose own prompt exceeds its limit."""
        length = len(asked.prompt)
        goes_on = calls or asked.branch_point.spoken is not None or length > self._longest_prompt
        self._longest_prompt = max(length, self._longest_prompt)
        self._idle_calls = 0 if goes_on else self._idle_calls + 1
        if self._idle_calls and self._idle_calls == self._max_idle_calls:
            notes = self.episode.info.setdefault("agent", {})
            assert isinstance(notes, dict)
            message = (
                f"{self._idle_calls} calls in a row called no tool, continued no conversation and had no longer prompt "
                "than those before: it seems to compact its history again and again. Raise agent.context_tokens, and "
                "rollout.max_episode_tokens with it, or agent.max_idle_calls"
            )
            notes["failure"] = {"kind": "idle_calls", "message": message}
            self.episode.outcome = Outcome.INVALID
            self._end(Stop.AGENT)

    def _cut(self, stop: Stop) -> None:
        """The policy never finished what it was saying."""
        if self._config.cut_turns == "floor":
            self.episode.outcome = Outcome.INVALID
        self._end(stop)

    def _end(self, stop: Stop) -> None:
        self.episode.stop = self.episode.stop or stop
        self.over.set()

    def _end_for_time(self) -> None:
        self._end(Stop.TIME)
        try:
            end_for_time(self.episode, self._config)
        except EpisodeBroken as broken:
            self.broken = self.broken or broken
