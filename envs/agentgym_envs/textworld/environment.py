"""The environment: a text adventure, one command in each of the agent's turns."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, UserError
from agentgym.killable import CallFailed, KillableCalls
from agentgym.types import Json, Message, Split, Task

INTRODUCTION: Final = (
    "You play a text adventure. Each of your replies is one command, such as: look, inventory, examine key, take key, "
    "open chest, insert key into chest, put key on table, go east.\n\n"
)
TEST_ONE_IN: Final = 5  # games that belong to the test split
MAX_FRUITLESS: Final = 100
MAX_COMMAND_CHARS: Final = 200
_UNKNOWN: Final = re.compile(r"[^a-zA-Z0-9 ',.-]")  # the interpreter hangs at some, and fails at others
_NOT_OF_THE_GAME: Final = re.compile(
    r"\b(?:save|restore|restart|quit|q|(?:no|un)?script|transcrip\w*|recording\w*|tw-\w+)\b", re.IGNORECASE
)
"""Commands to the interpreter: they write files, which other episodes could read back, or trace the game."""


@dataclass(slots=True)
class Adventure:
    """One episode. commands: all that were given, in order."""

    commands: list[str] = field(default_factory=list)


class TextWorld(Environment[Adventure]):
    """Text adventures of TextWorld, made from a seed: find the way, take, open, unlock, put, as the text asks.

    Recorded in `info`: success (the quest is done), score and max_score (the game's own), steps.
    """

    name: ClassVar[str] = "textworld"
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = 20
    requirements: ClassVar[str] = "pip install textworld (Linux and macOS; it brings its own compiler of games)"

    def __init__(
        self,
        *,
        nb_rooms: Annotated[int, "rooms of a game; more make it harder"] = 2,
        nb_objects: Annotated[int, "objects of a game; more make it harder"] = 4,
        quest_length: Annotated[int, "actions that a quest takes; more make it harder"] = 3,
        games: Annotated[
            int, "different games of training, played again and again in other orders; each takes a second to compile"
        ] = 200,
        test_tasks: Annotated[int, "games of the test split"] = 40,
        max_steps: Annotated[int, "turns of the agent at most"] = 20,
    ) -> None:
        """Raises UserError for a value that is not allowed, and where TextWorld is missing."""
        numbers = (nb_rooms, nb_objects, quest_length, games, test_tasks)
        if min(numbers) < 1 or max_steps < quest_length:
            raise UserError(
                f"textworld: nb_rooms {nb_rooms}, nb_objects {nb_objects}, quest_length {quest_length}, games {games}, "
                f"test_tasks {test_tasks}, max_steps {max_steps}: all are at least 1, max_steps at least quest_length"
            )
        if importlib.util.find_spec("textworld") is None:
            raise UserError(f"textworld is not installed: {self.requirements}")
        self._game: dict[str, Json] = {"nb_rooms": nb_rooms, "nb_objects": nb_objects, "quest_length": quest_length}
        self._games, self._test_tasks = games, test_tasks
        self._calls = KillableCalls("agentgym_envs.textworld.games:serve", cpu_s=60, environ={"PYTHONHASHSEED": "0"})
        self.max_turns = max_steps  # type: ignore[misc]

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """The same games for every seed; training repeats them in orders that the seed fixes."""
        made: list[Task] = []
        for task in self._new_games(split, self._test_tasks if split == "test" else self._games):
            made.append(task)
            yield task
        if not made:
            raise UserError(
                f"textworld: {split} has no task: {MAX_FRUITLESS} games with {self._game} belong to the other split. "
                "Give settings with which games differ more"
            )
        while split == "train":
            seed += 1
            yield from sorted(made, key=lambda task: _number(f"{seed}/{task.task_id}"))

    async def start(self, context: EpisodeContext[Adventure]) -> Adventure:
        context.info.update(success=False, score=0, max_score=1, steps=0)
        return Adventure()

    async def reply(self, context: EpisodeContext[Adventure]) -> Reply:
        said = " ".join(context.messages[-1]["content"].split())
        command = " ".join(_UNKNOWN.sub(" ", said.removeprefix(">")).split())[:MAX_COMMAND_CHARS].strip()
        if not command:
            return Reply(messages=({"role": "user", "content": "Say what you do, in one command."},))
        if _NOT_OF_THE_GAME.search(command):
            return Reply(messages=({"role": "user", "content": "That is not a command of the game."},))
        context.state.commands.append(command)
        game, _ = _game_of(context.task)
        try:
            state = await self._calls({"game": game, "commands": context.state.commands})
        except CallFailed as failed:
            raise InfraError(f"textworld: {context.task.task_id} after {context.state.commands}: {failed}") from failed
        assert isinstance(state, Mapping)
        steps = len(context.state.commands)
        won = state["won"] is True
        context.info.update(success=won, score=state["score"], max_score=state["max_score"], steps=steps)
        if won or state["lost"] is True:
            return Reply(done=True)
        return Reply(messages=({"role": "user", "content": str(state["feedback"])},))

    def solve(self, task: Task) -> Iterator[Message]:
        """The game's own walkthrough."""
        return (Message(role="assistant", content=command) for command in _game_of(task)[1])

    def close(self) -> None:
        """End its processes; it may be used again."""
        self._calls.close()

    def _new_games(self, split: Split, limit: int) -> Iterator[Task]:
        """Each once; which split it is in goes by its walkthrough and what it asks for."""
        seen: set[str] = set()
        number = fruitless = 0
        while len(seen) < limit and fruitless < MAX_FRUITLESS:
            game: dict[str, Json] = {**self._game, "seed": _number(f"textworld/{number}") % 2**31}
            number, fruitless = number + 1, fruitless + 1
            try:
                made = self._calls.wait({"game": game})
                assert isinstance(made, Mapping) and isinstance(made["walkthrough"], list)
                walkthrough = [str(command) for command in made["walkthrough"]]
                key = "\n".join(walkthrough)
                if key in seen or (_number(key) % TEST_ONE_IN == 0) != (split == "test"):
                    continue
                opening = self._calls.wait({"game": game, "commands": []})
            except CallFailed as failed:
                raise UserError(f"textworld: a game with {game} cannot be made: {failed}") from failed
            assert isinstance(opening, Mapping)
            seen.add(key)
            fruitless = 0
            yield Task(
                task_id=f"textworld/{game['nb_rooms']}-{game['nb_objects']}-{game['quest_length']}/{game['seed']}",
                prompt=({"role": "user", "content": INTRODUCTION + str(opening["feedback"])},),
                answer={"game": game, "walkthrough": walkthrough},
                split=split,
            )


def _game_of(task: Task) -> tuple[Mapping[str, Json], list[str]]:
    answer = task.answer
    assert isinstance(answer, Mapping) and isinstance(answer["game"], Mapping)
    walkthrough = answer["walkthrough"]
    assert isinstance(walkthrough, list | tuple)
    return answer["game"], [str(command) for command in walkthrough]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
