"""Runs in the process of an agent: the tool-calling agent of smolagents between a context and the policy's endpoint."""

from __future__ import annotations

from typing import Any

from smolagents import LogLevel, OpenAIServerModel, Tool, ToolCallingAgent

from agentgym.tools import Schema
from agentgym_plugins.agents.child import WorkerContext


def play(context: WorkerContext, *, max_steps: int, instructions: str, system_prompt: str) -> None:
    """One episode: the agent is run until it has an answer, and goes on when the environment answers back."""
    system = "\n\n".join(message["content"] for message in context.messages if message["role"] == "system")
    model = OpenAIServerModel(model_id=context.model, api_base=f"{context.url}/v1", api_key=context.key)
    agent = ToolCallingAgent(
        tools=[_EnvironmentTool(context, schema) for schema in context.tools],
        model=model,
        max_steps=max_steps,
        max_tool_threads=1,
        instructions=instructions or system or None,
        verbosity_level=LogLevel.ERROR,
    )
    if system_prompt:
        agent.prompt_templates["system_prompt"] = system_prompt
    said = "\n\n".join(message["content"] for message in context.messages if message["role"] == "user")
    first = True
    while True:
        answer = agent.run(said, reset=first)
        reply = context.answer(str(answer))
        if reply.done:
            return
        said, first = "\n\n".join(message["content"] for message in reply.messages), False


class _EnvironmentTool(Tool):  # type: ignore[misc]
    """One of the environment's tools; what it is given is checked by the environment, which says what is wrong."""

    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(self, context: WorkerContext, schema: Schema) -> None:
        function: Any = schema["function"]
        self.name = function["name"]
        self.description = function.get("description") or function["name"]
        required = function["parameters"].get("required", [])
        self.inputs = {
            name: _input(name, given, name in required)
            for name, given in function["parameters"].get("properties", {}).items()
        }
        self._context = context
        super().__init__()
        self.is_initialized = True

    def forward(self, **arguments: Any) -> str:
        return self._context.call_tool(self.name, arguments)


_TYPES = ("string", "boolean", "integer", "number", "array", "object", "null")


def _input(name: str, given: Any, required: bool) -> dict[str, Any]:
    kind = given.get("type")
    found = {"type": kind if kind in _TYPES else "any", "description": given.get("description") or name}
    return found if required else {**found, "nullable": True}
