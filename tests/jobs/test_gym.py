"""What a job checks and says before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_templates import REAL

from agentgym.hooks import PluginRegistry
from agentgym.jobs.gym import Gym
from agentgym.models.tiny import policy_path

ENVIRONMENT = f"env.name={Path(__file__).parents[1] / 'data' / 'repeat_number.py'}:RepeatNumber"


@pytest.mark.parametrize(("turns", "lines"), [(1, 0), (3, 1)])
async def test_a_template_that_drops_thoughts_is_named_in_one_line_where_there_are_several_turns(
    lab, tmp_path, turns, lines
):
    template = tmp_path / "qwen3.jinja"
    template.write_text(REAL["qwen3"], encoding="utf-8")
    reporter = lab.reporter()
    recipe = lab.recipe(ENVIRONMENT, f"model.chat_template={template}", f"rollout.max_turns={turns}")
    gym = await Gym.open(recipe, policy_path(), PluginRegistry.discover(), reporter)
    await gym.close()
    assert len(reporter.notes) == lines
    assert all("drops the thoughts of earlier turns" in note for note in reporter.notes)
