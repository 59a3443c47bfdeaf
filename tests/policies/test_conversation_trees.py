"""Random trees of conversations with edits: every prompt is what a slow, obvious book-keeping says, and every sampled
token is trained once. The engine's ids do not survive tokenizing again, and no two of its tokens are the same."""

from __future__ import annotations

import asyncio
import functools
import os
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.policies.conversation import CallAnswer, CallRequest, EpisodeHandler
from agentgym.rl.samples import episode_samples
from agentgym.rollout.config import RolloutConfig
from agentgym.testing import CharacterTokenizer
from agentgym.text.chat import ChatRenderer
from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Message, Task, VersionSpan

THOUSANDS = int(os.environ.get("AGENTGYM_THOUSANDS_OF_TREES", "1"))  # all were sound when ten were tried
ALIAS = 0x110000  # an id above it is another one for the same character
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": "Does.", "parameters": {"type": "object"}}}
    for name in ("look", "buy")
)
REASONS = {"system changed", "message removed", "message altered", "tools changed", "sibling"}


class AliasTokenizer(CharacterTokenizer):
    def decode(self, token_ids):
        return super().decode([one % ALIAS for one in token_ids])


@dataclass
class Engine:
    """Answers the call of number n with text n, in ids of its own. gate: calls wait until it lets them through."""

    tokenizer: AliasTokenizer
    version: int = 0
    asked: list[GenerateRequest] = field(default_factory=list)
    answered: dict[int, Completion] = field(default_factory=dict)
    gates: dict[int, asyncio.Event] = field(default_factory=dict)

    async def generate(self, request: GenerateRequest) -> Completion:
        number = len(self.asked)
        self.asked.append(replace(request, prompt_ids=tuple(request.prompt_ids)))
        if number in self.gates:
            await self.gates[number].wait()
        plain = self.tokenizer.encode(text_of(number))
        ids = (*(i + ALIAS * (number + 1) for i in plain), 2)
        cut = ids[: request.sampling.max_tokens]
        half = len(cut) // 2
        spans = [VersionSpan(version=self.version, start=0, end=half)] if half else []
        spans.append(VersionSpan(version=self.version + 1, start=half, end=len(cut)))  # an update in its middle
        completion = Completion(
            completion_ids=cut,
            logprobs=tuple(-0.001 * (number + 1) - 1e-6 * n for n in range(len(cut))),
            versions=tuple(spans),
            finish_reason=FinishReason.STOP if cut == ids else FinishReason.LENGTH,
        )
        self.answered[number] = completion
        return completion

    async def update_weights(self, version: int) -> None:
        self.version = version


@functools.cache
def renderer() -> ChatRenderer:
    return ChatRenderer(AliasTokenizer())  # its template is read once


def text_of(number: int) -> str:
    call = f'<tool_call>{{"name":   "buy", "arguments": {{"n": {number}.0, "a": [1,  "é"]}}}}</tool_call>'
    return (
        f"{number} calls.{call}",
        f"{number} is said.",
        f"<think>hm</think>{call}  {call}",
        f"<think>{number}?</think>\n\n{number} is said. ",
    )[number % 4]


@dataclass(frozen=True)
class Said:
    """A message. Two are the same for the agent if they are equal. ids: of calls, as they were answered."""

    role: str
    text: str
    calls: tuple[tuple[str, Any], ...] = ()
    ids: tuple[str, ...] = ()
    number: int = -1  # of the call that sampled it


Talk = tuple[Said, ...]
Root = tuple[bool, Talk]  # with tools or without


