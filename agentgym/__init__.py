"""agentgym: write an environment, train a language-model agent in it, measure the agent."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from agentgym.stability import VERSION

if TYPE_CHECKING:
    from agentgym.agents import Agent, AgentContext, AgentFailed
    from agentgym.cli.loops import run_loop, services
    from agentgym.cli.script import evaluate, sft, train
    from agentgym.env import Environment, EpisodeContext, Reply
    from agentgym.errors import InfraError, UserError
    from agentgym.hooks import hookimpl
    from agentgym.observed import Reduce, record_metric
    from agentgym.rewards import Reward, metric, reward
    from agentgym.sandbox import (
        AssertCase,
        CallCase,
        FileRefused,
        GradeRequest,
        LimitHit,
        Limits,
        RunResult,
        RunStatus,
        Sandbox,
        Session,
        StdioCase,
        Verdict,
    )
    from agentgym.sinks import MetricSink
    from agentgym.tools import MalformedCall, Toolbox, ToolCall, ToolError, ToolResult, Tools, tool
    from agentgym.types import Episode, Json, Message, Outcome, SandboxSpec, Split, Stop, Task, ToolTrace

__version__ = VERSION

__all__ = [
    "Agent",
    "AgentContext",
    "AgentFailed",
    "AssertCase",
    "CallCase",
    "Environment",
    "Episode",
    "EpisodeContext",
    "FileRefused",
    "GradeRequest",
    "InfraError",
    "Json",
    "LimitHit",
    "Limits",
    "MalformedCall",
    "Message",
    "MetricSink",
    "Outcome",
    "Reduce",
    "Reply",
    "Reward",
    "RunResult",
    "RunStatus",
    "Sandbox",
    "SandboxSpec",
    "Session",
    "Split",
    "StdioCase",
    "Stop",
    "Task",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolTrace",
    "Toolbox",
    "Tools",
    "UserError",
    "Verdict",
    "evaluate",
    "hookimpl",
    "metric",
    "record_metric",
    "reward",
    "run_loop",
    "services",
    "sft",
    "tool",
    "train",
]

_MODULES = (
    "errors",
    "types",
    "tools",
    "rewards",
    "env",
    "sandbox",
    "agents",
    "sinks",
    "hooks",
    "observed",
    "cli.script",
    "cli.loops",
)
"""They define the names above, and can be used as `agentgym.tools`; a later one may import those before it."""


if not TYPE_CHECKING:  # to a type checker, every misspelt name would exist

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: so the program's help, and processes that need little, start sooner."""
        if name in _MODULES:
            return importlib.import_module(f"agentgym.{name}")
        for module in _MODULES if name in __all__ else ():
            found = importlib.import_module(f"agentgym.{module}")
            if hasattr(found, name):
                globals()[name] = value = getattr(found, name)
                return value
        if name == "Desk":
            importlib.import_module("agentgym.stability").renamed("agentgym.Desk", "agentgym.AgentContext", goes="0.1")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
