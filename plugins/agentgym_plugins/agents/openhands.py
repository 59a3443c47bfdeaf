"""The OpenHands command line, unchanged: its last message is read from the events that it writes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.agents import AgentContext, AgentFailed
from agentgym.types import Json
from agentgym_plugins.agents.cli_agents import CliAgent


@dataclass(frozen=True, kw_only=True)
class OpenHands(CliAgent):
    """The OpenHands CLI, with its tools for commands, files, plans and sub-agents: a prompt of 33 KB."""

    installs = "python3.12 -m venv .venv-openhands && .venv-openhands/bin/pip install"
    package = "openhands==1.16.0"
    continues = ("--resume", "--last")

    program: str = "openhands"

    def options(self) -> Sequence[str]:
        return "--headless", "--json"

    def words(self, *, again: bool) -> Sequence[str]:
        """The prompt as an argument: what it reads from a file, it puts into words of its own."""
        return *super().words(again=again), f"--task={'{prompt}' if again else '{instructions}'}"

    def stdin(self, context: AgentContext, *, again: bool) -> str:
        return ""

    def variables(self, context: AgentContext, home: Path) -> Mapping[str, str]:
        llm: dict[str, Json] = {
            "model": f"openai/{context.model}", "base_url": f"{context.url}/v1", "api_key": context.key,
        }  # fmt: skip
        condenser = {
            "kind": "LLMSummarizingCondenser", "llm": llm | {"usage_id": "condenser"},
            "max_tokens": self.context_tokens * 9 // 10,
        }  # fmt: skip
        settings = {
            "kind": "Agent", "llm": llm | {"usage_id": "agent"}, "condenser": condenser,
            "system_prompt_kwargs": {"cli_mode": True},
        }  # fmt: skip
        folder = home / ".openhands"
        (folder / "cache").mkdir(parents=True, exist_ok=True)
        (folder / "agent_settings.json").write_text(json.dumps(settings), encoding="utf-8")
        (folder / "cache" / "skills").touch()  # a file where it would clone a folder of skills from GitHub
        return {"OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def said(self, output: str) -> str:
        """Its last message, or that of its tool `finish`."""
        event = _last_event(output)
        action = event.get("action") or {}
        if event.get("kind") == "ActionEvent" and action.get("kind") == "FinishAction":
            return str(action["message"]).strip()
        if event.get("kind") == "MessageEvent" and event.get("source") == "agent":
            parts = event["llm_message"]["content"]
            return "".join(part["text"] for part in parts if part["type"] == "text").strip()
        raise AgentFailed("no_answer", f"it ended without a message; its last event: {json.dumps(event)[:1000]}")


def _last_event(output: str) -> dict[str, Any]:
    """The last event that ends its work, or tells why it could not; {} where there is none."""
    found: dict[str, Any] = {}
    for line in output.splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("kind") in ("MessageEvent", "ActionEvent", "ConversationErrorEvent"):
                found = event
    return found