class Play:
    """An agent that does as it is told by numbers, and the book-keeping."""

    def __init__(self) -> None:
        self.renderer = renderer()
        self.tokenizer: Any = self.renderer.tokenizer
        self.engine = Engine(self.tokenizer)
        config = RolloutConfig(max_turn_tokens=10**6, max_episode_tokens=10**7)
        self.episode = Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=1)
        self.handler = EpisodeHandler(self.renderer, self.engine, config, self.episode)
        self.talks: list[Root] = [(True, (Said("system", "s"), Said("user", "u")))]
        self.known: dict[Root, tuple[int, ...]] = {}  # a path that ends with a sampled turn -> its ids
        self.words = 0
        self.cancelled: set[int] = set()

    def word(self) -> str:
        self.words += 1
        return f"word {self.words}"

    def sent(self, talk: Talk, vary: int) -> list[Message]:
        """As agents send it: ids of calls renamed, numbers and spaces otherwise, null for no text."""
        messages: list[Message] = []
        names: dict[str, str] = {}
        for place, one in enumerate(talk):
            pad = ("", " ", "\n\n")[(vary + place) % 3] if one.number >= 0 else ""
            message: dict[str, Any] = {"role": one.role, "content": one.text.strip() + pad if pad else one.text}
            if one.calls:
                new = {call_id: f"{call_id}-{vary}" if vary % 2 else call_id for call_id in one.ids}
                names |= new
                message["tool_calls"] = [
                    {"type": "function", "id": new[i], "function": {"name": name, "arguments": respelled(value, vary)}}
                    for (name, value), i in zip(one.calls, one.ids, strict=True)
                ]
            if one.role == "tool":
                message["tool_call_id"] = names.get(one.ids[0], one.ids[0])
            messages.append(message)  # type: ignore[arg-type]
        return messages

    def expected(self, root: Root, sent: list[Message]) -> tuple[int, ...]:
        """The ids of the longest path that was sampled, and the rest as the template writes it."""
        tools, talk = root
        for length in range(len(talk), 0, -1):
            if (tools, talk[:length]) in self.known:
                break
        else:
            return self.renderer.prompt(normal(sent), TOOLS if tools else None)
        ids = self.known[tools, talk[:length]]
        if ids[-1] != 2:  # it was cut
            ids += (2,)
        for one in sent[length:]:
            text = self.renderer.written(normal([one])[0]) if one["role"] == "assistant" else one["content"]
            ids += self.tokenizer.encode(f"\n<|im_start|>{one['role']}\n{text}<|im_end|>")
        return ids + self.tokenizer.encode("\n<|im_start|>assistant\n")

    async def call(self, root: Root, vary: int, *, max_tokens: int | None = None) -> CallAnswer:
        sent = self.sent(root[1], vary)
        request = CallRequest(messages=tuple(sent), tools=TOOLS if root[0] else (), max_tokens=max_tokens)
        return await self.handler.call(request)

    def note(self, root: Root, answer: CallAnswer, number: int) -> Root:
        """What the agent and the books make of an answer."""
        completion = self.engine.answered[number]
        prompt = self.engine.asked[number].prompt_ids
        calls = tuple((call.name, freeze(call.arguments)) for call in answer.calls)
        said = Said("assistant", answer.content, calls, tuple(call.call_id for call in answer.calls), number)
        after = (root[0], (*root[1], said))
        self.known[after] = (*prompt, *completion.completion_ids)
        self.check_answer(answer, number)
        return after

    def check_answer(self, answer: CallAnswer, number: int) -> None:
        asked = self.engine.asked[number]
        assert answer.prompt_tokens == len(asked.prompt_ids)
        assert answer.completion_tokens == len(self.engine.answered[number].completion_ids)
        assert str(number) in answer.content or any(call.arguments["n"] == number for call in answer.calls)

    async def step(self, op: int, which: int, place: int, vary: int) -> None:
        at = which % len(self.talks)
        tools, talk = self.talks[at]
        match op % 12:
            case 0 | 1 | 2 | 3:  # a call, and what comes after it
                number = len(self.engine.asked)
                sent = self.sent(talk, vary)
                wanted = self.expected((tools, talk), sent)
                cap = len(text_of(number)) - 2 if vary % 7 == 0 and number % 4 == 1 else None
                answer = await self.call((tools, talk), vary, max_tokens=cap)
                assert self.engine.asked[number].prompt_ids == wanted
                self.talks[at] = self.heard(self.note((tools, talk), answer, number))
            case 4:  # the same call again, or two at once
                await self.at_once(at, at, vary)
            case 5:
                await self.at_once(at, place % len(self.talks), vary)
            case 6:  # a client that goes away
                number = len(self.engine.asked)
                self.engine.gates[number] = asyncio.Event()
                gone = asyncio.create_task(self.call((tools, talk), vary))
                while len(self.engine.asked) == number:
                    await asyncio.sleep(0)
                gone.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await gone
                self.cancelled.add(number)
            case 7:  # another system message, other tools: a sub-agent
                begun = (Said("system", self.word()), Said("user", self.word()))
                self.talks.append((bool(vary % 2), begun if place % 2 else talk))
            case 8:  # compaction
                self.talks.append((tools, (*talk[:1], Said("user", self.word()))))
            case 9:
                await self.engine.update_weights(self.engine.version + 2)
            case 10:
                self.talks.append((tools, talk))
            case _:
                self.talks[at] = tools, self.edited(talk, place, vary)

    def edited(self, talk: Talk, place: int, vary: int) -> Talk:
        """Insertion, deletion or alteration of a message; the last one stays, and is not the agent's."""
        place %= len(talk)
        before, one, after = talk[:place], talk[place], talk[place + 1 :]
        if vary % 3 == 0:
            return (*before, Said("user", self.word()), one, *after)
        if vary % 3 == 1 and after:
            return (*before, *after)
        return (*before, replace(one, text=self.word(), number=-1), *after)

    def heard(self, root: Root) -> Root:
        """What follows the agent's turn: results of its calls, or what a user says."""
        last = root[1][-1]
        results = tuple(Said("tool", self.word(), ids=(call_id,)) for call_id in last.ids)
        return root[0], (*root[1], *(results or (Said("user", self.word()),)))

    async def at_once(self, first: int, second: int, vary: int) -> None:
        """Two calls that are under way together, answered in either order."""
        number = len(self.engine.asked)
        roots = [self.talks[first], self.talks[second]]
        wanted = [self.expected(root, self.sent(root[1], vary)) for root in roots]
        tasks = []
        for n, root in enumerate(roots):
            self.engine.gates[number + n] = asyncio.Event()
            tasks.append(asyncio.create_task(self.call(root, vary)))
            while len(self.engine.asked) == number + n:
                await asyncio.sleep(0)
        assert [self.engine.asked[number + n].prompt_ids for n in (0, 1)] == wanted
        for n in (0, 1) if vary % 2 else (1, 0):
            self.engine.gates[number + n].set()
            answer = await tasks[n]
            after = self.heard(self.note(roots[n], answer, number + n))
            if n == 0:
                self.talks[first] = after
            else:
                self.talks.append(after)

    def check(self) -> None:
        """The record of the episode against what the engine was asked and answered."""
        turns, engine = self.episode.turns, self.engine
        numbers = {request.prompt_ids + engine.answered[n].completion_ids: n
                   for n, request in enumerate(engine.asked) if n in engine.answered}  # fmt: skip
        played = [numbers[tuple(turn.prompt_ids) + turn.completion_ids] for turn in turns]
        assert sorted(played) == sorted(set(range(len(engine.asked))) - self.cancelled)
        seeds = {engine.asked[n].sampling.seed for n in played}
        assert len(seeds) == len(played)
        samples = episode_samples(self.episode, 1.0)
        trained = [
            token
            for s in samples
            for *token, mask in zip(s.token_ids, s.logprobs, s.versions, s.loss_mask, strict=True)
            if mask
        ]
        wanted = []
        for n in played:
            one = engine.answered[n]
            versions = [span.version for span in one.versions for _ in range(span.start, span.end)]
            wanted += [list(token) for token in zip(one.completion_ids, one.logprobs, versions, strict=True)]
        assert sorted(trained) == sorted(wanted)
        leaves = {turns[branch[-1]].prompt_ids + turns[branch[-1]].completion_ids
                  for branch in self.episode.all_branches}  # fmt: skip
        assert {sample.token_ids for sample in samples} == leaves
        reasons = self.episode.branch_reasons
        assert len(reasons) == max(0, len(self.episode.branches) - 1) and set(reasons) <= REASONS


