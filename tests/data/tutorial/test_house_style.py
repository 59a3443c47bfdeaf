"""The environment pays for the right word, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest
from house_style.environment import HouseStyle

from agentgym import EpisodeContext


@pytest.mark.parametrize(("said", "expected"), [("boat", True), ("", False), ("Boat.", False), ("cake boat", False)])
def test_only_the_right_word_succeeds(said: str, expected: bool) -> None:
    environment = HouseStyle()
    tasks = [*environment.tasks("train"), *environment.tasks("test")]
    task = next(task for task in tasks if task.task_id == "house_style/last/cake-bird-boat")
    context = EpisodeContext(task=task, messages=[*task.prompt, {"role": "assistant", "content": said}])
    asyncio.run(environment.start(context))
    asyncio.run(environment.reply(context))
    assert context.info["success"] is expected
