"""Adventures of TextWorld: the walkthrough wins, silence does not, and a game is the same each time."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from playing import play

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym_envs.textworld.environment import TextWorld
from agentgym_envs.textworld.games import _plain

needs_textworld = pytest.mark.skipif(
    importlib.util.find_spec("textworld") is None, reason="TextWorld is not installed: pip install textworld"
)


@pytest.fixture(scope="module")
def environment() -> Iterator[TextWorld]:
    made = TextWorld(test_tasks=2, games=2)
    yield made
    made.close()


def test_the_plugin_gives_the_environment_and_says_what_it_needs() -> None:
    assert PluginRegistry.discover().environment("textworld") is TextWorld
    assert "pip install textworld" in TextWorld.requirements


@needs_textworld
async def test_the_walkthrough_wins_and_silence_never(environment: TextWorld) -> None:
    for task in environment.tasks("test"):
        assert "text adventure" in task.prompt[0]["content"] and "$$" not in task.prompt[0]["content"]
        won = await play(environment, task, environment.solve(task))
        assert won.success and won.info["score"] == won.info["max_score"]
        silent: list[Any] = [{"role": "assistant", "content": said} for said in ("", "xyzzy", "look", "> inventory")]
        lost = await play(environment, task, silent)
        assert not lost.success and lost.info["steps"] == 3
        assert "verb I recognise" in lost.messages[4]["content"] and "carrying" in lost.messages[8]["content"]


@needs_textworld
def test_splits_are_apart_and_training_goes_on(environment: TextWorld) -> None:
    test = [task.task_id for task in environment.tasks("test")]
    train = environment.tasks("train")
    ids = [next(train).task_id for _ in range(6)]
    assert len({*ids}) == 2 and not {*ids} & {*test}
    again = TextWorld(test_tasks=2)
    assert [(task.task_id, task.prompt) for task in again.tasks("test")] == [
        (task.task_id, task.prompt) for task in environment.tasks("test")
    ]
    again.close()


@needs_textworld
def test_settings_that_make_no_game_are_the_users_mistake() -> None:
    with pytest.raises(UserError, match="max_steps 2"):
        TextWorld(max_steps=2)


def test_without_textworld_it_says_how_to_get_it() -> None:
    if importlib.util.find_spec("textworld") is None:
        with pytest.raises(UserError, match="textworld is not installed: pip install textworld"):
            TextWorld()


def test_a_text_is_shown_without_picture_and_prompt() -> None:
    raw = "\n\n   ____  ____\n   \\$$ |$$|\n\n\n\nYou are here.   \n\n\n\nA key.\n\n>    status 0/1"
    assert _plain(raw) == "You are here.\n\nA key."
