"""What agents say through a seat becomes turns: ids as they were sampled, branches with reasons, limits, refusals."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentgym.errors import InfraError
from agentgym.rl.samples import episode_samples
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.conversation import CallRefused, CallRequest, EpisodeSeat, FreeSeat
from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Outcome, Stop, Task, VersionSpan

TASK = Task(task_id="t", prompt=())
SYSTEM = {"role": "system", "content": "Be kind."}
CONFIG = RolloutConfig(max_turn_tokens=500, max_episode_tokens=5000)
TOOL = {
    "type": "function",
    "function": {
        "name": "buy",
        "description": "Buys.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "count": {"type": "integer"}, "price": {"type": "number"}},
        },
    },
}
CALL = '<tool_call>\n{"name": "buy", "arguments": {"item": "an  apple",   "count": 2, "price": 1.0}}\n</tool_call>'


def user(text):
    return {"role": "user", "content": text}


def seat_of(generator, tokenizer, config=CONFIG, **settings):
    episode = Episode(episode_id="e", task=TASK, seed=7)
    return EpisodeSeat(ChatRenderer(tokenizer), generator, config, episode, **settings)


async def ask(seat, *messages, **fields):
    return await seat.call(CallRequest(messages=messages, **fields))


def said(answer, **changed):
    """What an agent sends back of an answer."""
    message = {"role": "assistant", "content": answer.content}
    if answer.calls:
        message["tool_calls"] = [
            {"type": "function", "id": c.call_id, "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in answer.calls
        ]
    return {**message, **changed}


def check(seat):
    """Every sampled token is trained once, with its logprob, and context is not."""
    episode = seat.episode
    samples = episode_samples(episode, 1.0)
    sampled = sorted(x for turn in episode.turns for x in zip(turn.completion_ids, turn.logprobs, strict=True))
    trained = sorted((i, x) for s in samples for i, x, m in zip(s.token_ids, s.logprobs, s.loss_mask, strict=True) if m)
    assert trained == sampled
    return samples


async def test_a_conversation_goes_on_from_the_ids_that_were_sampled(tokenizer, speaking):
    generator = speaking("one ", "two")
    seat = seat_of(generator, tokenizer)
    first = await ask(seat, SYSTEM, user("a"))
    assert (first.content, first.finish, first.cached_tokens) == ("one ", "stop", 0)
    second = await ask(seat, SYSTEM, user("a"), said(first, content=" one"), user("b"))
    turns = seat.episode.turns
    before = (*turns[0].prompt_ids, *turns[0].completion_ids)
    assert turns[1].prompt_ids == before + tokenizer.encode("\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")
    assert [request.prompt_ids for request in generator.requests] == [turn.prompt_ids for turn in turns]
    assert second.cached_tokens == len(before) and second.prompt_tokens == len(turns[1].prompt_ids)
    assert seat.episode.branches == [] and len(check(seat)) == 1
    assert [m["content"] for m in seat.conversation()] == ["Be kind.", "a", "one ", "b", "two"]


@pytest.mark.parametrize(
    "arguments", ['{"count":2,"item":"an  apple","price":1}', '{"price": 1.0, "item": "an  apple", "count": 2.0}']
)
async def test_a_call_is_known_again_whatever_its_json_and_its_id(arguments, tokenizer, speaking):
    seat = seat_of(speaking(f"<think>hm</think>I buy.{CALL}", "done"), tokenizer)
    first = await ask(seat, user("go"), tools=(TOOL,))
    assert (first.content, first.reasoning, first.finish) == ("I buy.", "hm", "tool_calls")
    [call] = first.calls
    assert call.name == "buy" and call.arguments == {"item": "an  apple", "count": 2, "price": 1.0}
    back = {
        "role": "assistant",
        "content": "I buy.\n",
        "tool_calls": [{"id": "mine", "function": {"name": "buy", "arguments": json.loads(arguments)}}],
    }
    result = {"role": "tool", "tool_call_id": "mine", "content": "bought"}
    await ask(seat, user("go"), back, result, tools=(json.loads(json.dumps(TOOL)),))
    first_turn, second_turn = seat.episode.turns
    known = (*first_turn.prompt_ids, *first_turn.completion_ids)
    assert second_turn.prompt_ids[: len(known)] == known, "the thought and the JSON as they were sampled"
    assert tokenizer.decode(second_turn.prompt_ids[len(known) :]) == (
        "\n<|im_start|>tool\nbought<|im_end|>\n<|im_start|>assistant\n"
    )
    assert seat.episode.branches == []


async def test_an_assistant_message_in_parts_is_one_turn(tokenizer, speaking):
    """Responses has the text and each call as items of their own."""
    seat = seat_of(speaking(f"I buy.{CALL}{CALL}", "done"), tokenizer)
    first = await ask(seat, user("go"), tools=(TOOL,))
    calls = said(first)["tool_calls"]
    parts = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": call["id"]} for call in calls]
    await ask(seat, user("go"), {"role": "assistant", "content": "I buy."}, *parts, *results, tools=(TOOL,))
    assert seat.episode.branches == [] and len({c.call_id for c in first.calls}) == 2


REWRITTEN = {
    "system changed": lambda a: ({**SYSTEM, "content": "Be terse."}, user("a"), said(a[0]), user("b")),
    "message removed": lambda a: (SYSTEM, user("b"), said(a[1]), user("c")),
    "message altered": lambda a: (SYSTEM, user("a"), said(a[0], content="One."), user("b")),
    "sibling": lambda a: (SYSTEM, user("a"), said(a[0]), user("b")),
}


@pytest.mark.parametrize("reason", REWRITTEN)
async def test_rewritten_history_is_a_branch_with_its_reason(reason, tokenizer, speaking):
    seat = seat_of(speaking("one", "two", "three", "four"), tokenizer)
    first = await ask(seat, SYSTEM, user("a"))
    second = await ask(seat, SYSTEM, user("a"), said(first), user("b"))
    await ask(seat, *REWRITTEN[reason]((first, second)))
    shared = (0,) if reason == "sibling" else ()
    assert seat.episode.branches == [(0, 1), (*shared, 2)]
    assert seat.episode.branch_reasons == [reason]
    assert len(check(seat)) == 2


async def test_other_tools_are_another_root(tokenizer, speaking):
    seat = seat_of(speaking("one", "two"), tokenizer)
    await ask(seat, user("a"))
    await ask(seat, user("a"), tools=(TOOL,))
    assert seat.episode.branches == [(0,), (1,)] and seat.episode.branch_reasons == ["tools changed"]


async def test_a_branch_goes_on_from_the_last_turn_that_is_still_as_it_was(tokenizer, speaking):
    """Whole turns before the change keep the ids that were sampled, thoughts included."""
    seat = seat_of(speaking("<think>1</think>one", "two", "three"), tokenizer)
    first = await ask(seat, user("a"))
    await ask(seat, user("a"), said(first), user("b"))
    third = await ask(seat, user("a"), said(first), user("b"), {"role": "assistant", "content": "zwei"}, user("c"))
    turns = seat.episode.turns
    known = (*turns[0].prompt_ids, *turns[0].completion_ids)
    assert turns[2].prompt_ids[: len(known)] == known and third.cached_tokens == len(known)
    assert tokenizer.decode(turns[2].prompt_ids).endswith(
        "one<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nzwei<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    assert seat.episode.branches == [(0, 1), (0, 2)] and seat.episode.branch_reasons == ["message altered"]
    context, trained = check(seat)
    assert sum(context.loss_mask) == len(turns[0].completion_ids) + len(turns[1].completion_ids)
    assert sum(trained.loss_mask) == len(turns[2].completion_ids), "the shared turn is trained in the first branch"


class Held:
    """Answers a call with the number of its arrival when it is told to."""

    version = 0

    def __init__(self, tokenizer):
        self.tokenizer, self.requests, self.gates = tokenizer, [], []

    async def generate(self, request: GenerateRequest) -> Completion:
        number = len(self.requests)
        self.requests.append(request)
        self.gates.append(asyncio.Event())
        await self.gates[number].wait()
        ids = (*self.tokenizer.encode(f"answer {number}"), 2)
        spans = (VersionSpan(version=self.version, start=0, end=len(ids)),)
        return Completion(
            completion_ids=ids, logprobs=(-0.5,) * len(ids), versions=spans, finish_reason=FinishReason.STOP
        )

    async def update_weights(self, version: int) -> None:
        self.version = version


async def until_asked(generator, count):
    while len(generator.requests) < count:
        await asyncio.sleep(0)


async def test_two_calls_at_once_are_siblings_and_each_goes_on_from_its_own(tokenizer):
    generator = Held(tokenizer)
    seat = seat_of(generator, tokenizer)
    calls = [asyncio.create_task(ask(seat, user("a"))) for _ in range(2)]
    await until_asked(generator, 2)
    generator.gates[1].set()
    second = await calls[1]
    generator.gates[0].set()
    first = await calls[0]
    seeds = [request.sampling.seed for request in generator.requests]
    assert len(set(seeds)) == 2, "or both would say the same"
    for answer in (first, second):
        more = asyncio.create_task(ask(seat, user("a"), said(answer), user("b")))
        await until_asked(generator, len(generator.gates) + (not more.done()))
        generator.gates[-1].set()
        await more
    assert seat.episode.branches == [(0, 3), (1, 2)] and seat.episode.branch_reasons == ["sibling"]
    check(seat)


async def test_equal_answers_that_both_go_on_each_keep_their_own_path(tokenizer, speaking):
    """Two samples of one prompt that say the same: the ids cannot tell them apart, and no token may be lost."""
    seat = seat_of(speaking("same", "same", "b1", "b2", "c1"), tokenizer)
    first, _ = await ask(seat, user("a")), await ask(seat, user("a"))
    third = await ask(seat, user("a"), said(first), user("b"))
    fourth = await ask(seat, user("a"), said(first), user("c"))
    assert (third.content, fourth.content) == ("b1", "b2")
    await ask(seat, user("a"), said(first), user("b"), said(third), user("d"))
    assert sorted(map(len, seat.episode.branches)) == [2, 3] and len(seat.episode.branches) == 2
    check(seat)


async def test_a_call_that_goes_away_records_nothing(tokenizer):
    generator = Held(tokenizer)
    seat = seat_of(generator, tokenizer)
    gone = asyncio.create_task(ask(seat, user("a")))
    await until_asked(generator, 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    again = asyncio.create_task(ask(seat, user("a")))
    await until_asked(generator, 2)
    generator.gates[1].set()
    await again
    first, second = (request.sampling.seed for request in generator.requests)
    assert len(seat.episode.turns) == 1 and seat.episode.branches == [] and seat.counts["cancelled"] == 1
    assert first == second, "the turn's seed is that of its number"


async def test_new_weights_between_two_calls_are_on_their_turns(tokenizer, speaking):
    generator = speaking("one", "two")
    seat = seat_of(generator, tokenizer)
    first = await ask(seat, user("a"))
    await generator.update_weights(3)
    await ask(seat, user("a"), said(first), user("b"))
    [sample] = check(seat)
    assert [v for v in sample.versions if v >= 0] == [0] * 4 + [3] * 4


async def test_the_same_call_again_after_its_answer_is_sampled_again(tokenizer, speaking):
    seat = seat_of(speaking("one", "uno", "two"), tokenizer)
    await ask(seat, user("a"))
    again = await ask(seat, user("a"))
    await ask(seat, user("a"), said(again), user("b"))
    assert seat.episode.branches == [(0,), (1, 2)] and seat.episode.branch_reasons == ["sibling"]
    check(seat)


async def test_a_stop_string_cuts_the_text_and_keeps_the_ids(tokenizer, speaking):
    generator = speaking("<think>STOP?</think>do it</code> and more", "next")
    seat = seat_of(generator, tokenizer)
    first = await ask(seat, user("a"), stop=("</code>", "more"))
    assert (first.content, first.reasoning, first.finish) == ("do it", "STOP?", "stop")
    assert tokenizer.decode(seat.episode.turns[0].completion_ids).endswith("and more<|im_end|>")
    await ask(seat, user("a"), said(first, content="do it</code>"), user("b"))  # smolagents writes it again
    assert seat.episode.branches == [] and first.completion_tokens == len(seat.episode.turns[0].completion_ids)


async def test_a_malformed_call_is_given_as_text(tokenizer, speaking):
    broken = '<tool_call>{"name": "buy"</tool_call>'
    for rule in ("tell", "mask", "end"):
        config = RolloutConfig(max_turn_tokens=200, max_episode_tokens=5000, malformed_calls=rule)
        seat = seat_of(speaking(f"I buy. {broken}"), tokenizer, config)
        answer = await ask(seat, user("a"), tools=(TOOL,))
        assert (answer.content, answer.calls, answer.finish) == (f"I buy. {broken}", (), "stop")
        assert seat.episode.turns[0].masked == (rule == "mask")
        assert seat.over.is_set() == (rule == "end")
        assert seat.episode.stop == (Stop.MALFORMED if rule == "end" else None)
        assert seat.episode.outcome == (Outcome.INVALID if rule == "end" else None)


async def test_what_the_agent_asks_of_sampling_is_overridden_and_counted(tokenizer, speaking):
    generator = speaking("one")
    seat = seat_of(generator, tokenizer, RolloutConfig(temperature=0.7))
    await ask(seat, user("a"), sampling={"temperature": 0.0, "top_p": 1.0, "seed": 3})
    [request] = generator.requests
    assert request.sampling.temperature == 0.7 and request.sampling.seed != 3
    assert seat.counts == {"overridden_temperature": 1, "overridden_seed": 1}


async def test_an_agents_own_cap_cuts_a_turn_and_the_conversation_goes_on(tokenizer, speaking):
    seat = seat_of(speaking("a long story", "more"), tokenizer)
    first = await ask(seat, user("a"), max_tokens=6)
    assert (first.content, first.finish) == ("a long", "length") and not seat.over.is_set()
    await ask(seat, user("a"), said(first), user("go on"))
    second = seat.episode.turns[1]
    assert tokenizer.decode(second.prompt_ids).endswith(
        "a long<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )
    check(seat)


@pytest.mark.parametrize(
    ("config", "stop"),
    [
        (RolloutConfig(max_turn_tokens=6), Stop.TURN_TOKENS),
        (RolloutConfig(max_turn_tokens=50, max_episode_tokens=60), Stop.EPISODE_TOKENS),
    ],
)
async def test_a_turn_that_reaches_the_runs_limit_ends_the_episode(config, stop, tokenizer, speaking):
    seat = seat_of(speaking("a very long story " * 3), tokenizer, config)
    answer = await ask(seat, user("a"))
    assert answer.finish == "length" and seat.over.is_set()
    assert (seat.episode.stop, seat.episode.outcome) == (stop, Outcome.INVALID)
    with pytest.raises(CallRefused, match="over") as refused:
        await ask(seat, user("a"), said(answer), user("b"))
    assert refused.value.kind == "ended"


async def test_a_context_that_is_too_long_is_refused_and_the_agent_may_shorten_it(tokenizer, speaking):
    config = RolloutConfig(max_turn_tokens=60, max_episode_tokens=150)
    seat = seat_of(speaking("one", "two"), tokenizer, config)
    await ask(seat, user("a"))
    with pytest.raises(CallRefused, match="max_episode_tokens is 150") as refused:
        await ask(seat, user("b" * 200))
    assert refused.value.kind == "context_length" and refused.value.param == "messages"
    await ask(seat, user("c"))
    seat.conclude()
    assert seat.episode.stop is None and len(seat.episode.turns) == 2


@pytest.mark.parametrize("begun", [False, True])
async def test_an_episode_that_outgrew_its_context_is_truncated(begun, tokenizer, speaking):
    seat = seat_of(speaking("one"), tokenizer, RolloutConfig(max_turn_tokens=60, max_episode_tokens=150))
    if begun:
        await ask(seat, user("a"))
    with pytest.raises(CallRefused):
        await ask(seat, user("b" * 200))
    seat.conclude()
    assert seat.episode.stop is Stop.EPISODE_TOKENS
    if begun:
        assert seat.broken is None
    else:
        assert seat.broken.record.kind == "prompt_too_long" and not seat.broken.retry


async def test_turns_are_limited(tokenizer, speaking):
    seat = seat_of(speaking("one"), tokenizer, max_turns=2)
    for _ in range(2):
        await ask(seat, user("a"))
    with pytest.raises(CallRefused, match="2 turns") as refused:
        await ask(seat, user("a"))
    assert refused.value.kind == "context_length" and seat.episode.stop is Stop.MAX_TURNS
    with pytest.raises(CallRefused) as refused:
        await ask(seat, user("a"))
    assert refused.value.kind == "ended"


async def test_time_is_limited(tokenizer, speaking):
    now_s = asyncio.get_running_loop().time()
    seat = seat_of(speaking("one"), tokenizer, until_s=now_s - 1)
    with pytest.raises(CallRefused, match="time is over"):
        await ask(seat, user("a"))
    assert seat.episode.stop is Stop.TIME and seat.broken.record.source == "episode"
    cut = speaking("one", delay_s=0.2)
    seat = seat_of(cut, tokenizer, RolloutConfig(generate_timeout_s=0.01))
    answer = await ask(seat, user("a"))
    assert answer.finish == "length" and seat.episode.stop is Stop.TIME and seat.broken is None
    assert seat.episode.outcome is Outcome.INVALID


async def test_a_generator_that_fails_breaks_the_episode(tokenizer, speaking):
    seat = seat_of(speaking(InfraError("no replica")), tokenizer)
    with pytest.raises(CallRefused) as refused:
        await ask(seat, user("a"))
    assert refused.value.kind == "unavailable" and seat.over.is_set()
    assert seat.broken.retry and seat.broken.record.source == "generator" and seat.episode.turns == []


async def test_a_call_under_way_is_not_recorded_once_the_episode_is_concluded(tokenizer):
    generator = Held(tokenizer)
    seat = seat_of(generator, tokenizer)
    late = asyncio.create_task(ask(seat, user("a")))
    await until_asked(generator, 1)
    seat.conclude()
    generator.gates[0].set()
    with pytest.raises(CallRefused) as refused:
        await late
    assert refused.value.kind == "ended" and seat.episode.turns == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": ()}, "messages"),
        ({"messages": (user("a"), {"role": "assistant", "content": "I "})}, "messages"),
        ({"messages": (user("a"),), "max_tokens": 0}, "max_tokens"),
        ({"messages": ({"role": "assistant", "content": "", "tool_calls": ["?"]}, user("a"))}, "messages"),
    ],
)
async def test_a_call_that_nobody_could_answer_names_what_is_wrong(fields, param, tokenizer, speaking):
    seat = seat_of(speaking("one"), tokenizer)
    with pytest.raises(CallRefused) as refused:
        await seat.call(CallRequest(**fields))
    assert (refused.value.kind, refused.value.param) == ("invalid", param) and not seat.over.is_set()


async def test_a_served_checkpoint_takes_the_callers_sampling(tokenizer, speaking):
    generator = speaking("one")
    seat = FreeSeat(ChatRenderer(tokenizer), generator, max_tokens=100)
    answer = await ask(seat, user("a"), sampling={"temperature": 0, "top_k": 5.0, "seed": 3}, max_tokens=9)
    sampling = generator.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.max_tokens) == (0.0, 5, 3, 9)
    assert answer.content == "one" and answer.cached_tokens == 0
    with pytest.raises(CallRefused) as refused:
        await ask(seat, user("a"), sampling={"top_p": 2.0})
    assert (refused.value.kind, refused.value.param) == ("invalid", "top_p")
    with pytest.raises(CallRefused) as refused:
        await ask(seat, user("a" * 100))
    assert refused.value.kind == "context_length"
