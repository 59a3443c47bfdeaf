"""Each program, unchanged, under each thing that happens to a conversation: what is trained is what was sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anthropic
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from cutting_proxy import CuttingProxy
from google import genai
from google.genai import types
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from odd_tokens import calling
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

pytestmark = [
    pytest.mark.agents,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),  # Google's client
]

TASK, GOES_ON, RESULT = "Add 1 and 2.", "So far nothing is known. Add 1 and 2.", "result=3"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 3"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = calling("add", '{"b":2 , "a":1}', "I add.\n")


@dataclass(frozen=True)
class Place:
    """Where a program plays. between: is awaited while it runs its tool."""

    url: str
    key: str
    system: str
    between: Callable[[], Awaitable[None]]
    compacts: bool = False

    async def add(self) -> str:
        await self.between()
        return RESULT

    def from_a_thread(self) -> Callable[[], str]:
        loop = asyncio.get_running_loop()
        return lambda: asyncio.run_coroutine_threadsafe(self.add(), loop).result()


async def openai_sdk(place: Place) -> str:
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}]
    said = ""
    async with openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key=place.key) as client:
        for task in (TASK, GOES_ON)[: 1 + place.compacts]:
            messages = [{"role": "system", "content": place.system}, {"role": "user", "content": task}]
            while True:
                whole = await client.chat.completions.create(model="policy", messages=messages, tools=tools)
                message = whole.choices[0].message
                if not message.tool_calls:
                    break
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls:
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": await place.add()})
            said = message.content
    return said


async def responses(place: Place) -> str:
    tools = [{"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": None}]
    said = ""
    async with openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key=place.key) as client:
        for task in (TASK, GOES_ON)[: 1 + place.compacts]:
            items = [{"role": "user", "content": task}]
            while True:
                whole = await client.responses.create(
                    model="policy", instructions=place.system, input=items, tools=tools
                )
                calls = [item for item in whole.output if item.type == "function_call"]
                if not calls:
                    break
                items += [item.model_dump() for item in whole.output]
                items += [
                    {"type": "function_call_output", "call_id": c.call_id, "output": await place.add()} for c in calls
                ]
            said = whole.output_text
    return said


async def anthropic_sdk(place: Place) -> str:
    tools = [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}]
    said = ""
    async with anthropic.AsyncAnthropic(base_url=place.url, api_key=place.key) as client:
        for task in (TASK, GOES_ON)[: 1 + place.compacts]:
            messages = [{"role": "user", "content": task}]
            while True:
                whole = await client.messages.create(
                    model="policy", system=place.system, messages=messages, tools=tools, max_tokens=500
                )
                uses = [block for block in whole.content if block.type == "tool_use"]
                if not uses:
                    break
                messages.append({"role": "assistant", "content": [block.model_dump() for block in whole.content]})
                results = [{"type": "tool_result", "tool_use_id": use.id, "content": await place.add()} for use in uses]
                messages.append({"role": "user", "content": results})
            said = whole.content[0].text
    return said


async def google_sdk(place: Place) -> str:
    """It declares a Python function, calls it and sends what it returned, all by itself."""

    async def add(a: int, b: int) -> str:
        """Adds."""
        return await place.add()

    said = ""
    again = types.HttpRetryOptions(attempts=3)
    options = types.HttpOptions(base_url=place.url, retry_options=again)
    async with genai.Client(api_key=place.key, http_options=options).aio as client:
        for task in (TASK, GOES_ON)[: 1 + place.compacts]:
            config = types.GenerateContentConfig(system_instruction=place.system, tools=[add])
            chat = client.chats.create(model="policy", config=config)
            said = (await chat.send_message(task)).text
    return said


async def openai_agents(place: Place) -> str:
    @function_tool(name_override="add")
    async def add_tool(a: int, b: int) -> str:
        """Adds."""
        return await place.add()

    async with openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key=place.key) as client:
        model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
        agent = Agent(name="adder", instructions=place.system, tools=[add_tool], model=model)
        result = await Runner.run(agent, TASK)
        if place.compacts:
            result = await Runner.run(agent, GOES_ON)
    return result.final_output


async def smolagents(place: Place) -> str:
    wait_for_it = place.from_a_thread()

    @tool
    def add(a: int, b: int) -> str:
        """Adds.

        Args:
            a: The one.
            b: The other.
        """
        return wait_for_it()

    def run() -> object:
        model = OpenAIServerModel("policy", api_base=f"{place.url}/v1", api_key=place.key)
        agent = ToolCallingAgent([add], model, instructions=place.system, max_steps=5, verbosity_level=0)
        said = agent.run(TASK)
        if place.compacts:
            agent.memory.steps = []
            said = agent.run(GOES_ON, reset=False)
        return said

    return str(await asyncio.to_thread(run))


async def mini_swe(place: Place) -> str:
    wait_for_it = place.from_a_thread()
    agents: list[DefaultAgent] = []

    class Shell(LocalEnvironment):
        """Its commands are run as they are; what is asked for between them happens beside."""

        def execute(self, action, *args, **options):
            if "add 1 2" not in json.dumps(action):
                return super().execute(action, *args, **options)
            result = wait_for_it()
            if place.compacts and agents[0].messages[1]["content"] == TASK:
                agents[0].messages[1]["content"] = GOES_ON
                result = "nothing"
            return {"output": result, "returncode": 0, "exception_info": ""}

    def run() -> dict:
        options = {"api_base": f"{place.url}/v1", "api_key": place.key}
        model = LitellmModel(model_name="openai/policy", model_kwargs=options, cost_tracking="ignore_errors")
        agents.append(DefaultAgent(model, Shell(), system_template=place.system, instance_template="{{ task }}"))
        return agents[0].run(TASK)

    return (await asyncio.to_thread(run))["submission"].strip()


REWRITES = {smolagents}  # sends its calls back as text of its own: each of its turns is a branch
PROGRAMS = [openai_sdk, responses, anthropic_sdk, google_sdk, openai_agents, smolagents, mini_swe]
CALLS = {
    smolagents: calling("final_answer", '{"answer" :"3"}'),
    mini_swe: calling("bash", f'{{"command":"{SUBMIT}" }}'),
}


def policy(program: Callable[[Place], Awaitable[str]]) -> Callable[[str], str]:
    """Calls the tool until its result is there, then says so, in the program's own way."""
    last = CALLS.get(program, "3")
    call = calling("bash", '{"command" :"add 1 2"}') if program is mini_swe else ADD
    return lambda prompt: last if RESULT in prompt or "You help." in prompt else call


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.__name__)
def program(request):
    return request.param


