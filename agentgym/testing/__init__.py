"""For the tests of plugins: fakes, a clock, a scripted policy, a corpus of tool calls, and suites of what each kind of
plugin promises.

Importing it needs no pytest; the suites are classes that pytest collects.
"""

from agentgym.testing import tool_calls
from agentgym.testing.agents import AgentConformance
from agentgym.testing.clock import fast, run_fast, settle
from agentgym.testing.environments import EnvironmentConformance
from agentgym.testing.fakes import FakeAgentContext, FakeSandbox, FakeSession
from agentgym.testing.policy import CharacterTokenizer, ScriptedGenerator, play, play_agent
from agentgym.testing.rewards import RewardConformance
from agentgym.testing.sandboxes import GradingConformance, SandboxConformance
from agentgym.testing.sessions import SessionConformance
from agentgym.testing.sinks import SinkConformance
from agentgym.testing.tool_formats import ToolFormatConformance

__all__ = [
    "AgentConformance",
    "CharacterTokenizer",
    "EnvironmentConformance",
    "FakeAgentContext",
    "FakeSandbox",
    "FakeSession",
    "GradingConformance",
    "RewardConformance",
    "SandboxConformance",
    "ScriptedGenerator",
    "SessionConformance",
    "SinkConformance",
    "ToolFormatConformance",
    "fast",
    "play",
    "play_agent",
    "run_fast",
    "settle",
    "tool_calls",
]
