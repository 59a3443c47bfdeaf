"""An agent of the OpenAI Agents SDK, unchanged: the environment's tools are its function tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from agentgym.types import Json
from agentgym_plugins.agents.function import InProcess


@dataclass(frozen=True, kw_only=True)
class OpenaiAgents(InProcess):
    """An agent of the OpenAI Agents SDK; the environment's tools are its function tools."""

    extra: ClassVar[str] = "openai_agents"

    api: Literal["chat", "responses"] = "chat"
    """In which of OpenAI's dialects it asks the policy."""
    instructions: str = ""
    """The instructions of the agent; empty takes the system message of the task."""
    max_turns: int = 16
    """Turns of the policy for one answer to the environment."""

    def variables(self) -> Mapping[str, str]:
        return {"OPENAI_AGENTS_DISABLE_TRACING": "1"}  # it would send what it does to the vendor

    def called(self) -> tuple[str, Mapping[str, Json]]:
        settings: dict[str, Json] = {"api": self.api, "instructions": self.instructions, "max_turns": self.max_turns}
        return "agentgym_plugins.agents.openai_agents_program:play", settings
