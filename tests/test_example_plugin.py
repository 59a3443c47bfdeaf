"""The plugin that the documentation shows keeps the promises of an environment, and its rewards score as it says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentgym.hooks import PluginRegistry
from agentgym.testing import EnvironmentConformance, play

FILE = Path(__file__).parent / "data" / "example_plugin" / "guess_number.py"


class TestGuessNumber(EnvironmentConformance):
    environment, num_tasks = f"{FILE}:GuessNumber", 4


@pytest.mark.parametrize(("word", "polite"), [("Is it", 0.0), ("please", 1.0)])
def test_the_example_is_scored_with_its_own_rewards(word: str, polite: float) -> None:
    environment = PluginRegistry([]).environment(f"{FILE}:GuessNumber")()
    task = next(task for task in environment.tasks("train") if task.answer == 38)
    weights = {"success": 1.0, "few_guesses": 0.1, f"{FILE}:polite": 0.5}
    guesses = [f"{word} {number}" for number in (50, 25, 37, 38)]
    episode = asyncio.run(play(environment, task, guesses, rewards=weights))
    assert environment.rewards == {"success": 1.0, "few_guesses": 0.1}
    assert episode.reward == pytest.approx(1.0 + 0.1 / 4 + 0.5 * polite)
