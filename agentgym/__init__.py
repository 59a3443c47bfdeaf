"""agentgym: write an environment, train a language-model agent in it, measure the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgym.agents import Agent, AgentFailed, Desk
from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, UserError
from agentgym.hooks import hookimpl
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

if TYPE_CHECKING:
    from agentgym.cli.loops import run_loop, services
    from agentgym.cli.script import evaluate, sft, train

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentFailed",
    "AssertCase",
    "CallCase",
    "Desk",
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
    "reward",
    "run_loop",
    "services",
    "sft",
    "tool",
    "train",
]


def __getattr__(name: str) -> object:
    """Training and evaluation are imported when they are first used."""
    if name in ("train", "sft", "evaluate"):
        from agentgym.cli import script

        return getattr(script, name)
    if name in ("run_loop", "services"):
        from agentgym.cli import loops

        return getattr(loops, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
