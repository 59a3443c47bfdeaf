"""agentgym: write an environment as a plugin, train a language-model agent in it, measure the agent."""

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.rewards import Reward
from agentgym.sandbox import AssertCase, CallCase, GradeRequest, Sandbox, Verdict
from agentgym.types import (
    Completion,
    Episode,
    GenerateRequest,
    Group,
    Message,
    Outcome,
    Sample,
    SamplingParams,
    SandboxSpec,
    Stop,
    Task,
    Turn,
    VersionSpan,
)

__version__ = "0.1.0"

__all__ = [
    "AssertCase",
    "CallCase",
    "Completion",
    "Environment",
    "Episode",
    "EpisodeContext",
    "GenerateRequest",
    "GradeRequest",
    "Group",
    "InfraError",
    "Message",
    "Outcome",
    "PluginRegistry",
    "Reply",
    "Reward",
    "Sample",
    "SamplingParams",
    "Sandbox",
    "SandboxSpec",
    "Stop",
    "Task",
    "Turn",
    "UserError",
    "Verdict",
    "VersionSpan",
    "hookimpl",
]
