"""The environment: rows of a SkyRL data set, played by an environment of skyrl-gym in a Python of its own."""

from __future__ import annotations

import functools
import itertools
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from agentgym import data_sets
from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, UserError
from agentgym.rewards import reward
from agentgym.types import Episode, Json, Message, Split, Task
from agentgym_envs.packages.process import PackageProcess
from agentgym_envs.packages.rows import Row, checked_reward, finite_of, messages_of, numbers_of, rows_of_split
from agentgym_envs.packages.serving import digest_of

PROGRAM: Final = Path(__file__).with_name("program.py")
RANGES: Final = {"aime": (-1.0, 1.0), "text2sql": (-1.0, 1.0), "gsm8k_multi_turn": (0.0, 1.2)}  # else 0 to 1
READERS: Final = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}


@dataclass(slots=True)
class Play:
    """key: by which the process knows the episode. total: of the rewards so far."""

    key: str
    total: float = 0.0


class SkyRLGym(Environment[Play]):
    """An environment of skyrl-gym as its author wrote it, in a Python of its own, on rows of SkyRL's shape.

    Recorded in `info`: reward (the sum of its steps' rewards), steps, metrics (its own), package (versions), success
    (only with `success_at`).
    """

    name: ClassVar[str] = "skyrl_gym"
    shorthand: ClassVar[str] = "environment"
    max_turns: ClassVar[int] = 5
    requirements: ClassVar[str] = "pip install skyrl-gym, here or in env.options.python"

    def __init__(
        self,
        *,
        environment: Annotated[
            str, "name in skyrl-gym's registry, or import path of a class; --env skyrl_gym:NAME gives it, too"
        ] = "",
        train: Annotated[str, "rows of training: a .parquet or .jsonl file, or a data set's NAME or NAME:SPLIT"] = "",
        test: Annotated[str, "held-out rows, the same; empty is every fifth row of the others"] = "",
        python: Annotated[str, "the interpreter that has skyrl-gym; empty is this one"] = "",
        config: Annotated[Mapping[str, Json], "its env_config, as SkyRL's environment.skyrl_gym.NAME"] = {},
        max_turns: Annotated[int, "turns of the agent at most, as SkyRL's generator.max_turns"] = 5,
        success_at: Annotated[
            float | None, "reward from which on an episode is a success; none leaves it unknown"
        ] = None,
        low: Annotated[
            float | None, "the least reward of an episode, which an invalid one earns; none is the environment's, or 0"
        ] = None,
        high: Annotated[float | None, "the greatest reward of an episode; none is the environment's, or 1"] = None,
        test_tasks: Annotated[int, "held-out tasks at most"] = 512,
        start_s: Annotated[float, "seconds until the process must be ready"] = 120.0,
        unsafe: Annotated[bool, "allow an environment that runs on this machine what the policy writes"] = False,
        variables: Annotated[Sequence[str], "names of more environment variables that the process gets"] = (),
    ) -> None:
        """Raises UserError for a value that is not allowed; the rest is checked when tasks are asked for."""
        if not environment:
            raise UserError("skyrl_gym: name an environment: --env skyrl_gym:NAME, or env.options.environment")
        if not train and not test:
            raise UserError("skyrl_gym: give rows of SkyRL's shape: env.options.train, env.options.test or both")
        if max_turns < 1 or test_tasks < 1 or start_s <= 0:
            given = f"max_turns {max_turns}, test_tasks {test_tasks}, start_s {start_s:g}"
            raise UserError(f"skyrl_gym: {given}: give at least 1, 1 and a number above 0")
        known = RANGES.get(environment, (0.0, 1.0))
        self._low, self._high = known[0] if low is None else low, known[1] if high is None else high
        if not self._low < self._high:
            raise UserError(f"skyrl_gym: low {self._low:g}, high {self._high:g}: low must be below high")
        self.reward_ranges = {"score": (self._low, self._high)}
        self._environment, self._files = environment, {"train": train, "test": test}
        self._settings: dict[str, Any] = {"name": environment, "config": dict(config), "unsafe": unsafe}
        self.max_turns = max_turns  # type: ignore[misc]
        self._success_at, self._test_tasks, self._start_s = success_at, test_tasks, start_s
        self._process = PackageProcess.shared("skyrl_gym", environment, PROGRAM, python, variables)

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        shared = not self._files["test"]
        rows = self._rows(self._files["train" if shared else split], split)
        checked = {"row": self._given(rows[0]), **self._settings}
        self._process.wait("loading the environment", self._start_s, "check", **checked)
        order = numbers_of(len(rows), seed if split == "train" else None)
        found: Iterator[Row] = (Row(number, rows[number], digest_of(rows[number])) for number in order)
        found = rows_of_split(found, split, len(rows)) if shared else found
        for number, row, _ in itertools.islice(found, self._test_tasks if split == "test" else None):
            yield Task(
                task_id=f"skyrl_gym/{self._environment}/{'row' if shared else split}/{number}",
                prompt=messages_of(row["prompt"]),
                answer=self._given(row),
                split=split,
            )

    async def start(self, context: EpisodeContext[Play]) -> Play:
        context.info.update(reward=0.0, steps=0, metrics={})
        if self._success_at is not None:
            context.info["success"] = False
        play = Play(secrets.token_hex(8))
        begun = await self._process.ask("start", play=play.key, row=context.task.answer, **self._settings)
        context.info["package"] = begun["versions"]
        context.messages[:] = self._messages_from(begun["messages"])
        return play

    async def reply(self, context: EpisodeContext[Play]) -> Reply:
        play = context.state
        answer = await self._process.ask("step", play=play.key, said=context.messages[-1]["content"])
        if not isinstance(answer["done"], bool):
            raise InfraError(f"{self._environment}: the field `done` is {answer['done']!r:.80}, not true or false")
        step = answer["reward"]
        checked_reward(step, self._environment, -float("inf"), float("inf"))
        play.total += step
        context.info.update(reward=play.total, steps=context.turn, metrics=finite_of(answer["metrics"]))
        if answer["postprocessed_action"] is not None:  # sampled tokens are never tokenized again
            context.info["postprocessed"] = int(str(context.info.get("postprocessed", 0))) + 1
        if answer["done"]:
            checked_reward(play.total, self._environment, self._low, self._high)
        if self._success_at is not None:
            context.info["success"] = play.total >= self._success_at
        return Reply(
            messages=() if answer["done"] else self._messages_from(answer["observations"]), done=answer["done"]
        )

    async def finish(self, context: EpisodeContext[Play]) -> None:
        if context.state is not None and self._process.alive:
            await self._process.ask("finish", play=context.state.key)

    @reward(inline=True)
    def score(self, episode: Episode) -> float:
        """The sum of the rewards that the environment gave."""
        return float(str(episode.info["reward"]))

    def close(self) -> None:
        """End the process, which equal environments share; it is started again when it is needed."""
        self._process.close()

    def _messages_from(self, messages: object) -> tuple[Message, ...]:
        """Raises InfraError for what is no list of messages of text."""
        if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
            raise InfraError(f"{self._environment} gave {messages!r:.80}; a list of messages was expected")
        for one in messages:
            if not isinstance(one.get("content"), str):
                raise InfraError(f"{self._environment} gave a message that is not text alone: {one!r:.200}")
        return messages_of(messages)

    def _given(self, row: Mapping[str, Any]) -> dict[str, Json]:
        """A row, with what SkyRL's generator adds."""
        prompt = row["prompt"] if isinstance(row["prompt"], list) else [*messages_of(row["prompt"])]
        return {**row, "prompt": prompt, "max_turns": self.max_turns}

    def _rows(self, source: str, split: Split) -> list[dict[str, Any]]:
        """All rows that are of this environment."""
        if not source:
            raise UserError(f"skyrl_gym: there are no rows for the {split} split; give env.options.{split}")
        rows = _read(source)
        classes = sorted({str(row["env_class"]) for row in rows if row.get("env_class") is not None})
        if ":" not in self._environment:  # an import path plays any
            rows = tuple(row for row in rows if row.get("env_class") in (None, self._environment))
        if not rows:
            raise UserError(
                f"skyrl_gym: {source} has no row of {self._environment!r}; the field env_class of its rows is: "
                f"{', '.join(classes) or 'nothing, it is empty'}"
            )
        for row in rows:
            if not isinstance(row.get("prompt"), list | str):
                raise UserError(
                    f"skyrl_gym: a row of {source} has no field `prompt` with messages; SkyRL's rows have prompt, "
                    f"env_class and what the environment reads, as reward_spec; this one has: {', '.join(row)}"
                )
        return [*rows]


@functools.lru_cache(maxsize=4)
def _read(source: str) -> tuple[dict[str, Any], ...]:
    """As SkyRL reads them; values that JSON does not have become text."""
    if reader := READERS.get(Path(source).suffix.lower()):
        table = data_sets.load(reader, files=[source], split="train", who="skyrl_gym")
    else:
        name, _, part = source.partition(":")
        table = data_sets.load(name, split=part or "train", who="skyrl_gym")
    return tuple(json.loads(json.dumps(row, default=str)) for row in table)
