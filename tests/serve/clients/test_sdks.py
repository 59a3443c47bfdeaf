"""The own clients of OpenAI, Anthropic and Google: with tools, streamed and not, and when history changes."""

from __future__ import annotations

import asyncio
import json

import anthropic
import openai
import pytest
from cutting_proxy import CuttingProxy
from google import genai
from google.genai import errors, types
from odd_tokens import calling

from agentgym.serve.endpoint import Endpoint

pytestmark = [
    pytest.mark.agents,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),  # Google's client
]

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}]
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2, and 3 + 4?"}]
CALLS = calling("add", '{"b":2 , "a":1}', "I add.\n") + "\n" + calling("add", '{"a":3,"b" :4}')
SAID = (CALLS, "3 and 7.")


def add(arguments: str | dict) -> str:
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return str(given["a"] + given["b"])


def openai_client(played, **options) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{played.url}/v1", api_key=played.key, **options)


def anthropic_client(played) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=played.url, api_key=played.key)


def google_client(url: str, key: str) -> genai.client.AsyncClient:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=url)).aio


async def chat_turn(client, messages, *, stream: bool, **options):
    if not stream:
        whole = await client.chat.completions.create(model="policy", messages=messages, **options)
        return whole.choices[0].message, whole.usage
    async with client.chat.completions.stream(
        model="policy", messages=messages, stream_options={"include_usage": True}, **options
    ) as events:
        whole = await events.get_final_completion()
    return whole.choices[0].message, whole.usage


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions(stream, play) -> None:
    played = play(*SAID)
    async with openai_client(played) as client:
        message, usage = await chat_turn(client, TALK, stream=stream, tools=CHAT_TOOLS)
        assert message.content == "I add." and len(message.tool_calls) == 2
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": add(call.function.arguments)}
            for call in message.tool_calls
        ]
        resent = message.model_dump(exclude_none=True, exclude={"parsed"})
        last, last_usage = await chat_turn(client, [*TALK, resent, *results], stream=stream, tools=CHAT_TOOLS)
    assert last.content == "3 and 7." and [r["content"] for r in results] == ["3", "7"]
    played.prove()
    assert played.num_branches == 1
    for request, turn, used in zip(played.engine.requests, played.episode.turns, (usage, last_usage), strict=True):
        assert (used.prompt_tokens, used.completion_tokens) == (len(request.prompt_ids), len(turn.completion_ids))
    assert last_usage.prompt_tokens_details.cached_tokens == usage.total_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_responses(stream, play) -> None:
    played = play(*SAID)
    tools = [{"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS, "strict": None}]

    async def turn(client, items):
        options = {"model": "policy", "instructions": "Be brief.", "input": items, "tools": tools}
        if not stream:
            return await client.responses.create(**options)
        async with client.responses.stream(**options) as events:
            return await events.get_final_response()

    async with openai_client(played) as client:
        items = [{"role": "user", "content": "1 + 2, and 3 + 4?"}]
        response = await turn(client, items)
        calls = [item for item in response.output if item.type == "function_call"]
        items += [item.model_dump(exclude={"parsed_arguments"}) for item in response.output]
        items += [{"type": "function_call_output", "call_id": c.call_id, "output": add(c.arguments)} for c in calls]
        last = await turn(client, items)
    assert (len(calls), last.output_text) == (2, "3 and 7.")
    played.prove()
    assert played.num_branches == 1
    assert last.usage.input_tokens_details.cached_tokens == response.usage.total_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_messages(stream, play) -> None:
    played = play(*SAID)
    tools = [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}]

    async def turn(client, messages):
        options = {"model": "policy", "system": "Be brief.", "messages": messages, "tools": tools, "max_tokens": 500}
        if not stream:
            return await client.messages.create(**options)
        async with client.messages.stream(**options) as events:
            return await events.get_final_message()

    async with anthropic_client(played) as client:
        messages = [TALK[1]]
        counted = await client.messages.count_tokens(model="policy", system="Be brief.", messages=messages, tools=tools)
        answer = await turn(client, messages)
        uses = [block for block in answer.content if block.type == "tool_use"]
        assert (len(uses), answer.stop_reason) == (2, "tool_use")
        messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": add(use.input)} for use in uses]
        messages.append({"role": "user", "content": results})
        counted_again = await client.messages.count_tokens(
            model="policy", system="Be brief.", messages=messages, tools=tools
        )
        last = await turn(client, messages)
    assert (last.content[0].text, last.stop_reason) == ("3 and 7.", "end_turn")
    played.prove()
    assert played.num_branches == 1
    prompts = [len(request.prompt_ids) for request in played.engine.requests]
    assert [counted.input_tokens, counted_again.input_tokens] == prompts
    used = last.usage
    assert used.input_tokens + used.cache_read_input_tokens == len(played.engine.requests[1].prompt_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_gemini(stream, play) -> None:
    """A call's result is an object of the caller's; a thought is shown, sent back, and not rendered again."""
    thought = "<think>They are two.</think>"
    played = play(f"{thought}{CALLS}", "3 and 7.")
    declared = types.FunctionDeclaration(name="add", description="Adds.", parameters_json_schema=PARAMETERS)
    config = types.GenerateContentConfig(
        system_instruction="Be brief.", tools=[types.Tool(function_declarations=[declared])], top_k=40,
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )  # fmt: skip

    async def turn(client, contents):
        options = {"model": "policy", "contents": contents, "config": config}
        if not stream:
            return await client.models.generate_content(**options)
        [whole] = [chunk async for chunk in await client.models.generate_content_stream(**options)]
        return whole

    async with google_client(played.url, played.key) as client:
        contents = [types.Content(role="user", parts=[types.Part(text=TALK[1]["content"])])]
        counted = await client.models.count_tokens(model="policy", contents=contents)
        answer = await turn(client, contents)
        first, *_ = answer.candidates[0].content.parts
        assert (first.thought, first.text, answer.text) == (True, "They are two.", "I add.")
        results = [
            types.Part.from_function_response(name=call.name, response={"result": add(call.args)})
            for call in answer.function_calls
        ]
        contents += [answer.candidates[0].content, types.Content(role="user", parts=results)]
        last = await turn(client, contents)
    assert (len(results), last.text, last.candidates[0].finish_reason) == (2, "3 and 7.", types.FinishReason.STOP)
    played.prove()
    assert played.num_branches == 1
    assert played.episode.info["agent"]["not_honoured"] == {"overridden_top_k": 2}
    for request, turned, said in zip(played.engine.requests, played.episode.turns, (answer, last), strict=True):
        used = said.usage_metadata
        tokens = len(request.prompt_ids), len(turned.completion_ids)
        assert (used.prompt_token_count, used.candidates_token_count, used.total_token_count) == (*tokens, sum(tokens))
    assert 0 < counted.total_tokens < answer.usage_metadata.prompt_token_count  # without the system text and tools
    assert last.usage_metadata.cached_content_token_count == answer.usage_metadata.total_token_count


async def test_google_sees_a_stream_through_that_waits_and_knows_its_failures(play) -> None:
    played = play("One.", max_tokens=1000)
    played.engine.gate = asyncio.Event()
    async with Endpoint(keep_alive_s=0.01) as endpoint, google_client(endpoint.url, played.key) as client:
        endpoint.admit(played.handler, key=played.key)
        stream = await client.models.generate_content_stream(model="policy", contents="hi")
        waiting = asyncio.create_task(anext(aiter(stream)))
        played.engine.gate.set()
        assert (await waiting).text == "One."
        assert [model.name async for model in await client.models.list()] == ["models/policy"]
        with pytest.raises(errors.ClientError, match="exceeds the maximum number of tokens") as refused:
            await client.models.generate_content(model="policy", contents="long " * 1000)
        assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
        config = types.GenerateContentConfig(candidate_count=2)
        with pytest.raises(errors.ClientError, match="candidateCount"):
            await client.models.generate_content(model="policy", contents="hi", config=config)
        endpoint.conclude(played.key)
        with pytest.raises(errors.ClientError) as refused:
            await client.models.generate_content(model="policy", contents="hi")
        assert refused.value.code == 409


async def test_a_weight_update_between_two_turns_and_within_one(play) -> None:
    played = play("One.", "Two.")
    async with openai_client(played) as client:
        first, _ = await chat_turn(client, TALK, stream=False)
        await played.engine.update_weights(1)
        played.engine.while_sampling = lambda: setattr(played.engine, "version", 2)
        talk = [*TALK, first.model_dump(), {"role": "user", "content": "And?"}]
        await chat_turn(client, talk, stream=False)
    played.prove()
    [sample] = played.samples
    assert sorted(set(sample.versions)) == [-1, 0, 1, 2]


async def test_compaction_begins_a_branch_and_its_summary_is_trained(play) -> None:
    played = play("One.", "The user asked for one.", "Two.")
    async with openai_client(played) as client:
        first, _ = await chat_turn(client, TALK, stream=False)
        talk = [*TALK, first.model_dump(), {"role": "user", "content": "Sum up what was said."}]
        summary, _ = await chat_turn(client, talk, stream=False)
        compacted = [TALK[0], {"role": "user", "content": f"So far: {summary.content}"}]
        await chat_turn(client, compacted, stream=False)
    played.prove()
    assert played.num_branches == 2 and len(played.episode.branch_reasons) == 1


async def test_two_calls_at_once_are_two_siblings(play) -> None:
    played = play("One.", "Two.", "Three.")
    async with openai_client(played) as client:
        said = await asyncio.gather(*(chat_turn(client, TALK, stream=False) for _ in range(3)))
    assert {message.content for message, _ in said} == {"One.", "Two.", "Three."}
    played.prove()
    assert played.num_branches == 3 and played.episode.branch_reasons == ["sibling"] * 2


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
async def test_an_answer_lost_on_its_way_is_sampled_and_trained_once(sdk, play) -> None:
    played = play("One.", "Two.")
    proxy = CuttingProxy(int(played.url.rpartition(":")[2]))
    async with proxy as url:
        if sdk == "openai":
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=played.key) as client:
                message, _ = await chat_turn(client, TALK, stream=False)
            assert message.content == "One."
        else:
            async with anthropic.AsyncAnthropic(base_url=url, api_key=played.key) as client:
                answer = await client.messages.create(model="policy", max_tokens=99, messages=[TALK[1]])
            assert answer.content[0].text == "One."
    assert proxy.num_connections == 2 and played.engine.num_finished == 1
    played.prove()


async def test_a_client_out_of_patience_is_cancelled_and_its_retry_is_trained_once(play) -> None:
    played = play("One.", "Two.")
    played.engine.gate = asyncio.Event()
    async with openai_client(played, timeout=0.3, max_retries=1) as client:
        waiting = asyncio.create_task(chat_turn(client, TALK, stream=False))
        while len(played.engine.requests) < 2:
            await asyncio.sleep(0.01)
        played.engine.gate.set()
        message, _ = await waiting
    assert message.content == "Two." and played.engine.num_finished == 1
    played.prove()


async def test_errors_are_those_that_the_clients_know(play) -> None:
    played = play("One.", max_tokens=1000)
    long = [{"role": "user", "content": "long " * 1000}]
    async with openai_client(played) as client, anthropic_client(played) as other:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="policy", messages=TALK, n=2)
        assert refused.value.param == "n"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="policy", messages=long)
        assert refused.value.code == "context_length_exceeded"
        played.endpoint.conclude(played.key)
        with pytest.raises(openai.ConflictError):
            await client.chat.completions.create(model="policy", messages=TALK)
        with pytest.raises(anthropic.ConflictError):
            await other.messages.create(model="policy", max_tokens=9, messages=[TALK[1]])
    async with openai.AsyncOpenAI(base_url=f"{played.url}/v1", api_key="guessed") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
