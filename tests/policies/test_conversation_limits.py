"""What a handler gives an agent of a turn, where the limits are, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest
from talking import CALL, TOOL, Held, ask, check, handler_of, said, until_asked, user

from agentgym.errors import InfraError
from agentgym.policies.conversation import CallRefused, CallRequest, FreeHandler
from agentgym.rollout.config import RolloutConfig
from agentgym.testing import run_fast
from agentgym.text.chat import ChatRenderer
from agentgym.types import Outcome, Stop


async def test_a_stop_string_cuts_the_text_and_keeps_the_ids(tokenizer, speaking):
    generator = speaking("<think>STOP?</think>do it</code> and more", "next")
    handler = handler_of(generator, tokenizer)
    first = await ask(handler, user("a"), stop=("</code>", "more"))
    assert (first.content, first.reasoning, first.finish) == ("do it", "STOP?", "stop")
    assert tokenizer.decode(handler.episode.turns[0].completion_ids).endswith("and more<|im_end|>")
    await ask(handler, user("a"), said(first, content="do it</code>"), user("b"))  # smolagents writes it again
    assert handler.episode.branches == [] and first.completion_tokens == len(handler.episode.turns[0].completion_ids)


async def test_a_call_behind_a_stop_string_was_never_made(tokenizer, speaking):
    handler = handler_of(speaking(f"Observe: {CALL}"), tokenizer)
    answer = await ask(handler, user("a"), tools=(TOOL,), stop=("Observe:",))
    assert (answer.content, answer.calls, answer.finish) == ("", (), "stop")


async def test_arguments_have_the_types_of_the_schema_and_can_be_sent(tokenizer, speaking):
    """Some formats write all values as texts; JSON can write a character that UTF-8 can't."""
    said = '<tool_call>{"name": "buy", "arguments": {"item": "12 \\ud800", "count": "3", "price": "x"}}</tool_call>'
    handler = handler_of(speaking(said), tokenizer)
    [call] = (await ask(handler, user("a"), tools=(TOOL,))).calls
    assert call.arguments == {"item": "12 \ufffd", "count": 3, "price": "x"}


async def test_a_malformed_call_is_given_as_text(tokenizer, speaking):
    broken = '<tool_call>{"name": "buy"</tool_call>'
    for rule in ("tell", "mask", "end"):
        config = RolloutConfig(max_turn_tokens=200, max_episode_tokens=5000, malformed_calls=rule)
        handler = handler_of(speaking(f"I buy. {broken}"), tokenizer, config)
        answer = await ask(handler, user("a"), tools=(TOOL,))
        assert (answer.content, answer.calls, answer.finish) == (f"I buy. {broken}", (), "stop")
        assert handler.episode.turns[0].masked == (rule == "mask")
        assert handler.over.is_set() == (rule == "end")
        assert handler.episode.stop == (Stop.MALFORMED if rule == "end" else None)
        assert handler.episode.outcome == (Outcome.INVALID if rule == "end" else None)


async def test_what_the_agent_asks_of_sampling_is_overridden_and_counted(tokenizer, speaking):
    generator = speaking("one")
    handler = handler_of(generator, tokenizer, RolloutConfig(temperature=0.7))
    await ask(handler, user("a"), sampling={"temperature": 0.0, "top_p": 1.0, "seed": 3})
    [request] = generator.requests
    assert request.sampling.temperature == 0.7 and request.sampling.seed != 3
    assert handler.counts == {"overridden_temperature": 1, "overridden_seed": 1}


async def test_what_is_accepted_or_dropped_of_requests_is_recorded(tokenizer, speaking):
    handler = handler_of(speaking("one"), tokenizer)
    for dropped in ((), ("tool web_search",)):
        await ask(handler, user("a"), accepted=("metadata",), dropped=dropped)
    handler.conclude()
    notes = handler.episode.info["agent"]
    assert notes == {"accepted": {"metadata": 2}, "not_honoured": {"dropped tool web_search": 1}}


