"""Agents of ours keep the promises of `agentgym.agents`."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym.agents import Agent
from agentgym.testing import AgentConformance
from agentgym_plugins.agents.command import Command
from agentgym_plugins.agents.function import Function

PROGRAMS = str(Path(__file__).with_name("programs.py"))


class TestCommand(AgentConformance):
    def make(self) -> Agent:
        return Command(argv=(sys.executable, PROGRAMS))


class TestFunction(AgentConformance):
    def make(self) -> Agent:
        return Function(function=f"{PROGRAMS}:repeats", processes=4)
