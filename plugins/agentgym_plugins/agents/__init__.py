"""Agents: programs that play an episode, and reach the policy through the run's endpoint. Each has its own extra."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import hookimpl


@hookimpl
def agents() -> Mapping[str, str]:
    here = "agentgym_plugins.agents"
    return {
        "command": f"{here}.command:Command",
        "function": f"{here}.function:Function",
        "mini_swe": f"{here}.mini_swe:MiniSwe",
        "openai_agents": f"{here}.openai_agents:OpenaiAgents",
        "smolagents": f"{here}.smol:Smolagents",
    }
