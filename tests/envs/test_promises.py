"""Environments that ship, and those of the pages, keep the promises of `agentgym.env`."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.testing import EnvironmentConformance

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.hostile
class TestMath(EnvironmentConformance):
    environment = "math"


@pytest.mark.hostile
class TestToolUse(EnvironmentConformance):
    environment, num_tasks = "tool_use", 4


@pytest.mark.hostile
class TestCodeExec(EnvironmentConformance):
    environment, sandbox = "code_exec", "monty"


class TestGuessNumber(EnvironmentConformance):
    environment = f"{DATA}/example_plugin/guess_number.py:GuessNumber"


class TestRepeatNumber(EnvironmentConformance):
    environment = f"{DATA}/repeat_number.py:RepeatNumber"
