"""Whole agent programs, unchanged: whatever they make of a conversation, it is trained as it was sampled."""

from __future__ import annotations

import asyncio

import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from odd_tokens import calling
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

pytestmark = pytest.mark.agents
CALLS = calling("add", '{"b":2 , "a":1}') + "\n" + calling("add", '{"a":3,"b" :4}')


@function_tool(name_override="add")
def add_tool(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: The one.
        b: The other.
    """
    return a + b


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_openai_agents(model, stream, play) -> None:
    played = play(CALLS, "3 and 7.")
    async with openai.AsyncOpenAI(base_url=f"{played.url}/v1", api_key=played.key) as client:
        agent = Agent(
            name="adder", instructions="Add.", tools=[add_tool], model=model(model="policy", openai_client=client)
        )
        if stream:
            result = Runner.run_streamed(agent, "1 + 2, and 3 + 4?")
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, "1 + 2, and 3 + 4?")
    assert result.final_output == "3 and 7."
    played.prove()
    assert played.num_branches == 1
    prompt = played.engine.tokenizer.decode(played.engine.requests[-1].prompt_ids)
    assert [n for n in "37" if n in prompt.rpartition("</tool_call>")[2]] == ["3", "7"]


async def test_a_sub_agent_is_a_branch_of_its_own(play) -> None:
    played = play(
        calling("adder", '{"input" : "1 + 2"}'), calling("add", '{"b":2 , "a":1}'), "It is 3.", "The adder says 3."
    )
    async with openai.AsyncOpenAI(base_url=f"{played.url}/v1", api_key=played.key) as client:
        model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
        adder = Agent(name="adder", instructions="Add.", tools=[add_tool], model=model)
        chief = Agent(
            name="chief", instructions="Ask the adder.", model=model,
            tools=[adder.as_tool(tool_name="adder", tool_description="Adds.")],
        )  # fmt: skip
        result = await Runner.run(chief, "1 + 2?")
    assert result.final_output == "The adder says 3."
    played.prove()
    assert played.num_branches == 2


async def test_smolagents_that_call_tools(play) -> None:
    played = play(calling("add", '{"b":2 , "a":1}'), calling("final_answer", '{"answer" :"3"}'))

    def run() -> object:
        model = OpenAIServerModel("policy", api_base=f"{played.url}/v1", api_key=played.key)
        return ToolCallingAgent([add], model, max_steps=3, verbosity_level=0).run("1 + 2?")

    assert await asyncio.to_thread(run) == "3"
    played.prove()
    assert len(played.episode.turns) == 2


async def test_smolagents_that_write_code(play) -> None:
    played = play("I add.\n<code>\nx = add(a=1, b=2)\nprint(x)\n</code>", "Now.\n<code>\nfinal_answer(x)\n</code>")

    def run() -> object:
        model = OpenAIServerModel("policy", api_base=f"{played.url}/v1", api_key=played.key)
        return CodeAgent([add], model, max_steps=3, verbosity_level=0).run("1 + 2?")

    assert await asyncio.to_thread(run) == 3
    played.prove()
    assert len(played.episode.turns) == 2


async def test_mini_swe_agent(tmp_path, play) -> None:
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat answer"
    played = play(
        calling("bash", '{"command" : "echo 3 > answer"}', "I write it.\n"),
        "I forgot to call.",
        calling("bash", f'{{"command":"{submit}" }}'),
    )

    def run() -> dict:
        options = {"api_base": f"{played.url}/v1", "api_key": played.key}
        model = LitellmModel(model_name="openai/policy", model_kwargs=options, cost_tracking="ignore_errors")
        agent = DefaultAgent(
            model, LocalEnvironment(cwd=str(tmp_path)), system_template="You work in a shell.",
            instance_template="{{ task }}",
        )  # fmt: skip
        return agent.run("Write the sum of 1 and 2 into the file answer.")

    assert (await asyncio.to_thread(run))["submission"].strip() == "3"
    played.prove()
    assert len(played.episode.turns) == 3
