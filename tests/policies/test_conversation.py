"""What agents say through a handler becomes turns: ids as they were sampled, branches with reasons."""

from __future__ import annotations

import asyncio
import json

import pytest
from talking import CALL, SYSTEM, TOOL, Held, ask, check, handler_of, said, until_asked, user

from agentgym.policies.normal_form import heard


async def test_a_conversation_goes_on_from_the_ids_that_were_sampled(tokenizer, speaking):
    generator = speaking("one ", "two")
    handler = handler_of(generator, tokenizer)
    first = await ask(handler, SYSTEM, user("a"))
    assert (first.content, first.finish, first.cached_tokens) == ("one ", "stop", 0)
    second = await ask(handler, SYSTEM, user("a"), said(first, content=" one"), user("b"))
    turns = handler.episode.turns
    before = (*turns[0].prompt_ids, *turns[0].completion_ids)
    assert turns[1].prompt_ids == before + tokenizer.encode("\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")
    assert [request.prompt_ids for request in generator.requests] == [turn.prompt_ids for turn in turns]
    assert second.cached_tokens == len(before) and second.prompt_tokens == len(turns[1].prompt_ids)
    assert handler.episode.branches == [] and len(check(handler)) == 1
    assert [m["content"] for m in handler.conversation()] == ["Be kind.", "a", "one ", "b", "two"]


@pytest.mark.parametrize(
    "arguments", ['{"count":2,"item":"an  apple","price":1}', '{"price": 1.0, "item": "an  apple", "count": 2.0}']
)
async def test_a_call_is_known_again_whatever_its_json_and_its_id(arguments, tokenizer, speaking):
    handler = handler_of(speaking(f"<think>hm</think>I buy.{CALL}", "done"), tokenizer)
    first = await ask(handler, user("go"), tools=(TOOL,))
    assert (first.content, first.reasoning, first.finish) == ("I buy.", "hm", "tool_calls")
    [call] = first.calls
    assert call.name == "buy" and call.arguments == {"item": "an  apple", "count": 2, "price": 1.0}
    back = {
        "role": "assistant",
        "content": "I buy.\n",
        "tool_calls": [{"id": "mine", "function": {"name": "buy", "arguments": json.loads(arguments)}}],
    }
    result = {"role": "tool", "tool_call_id": "mine", "content": "bought"}
    await ask(handler, user("go"), back, result, tools=(json.loads(json.dumps(TOOL)),))
    first_turn, second_turn = handler.episode.turns
    known = (*first_turn.prompt_ids, *first_turn.completion_ids)
    assert second_turn.prompt_ids[: len(known)] == known, "the thought and the JSON as they were sampled"
    assert tokenizer.decode(second_turn.prompt_ids[len(known) :]) == (
        "\n<|im_start|>tool\nbought<|im_end|>\n<|im_start|>assistant\n"
    )
    assert handler.episode.branches == []


async def test_an_assistant_message_in_parts_is_one_turn(tokenizer, speaking):
    """Responses has the text and each call as items of their own."""
    handler = handler_of(speaking(f"I buy.{CALL}{CALL}", "done"), tokenizer)
    first = await ask(handler, user("go"), tools=(TOOL,))
    calls = said(first)["tool_calls"]
    parts = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": call["id"]} for call in calls]
    await ask(handler, user("go"), {"role": "assistant", "content": "I buy."}, *parts, *results, tools=(TOOL,))
    assert handler.episode.branches == [] and len({c.call_id for c in first.calls}) == 2


REWRITTEN = {
    "system changed": lambda a: ({**SYSTEM, "content": "Be terse."}, user("a"), said(a[0]), user("b")),
    "message removed": lambda a: (SYSTEM, user("b"), said(a[1]), user("c")),
    "message altered": lambda a: (SYSTEM, user("a"), said(a[0], content="One."), user("b")),
    "sibling": lambda a: (SYSTEM, user("a"), said(a[0]), user("b")),
}


@pytest.mark.parametrize("reason", REWRITTEN)
async def test_rewritten_history_is_a_branch_with_its_reason(reason, tokenizer, speaking):
    handler = handler_of(speaking("one", "two", "three", "four"), tokenizer)
    first = await ask(handler, SYSTEM, user("a"))
    second = await ask(handler, SYSTEM, user("a"), said(first), user("b"))
    await ask(handler, *REWRITTEN[reason]((first, second)))
    shared = (0,) if reason == "sibling" else ()
    assert handler.episode.branches == [(0, 1), (*shared, 2)]
    assert handler.episode.branch_reasons == [reason]
    assert len(check(handler)) == 2


async def test_other_tools_are_another_root(tokenizer, speaking):
    handler = handler_of(speaking("one", "two"), tokenizer)
    await ask(handler, user("a"))
    await ask(handler, user("a"), tools=(TOOL,))
    assert handler.episode.branches == [(0,), (1,)] and handler.episode.branch_reasons == ["tools changed"]


async def test_calls_of_tools_that_were_taken_away_stay_in_the_history(tokenizer, speaking):
    handler = handler_of(speaking(CALL, "done"), tokenizer)
    first = await ask(handler, user("go"), tools=(TOOL,))
    result = {"role": "tool", "tool_call_id": first.calls[0].call_id, "content": "bought"}
    await ask(handler, user("go"), said(first), result)
    prompt = tokenizer.decode(handler.episode.turns[1].prompt_ids)
    assert '"an  apple"' in prompt and "bought" in prompt and "Tools:" not in prompt
    assert handler.episode.branch_reasons == ["tools changed"]