def normal(messages: list[Message]) -> list[Message]:
    """Arguments as they are written when a turn that was not sampled is rendered."""
    return [{**{k: v for k, v in one.items() if k != "tool_call_id"}} for one in messages]  # type: ignore[misc]


def freeze(value: Any) -> Any:
    """As a value that can be compared and hashed."""
    if isinstance(value, dict):
        return tuple(sorted((name, freeze(part)) for name, part in value.items()))
    return tuple(map(freeze, value)) if isinstance(value, list) else value


def respelled(frozen: Any, vary: int) -> dict[str, Any]:
    pairs = frozen if vary % 2 else frozen[::-1]
    return {
        name: list(value) if isinstance(value, tuple) else int(value) if vary % 5 else value for name, value in pairs
    }


async def play(script: list[tuple[int, int, int, int]]) -> Play:
    played = Play()
    for step in script:
        await played.step(*step)
    played.check()
    return played


numbers = st.integers(0, 83)
steps = st.tuples(st.integers(0, 11), numbers, numbers, numbers)


@settings(max_examples=200)
@given(st.lists(steps, min_size=6, max_size=16))
def test_every_path_is_what_was_sampled_and_every_token_is_trained_once(script):
    asyncio.run(play(script))


@pytest.mark.hostile
@pytest.mark.parametrize("part", range(THOUSANDS))  # what has been tried is remembered, and that is a lot
@settings(max_examples=1000, database=None)
@given(script=st.lists(steps, min_size=6, max_size=40))
def test_a_thousand_longer_trees(script, part):
    asyncio.run(play(script))