async def test_an_agents_own_cap_cuts_a_turn_and_the_conversation_goes_on(tokenizer, speaking):
    handler = handler_of(speaking("a long story", "more"), tokenizer)
    first = await ask(handler, user("a"), max_tokens=6)
    assert (first.content, first.finish) == ("a long", "length") and not handler.over.is_set()
    await ask(handler, user("a"), said(first), user("go on"))
    second = handler.episode.turns[1]
    assert tokenizer.decode(second.prompt_ids).endswith(
        "a long<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )
    check(handler)


@pytest.mark.parametrize(
    ("config", "stop"),
    [
        (RolloutConfig(max_turn_tokens=6), Stop.TURN_TOKENS),
        (RolloutConfig(max_turn_tokens=50, max_episode_tokens=60), Stop.EPISODE_TOKENS),
    ],
)
async def test_a_turn_that_reaches_the_runs_limit_ends_the_episode(config, stop, tokenizer, speaking):
    handler = handler_of(speaking("a very long story " * 3), tokenizer, config)
    answer = await ask(handler, user("a"))
    assert answer.finish == "length" and handler.over.is_set()
    assert (handler.episode.stop, handler.episode.outcome) == (stop, Outcome.INVALID)
    with pytest.raises(CallRefused, match="over") as refused:
        await ask(handler, user("a"), said(answer), user("b"))
    assert refused.value.kind == "ended"


async def test_a_context_that_is_too_long_is_refused_and_the_agent_may_shorten_it(tokenizer, speaking):
    config = RolloutConfig(max_turn_tokens=60, max_episode_tokens=150)
    handler = handler_of(speaking("one", "two"), tokenizer, config)
    await ask(handler, user("a"))
    with pytest.raises(CallRefused, match=r"\d+ tokens > 150 maximum, rollout.max_ep") as refused:
        await ask(handler, user("b" * 200))
    assert refused.value.kind == "context_length" and refused.value.param == "messages"
    await ask(handler, user("c"))
    handler.conclude()
    assert handler.episode.stop is None and len(handler.episode.turns) == 2


@pytest.mark.parametrize("begun", [False, True])
async def test_an_episode_that_outgrew_its_context_is_truncated(begun, tokenizer, speaking):
    handler = handler_of(speaking("one"), tokenizer, RolloutConfig(max_turn_tokens=60, max_episode_tokens=150))
    if begun:
        await ask(handler, user("a"))
    with pytest.raises(CallRefused):
        await ask(handler, user("b" * 200))
    handler.conclude()
    assert handler.episode.stop is Stop.EPISODE_TOKENS
    if begun:
        assert handler.broken is None
    else:
        assert handler.broken.record.kind == "prompt_too_long" and not handler.broken.retry


async def test_turns_are_limited(tokenizer, speaking):
    handler = handler_of(speaking("one"), tokenizer, max_turns=2)
    for _ in range(2):
        await ask(handler, user("a"))
    with pytest.raises(CallRefused, match="2 turns") as refused:
        await ask(handler, user("a"))
    assert refused.value.kind == "context_length" and handler.episode.stop is Stop.MAX_TURNS
    with pytest.raises(CallRefused) as refused:
        await ask(handler, user("a"))
    assert refused.value.kind == "ended"


async def test_an_agent_that_never_stops_compacting_has_failed(tokenizer, speaking):
    """What it does besides is no such thing: a call of a tool, a conversation that goes on, a longer prompt."""
    says = ["one"] * 3 + [CALL] + ["one"] * 8
    handler = handler_of(speaking(*says), tokenizer, max_idle_calls=3)
    for text in ("summary" * 30, "goes on", "goes on", "tool", "goes on"):
        await ask(handler, user(text), tools=(TOOL,))
    first = await ask(handler, user("goes on"), tools=(TOOL,))
    await ask(handler, user("goes on"), said(first), user("more"), tools=(TOOL,))
    await ask(handler, user("longer than all of those before" * 9), tools=(TOOL,))
    for text in ("summary", "goes on"):
        await ask(handler, user(text), tools=(TOOL,))
    assert not handler.over.is_set()
    await ask(handler, user("summary"), tools=(TOOL,))
    episode = handler.episode
    assert handler.over.is_set() and (episode.stop, episode.outcome) == (Stop.AGENT, Outcome.INVALID)
    assert "3 calls in a row called no tool" in episode.info["agent"]["failure"]["message"]


async def test_side_calls_are_kept_and_not_trained_unless_all_are_such(tokenizer, speaking):
    def masked(handler):
        handler.conclude()
        return [turn.masked for turn in handler.episode.turns], handler.episode.info.get("agent")

    handler = handler_of(speaking("Title", "one", "two"), tokenizer, is_side_call=lambda messages, tools: not tools)
    await ask(handler, user("Name it."))
    first = await ask(handler, user("a"), tools=(TOOL,))
    await ask(handler, user("a"), said(first), user("b"), tools=(TOOL,))
    assert masked(handler) == ([True, False, False], {"side_turns": [1]}) and len(handler.episode.branches) == 2
    handler = handler_of(speaking("one"), tokenizer, is_side_call=lambda messages, tools: not tools)
    await ask(handler, user("a"))
    assert masked(handler) == ([False], None)


async def test_time_is_limited(tokenizer, speaking):
    now_s = asyncio.get_running_loop().time()
    handler = handler_of(speaking("one"), tokenizer, until_s=now_s - 1)
    with pytest.raises(CallRefused, match="time is over"):
        await ask(handler, user("a"))
    assert handler.episode.stop is Stop.TIME and handler.broken.record.source == "episode"
    cut = speaking("one", delay_s=0.2)
    handler = handler_of(cut, tokenizer, RolloutConfig(generate_timeout_s=0.01))
    answer = await ask(handler, user("a"))
    assert answer.finish == "length" and handler.episode.stop is Stop.TIME and handler.broken is None
    assert handler.episode.time_limit == "rollout.generate_timeout_s = 0.01"
    assert handler.episode.outcome is Outcome.INVALID


def test_seconds_of_calls_at_the_same_time_are_counted_once(tokenizer, speaking):
    """Or the waits of many sub-agents in the engine's queue would prolong the episode without end."""

    async def play():
        handler = handler_of(speaking("one", delay_s=8.0, queued_s=3.0), tokenizer)
        await asyncio.gather(*(ask(handler, user(text)) for text in "abc"))
        await ask(handler, user("d"))
        return handler.episode.timing_s

    assert run_fast(play()) == pytest.approx({"generate_s": 16.0, "queue_s": 6.0})


async def test_a_generator_that_fails_breaks_the_episode(tokenizer, speaking):
    handler = handler_of(speaking(InfraError("no replica")), tokenizer)
    with pytest.raises(CallRefused) as refused:
        await ask(handler, user("a"))
    assert refused.value.kind == "unavailable" and handler.over.is_set()
    assert handler.broken.retry and handler.broken.record.source == "generator" and handler.episode.turns == []


async def test_a_call_under_way_is_not_recorded_once_the_episode_is_concluded(tokenizer):
    generator = Held(tokenizer)
    handler = handler_of(generator, tokenizer)
    late = asyncio.create_task(ask(handler, user("a")))
    await until_asked(generator, 1)
    handler.conclude()
    generator.gates[0].set()
    with pytest.raises(CallRefused) as refused:
        await late
    assert refused.value.kind == "ended" and handler.episode.turns == []


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
    handler = handler_of(speaking("one"), tokenizer)
    with pytest.raises(CallRefused) as refused:
        await handler.call(CallRequest(**fields))
    assert (refused.value.kind, refused.value.param) == ("invalid", param) and not handler.over.is_set()


async def test_a_served_checkpoint_takes_the_callers_sampling(tokenizer, speaking):
    generator = speaking("one")
    handler = FreeHandler(ChatRenderer(tokenizer), generator, max_tokens=100)
    answer = await ask(handler, user("a"), sampling={"temperature": 0, "top_k": 5.0, "seed": 3}, max_tokens=9)
    sampling = generator.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.max_tokens) == (0.0, 5, 3, 9)
    assert answer.content == "one" and answer.cached_tokens == 0
    with pytest.raises(CallRefused) as refused:
        await ask(handler, user("a"), sampling={"top_p": 2.0})
    assert (refused.value.kind, refused.value.param) == ("invalid", "top_p")
    with pytest.raises(CallRefused) as refused:
        await ask(handler, user("a" * 100))
    assert refused.value.kind == "context_length"
