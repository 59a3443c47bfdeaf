"""Adventures of TextWorld: the walkthrough wins, silence does not, and a game is the same each time."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.testing import play
from agentgym.types import Json
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


class OneGame:
    """Stands for the processes: whatever the seed, the same game, which is of the test split."""

    def __init__(self) -> None:
        self.commands: Json = []

    def wait(self, argument: Json) -> Json:
        return {"walkthrough": ["look"], "feedback": "You are here."}

    async def __call__(self, argument: Any) -> Json:
        self.commands = list(argument["commands"])
        return {"won": False, "lost": False, "score": 0, "max_score": 1, "feedback": "Ok."}


async def test_what_is_for_the_interpreter_does_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "textworld").mkdir()  # whether it is installed or not
    monkeypatch.syspath_prepend(tmp_path)
    environment, game = TextWorld(), OneGame()
    environment._calls = game  # type: ignore[assignment]
    refused = ["save", "look. SAVE", "restore", "transcript on", "transcripts", "script", "tw-trace-actions", "Quit!"]
    said = ["\x00look", "\U0001f600" * 60, *refused, "> open the chest-lid, then\nlook", "unlock it with Bob's key"]
    script: list[Any] = [{"role": "assistant", "content": text} for text in said]
    episode = await play(environment, next(environment.tasks("test")), script)
    assert game.commands == ["look", "open the chest-lid, then look", "unlock it with Bob's key"]
    told = [message["content"] for message in episode.messages if message["role"] == "user"]
    assert told.count("That is not a command of the game.") == len(refused) and told[2].startswith("Say what you do")


def test_a_split_without_a_game_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "textworld").mkdir()  # whether it is installed or not
    monkeypatch.syspath_prepend(tmp_path)
    environment = TextWorld()
    environment._calls = OneGame()  # type: ignore[assignment]
    with pytest.raises(UserError, match="train has no task"):
        next(environment.tasks("train"))


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
