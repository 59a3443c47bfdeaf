"""aider, unchanged: it edits files by the text that the policy writes, without calling tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgym.agents import AgentContext, AgentFailed
from agentgym.tools import Schema
from agentgym.types import Json, Message
from agentgym_plugins.agents.cli_agents import CliAgent

ANSWERS = re.compile(r"LLM RESPONSE \S+\n((?:ASSISTANT.*\n)+)")
"""The policy's messages in its log of them, which it writes to standard output, each line behind a word."""


@dataclass(frozen=True, kw_only=True)
class Aider(CliAgent):
    """aider, which edits the files that the policy writes out as text, and runs no commands."""

    installs = "python3.12 -m venv .venv-aider && .venv-aider/bin/pip install"
    package = "aider-chat==0.86.2"
    continues = ("--restore-chat-history",)

    program: str = "aider"

    def options(self) -> Sequence[str]:
        offs = (
            "git", "analytics", "check-update", "show-release-notes", "show-model-warnings", "detect-urls", "pretty",
            "fancy-input", "suggest-shell-commands", "gitignore",
        )  # fmt: skip
        asks = "--yes-always", "--message-file=/dev/stdin", "--llm-history-file=/dev/stdout", "--map-tokens=0"
        remembers = f"--max-chat-history-tokens={self.context_tokens // 2}"
        return "--model=openai/{model}", *(f"--no-{name}" for name in offs), *asks, remembers

    def is_side_call(self, messages: Sequence[Message], tools: Sequence[Schema]) -> bool:
        """It never has tools; a summary of the conversation is known by its first words."""
        return self.side_calls == "mask" and messages[0]["content"].startswith("*Briefly* summarize")

    def variables(self, context: AgentContext, home: Path) -> Mapping[str, str]:
        """A file of prices, or it downloads one; it says how long a conversation may be."""
        prices = home / ".aider" / "caches" / "model_prices_and_context_window.json"
        prices.parent.mkdir(parents=True, exist_ok=True)
        limits: dict[str, Json] = {
            "max_input_tokens": self.context_tokens, "max_output_tokens": self.context_tokens // 4,
            "litellm_provider": "openai", "mode": "chat",
        }  # fmt: skip
        prices.write_text(json.dumps({f"openai/{context.model}": limits}), encoding="utf-8")
        return {
            "OPENAI_API_BASE": f"{context.url}/v1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "AIDER_INPUT_HISTORY_FILE": str(home / "input"),
            "AIDER_CHAT_HISTORY_FILE": str(home / "chat"),
        }

    def stdin(self, context: AgentContext, *, again: bool) -> str:
        """With a line before it: a prompt that begins as a command does would be run without the policy."""
        return "\n" + super().stdin(context, again=again)

    def said(self, output: str) -> str:
        """The last message of the policy, without what the program writes itself."""
        answers = ANSWERS.findall(output)
        if not answers:
            raise AgentFailed("no_answer", f"it ended without a message of the policy; it wrote: {output[-1000:]}")
        return re.sub("^ASSISTANT ?", "", answers[-1], flags=re.MULTILINE).strip()