async def test_a_branch_goes_on_from_the_last_turn_that_is_still_as_it_was(tokenizer, speaking):
    """Whole turns before the change keep the ids that were sampled, thoughts included."""
    handler = handler_of(speaking("<think>1</think>one", "two", "three"), tokenizer)
    first = await ask(handler, user("a"))
    await ask(handler, user("a"), said(first), user("b"))
    third = await ask(handler, user("a"), said(first), user("b"), {"role": "assistant", "content": "zwei"}, user("c"))
    turns = handler.episode.turns
    known = (*turns[0].prompt_ids, *turns[0].completion_ids)
    assert turns[2].prompt_ids[: len(known)] == known and third.cached_tokens == len(known)
    assert tokenizer.decode(turns[2].prompt_ids).endswith(
        "one<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nzwei<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    assert handler.episode.branches == [(0, 1), (0, 2)] and handler.episode.branch_reasons == ["message altered"]
    context, trained = check(handler)
    assert sum(context.loss_mask) == len(turns[0].completion_ids) + len(turns[1].completion_ids)
    assert sum(trained.loss_mask) == len(turns[2].completion_ids), "the shared turn is trained in the first branch"


async def test_two_calls_at_once_are_siblings_and_each_goes_on_from_its_own(tokenizer):
    generator = Held(tokenizer)
    handler = handler_of(generator, tokenizer)
    calls = [asyncio.create_task(ask(handler, user("a"))) for _ in range(2)]
    await until_asked(generator, 2)
    generator.gates[1].set()
    second = await calls[1]
    generator.gates[0].set()
    first = await calls[0]
    seeds = [request.sampling.seed for request in generator.requests]
    assert len(set(seeds)) == 2, "or both would say the same"
    for answer in (first, second):
        more = asyncio.create_task(ask(handler, user("a"), said(answer), user("b")))
        await until_asked(generator, len(generator.gates) + (not more.done()))
        generator.gates[-1].set()
        await more
    assert handler.episode.branches == [(0, 3), (1, 2)] and handler.episode.branch_reasons == ["sibling"]
    check(handler)


async def test_equal_answers_that_both_go_on_each_keep_their_own_path(tokenizer, speaking):
    """Two samples of one prompt that say the same: the ids cannot tell them apart, and no token may be lost."""
    handler = handler_of(speaking("same", "same", "b1", "b2", "c1"), tokenizer)
    first, _ = await ask(handler, user("a")), await ask(handler, user("a"))
    third = await ask(handler, user("a"), said(first), user("b"))
    fourth = await ask(handler, user("a"), said(first), user("c"))
    assert (third.content, fourth.content) == ("b1", "b2")
    await ask(handler, user("a"), said(first), user("b"), said(third), user("d"))
    assert sorted(map(len, handler.episode.branches)) == [2, 3] and len(handler.episode.branches) == 2
    check(handler)


async def test_of_equal_answers_the_one_whose_calls_are_named_goes_on(tokenizer, speaking):
    handler = handler_of(speaking(CALL, CALL, "done"), tokenizer)
    first = await ask(handler, user("go"), tools=(TOOL,))
    second = await ask(handler, user("go"), tools=(TOOL,))
    assert first.calls[0].call_id != second.calls[0].call_id
    result = {"role": "tool", "tool_call_id": first.calls[0].call_id, "content": "bought"}
    await ask(handler, user("go"), said(first), result, tools=(TOOL,))
    assert handler.episode.branches == [(0, 2), (1,)]


def test_a_result_is_known_by_the_call_that_it_answers():
    """Names and ids of a result are its call's; which call it answers is part of what is compared."""

    def calls(*ids):
        made = [{"id": one, "function": {"name": f"tool_{n}", "arguments": "{}"}} for n, one in enumerate(ids)]
        return {"role": "assistant", "content": "", "tool_calls": made}

    def results(*ids):
        return [{"role": "tool", "tool_call_id": one, "content": "same"} for one in ids]

    straight = heard([user("a"), calls("x", "y"), *results("x", "y")])
    renamed = heard([user("a"), calls("p", "q"), *results("p", "q")])
    crossed = heard([user("a"), calls("x", "y"), *results("y", "x")])
    assert [one.key for one in straight] == [one.key for one in renamed] != [one.key for one in crossed]
    assert [(m.message["name"], m.message["tool_call_id"]) for m in crossed[2:]] == [
        ("tool_1", "call00001"),
        ("tool_0", "call00000"),
    ]


async def test_a_call_that_goes_away_records_nothing(tokenizer):
    generator = Held(tokenizer)
    handler = handler_of(generator, tokenizer)
    gone = asyncio.create_task(ask(handler, user("a")))
    await until_asked(generator, 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    again = asyncio.create_task(ask(handler, user("a")))
    await until_asked(generator, 2)
    generator.gates[1].set()
    await again
    first, second = (request.sampling.seed for request in generator.requests)
    assert len(handler.episode.turns) == 1 and handler.episode.branches == [] and handler.counts["cancelled"] == 1
    assert first == second, "the turn's seed is that of its number"


async def test_new_weights_between_two_calls_are_on_their_turns(tokenizer, speaking):
    generator = speaking("one", "two")
    handler = handler_of(generator, tokenizer)
    first = await ask(handler, user("a"))
    await generator.update_weights(3)
    await ask(handler, user("a"), said(first), user("b"))
    [sample] = check(handler)
    assert [v for v in sample.versions if v >= 0] == [0] * 4 + [3] * 4


async def test_the_same_call_again_after_its_answer_is_sampled_again(tokenizer, speaking):
    handler = handler_of(speaking("one", "uno", "two"), tokenizer)
    await ask(handler, user("a"))
    again = await ask(handler, user("a"))
    await ask(handler, user("a"), said(again), user("b"))
    assert handler.episode.branches == [(0,), (1, 2)] and handler.episode.branch_reasons == ["sibling"]
    check(handler)
