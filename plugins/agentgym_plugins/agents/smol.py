"""The tool-calling agent of smolagents, unchanged: the environment's tools are its tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentgym.types import Json, Message
from agentgym_plugins.agents.function import InProcess


@dataclass(frozen=True, kw_only=True)
class Smolagents(InProcess):
    """The tool-calling agent of smolagents; the environment's tools are its tools."""

    extra: ClassVar[str] = "smolagents"

    max_steps: int = 16
    """Steps of the policy for one answer to the environment."""
    instructions: str = ""
    """Text that is added to the agent's own system prompt; empty takes the system message of the task."""
    system_prompt: str = ""
    """A template of Jinja that replaces the agent's own system prompt; empty keeps that."""

    def turn_saying(self, text: str) -> Message:
        call = {"function": {"name": "final_answer", "arguments": {"answer": text}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    def called(self) -> tuple[str, Mapping[str, Json]]:
        settings: dict[str, Json] = {
            "max_steps": self.max_steps,
            "instructions": self.instructions,
            "system_prompt": self.system_prompt,
        }
        return "agentgym_plugins.agents.smol_program:play", settings
