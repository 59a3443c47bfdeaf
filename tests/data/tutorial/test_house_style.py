"""The environment pays for right programs, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest
from house_style.environment import HouseStyle

from agentgym import EpisodeContext

RIGHT = "def f(xs):\n    xs = xs[:3]\n    return xs"


@pytest.mark.parametrize(("said", "expected"), [(RIGHT, True), ("", False), ("xs[:3]", False), (RIGHT * 2, False)])
def test_only_the_right_program_succeeds(said: str, expected: bool) -> None:
    environment = HouseStyle()
    tasks = [*environment.tasks("train"), *environment.tasks("test")]
    task = next(task for task in tasks if task.task_id == "house_style/take the first 3")
    context = EpisodeContext(task=task, messages=[*task.prompt, {"role": "assistant", "content": said}])
    asyncio.run(environment.start(context))
    asyncio.run(environment.reply(context))
    assert context.info["success"] is expected
