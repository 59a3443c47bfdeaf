"""Runs in the process of an agent: the OpenAI Agents SDK between a context and the policy's endpoint."""

from __future__ import annotations

import json
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from agentgym.tools import Schema
from agentgym_plugins.agents.child import AsyncContext

set_tracing_disabled(True)


async def play(context: AsyncContext, *, api: str, instructions: str, max_turns: int) -> None:
    """One episode: the agent is run until it has an answer, and again when the environment answers back."""
    system = "\n\n".join(message["content"] for message in context.messages if message["role"] == "system")
    talk: list[Any] = [
        {"role": message["role"], "content": message["content"]}
        for message in context.messages
        if message["role"] in ("user", "assistant")
    ]
    async with AsyncOpenAI(base_url=f"{context.url}/v1", api_key=context.key) as client:
        kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
        model = kind(model=context.model, openai_client=client)
        tools = [_tool(context, schema) for schema in context.tools]
        agent = Agent(name="agent", instructions=instructions or system or None, model=model, tools=tools)
        while True:
            result = await Runner.run(agent, talk, max_turns=max_turns, run_config=RunConfig(tracing_disabled=True))
            reply = await context.answer(str(result.final_output))
            if reply.done:
                return
            talk = [*result.to_input_list(), *({"role": "user", "content": one["content"]} for one in reply.messages)]


def _tool(context: AsyncContext, schema: Schema) -> FunctionTool:
    function: Any = schema["function"]

    async def call(_: Any, arguments: str) -> str:
        try:
            given = json.loads(arguments or "{}")
        except json.JSONDecodeError as error:
            return f"Error: {function['name']}: the arguments are not JSON: {error}"
        if not isinstance(given, dict):
            return f"Error: {function['name']}: the arguments are not an object"
        return await context.call_tool(function["name"], given)

    return FunctionTool(
        name=function["name"],
        description=function.get("description", ""),
        params_json_schema=dict(function["parameters"]),
        on_invoke_tool=call,
        strict_json_schema=False,
    )
