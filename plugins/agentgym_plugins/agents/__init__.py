"""Agents: programs that play an episode, and reach the policy through the run's endpoint. Each has its own extra."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import hookimpl


@hookimpl
def agents() -> Mapping[str, str]:
    here = "agentgym_plugins.agents"
    return {
        "aider": f"{here}.aider:Aider",
        "claude_code": f"{here}.cli_agents:ClaudeCode",
        "codex": f"{here}.cli_agents:Codex",
        "command": f"{here}.command:Command",
        "function": f"{here}.function:Function",
        "gemini_cli": f"{here}.cli_agents:GeminiCli",
        "mini_swe": f"{here}.mini_swe:MiniSwe",
        "opencode": f"{here}.cli_agents:OpenCode",
        "openai_agents": f"{here}.openai_agents:OpenaiAgents",
        "openhands": f"{here}.openhands:OpenHands",
        "qwen_code": f"{here}.cli_agents:QwenCode",
        "smolagents": f"{here}.smol:Smolagents",
    }