@pytest.fixture
def begin(play, program):
    """An episode, and what plays it."""

    def make(**options):
        played = play()
        played.engine.answer = policy(program)
        default = {"url": played.url, "key": played.key, "system": "You add.", "between": nothing}
        return played, lambda **more: program(Place(**{**default, **options, **more}))

    return make


async def nothing() -> None: ...


async def test_weights_that_change_between_two_turns_and_within_one(begin, program) -> None:
    played, run = begin()

    async def update() -> None:
        await played.engine.update_weights(1)
        played.engine.while_sampling = lambda: setattr(played.engine, "version", 2)

    assert await run(between=update) == "3"
    played.prove()
    assert sorted({version for sample in played.samples for version in sample.versions}) == [-1, 0, 1, 2]
    assert played.num_branches == (2 if program in REWRITES else 1)


async def test_a_compacted_history_is_a_branch(begin, program) -> None:
    played, run = begin(compacts=True)
    assert await run() == "3"
    played.prove()
    assert played.num_branches == (len(played.episode.turns) if program in REWRITES else 2)
    assert len(played.episode.branch_reasons) == played.num_branches - 1


async def test_a_sub_agent_within_a_tool_call_is_a_branch_of_its_own(begin, program) -> None:
    played, run = begin()

    async def ask_a_helper() -> None:
        assert await run(system="You help.") == "3"

    assert await run(between=ask_a_helper) == "3"
    played.prove()
    assert played.num_branches == (3 if program in REWRITES else 2) and len(played.episode.turns) == 3


async def test_two_at_once(begin) -> None:
    played, run = begin()
    both = asyncio.Barrier(2)  # both have sampled their first turn before either goes on

    async def meet() -> None:
        await both.wait()

    assert await asyncio.gather(run(between=meet), run(between=meet)) == ["3", "3"]
    played.prove()
    assert len(played.episode.turns) == 4 and played.num_branches >= 2


async def test_an_answer_lost_on_its_way_is_sampled_once(begin, program) -> None:
    played, run = begin()
    proxy = CuttingProxy(int(played.url.rpartition(":")[2]))
    async with proxy as url:
        assert await run(url=url) == "3"
    num_turns = 3 if program is google_sdk else 2  # what it sends again looks like the best of several
    assert proxy.num_connections >= 2 and played.engine.num_finished == len(played.episode.turns) == num_turns
    played.prove()
