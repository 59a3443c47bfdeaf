"""The environment: a question of a generator, an answer in `<answer>` tags, a score by the generator's own scorer."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Final

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, UserError, nearest
from agentgym.killable import CallFailed, KillableCalls
from agentgym.rewards import reward
from agentgym.types import Episode, Json, Message, Split, Task
from agentgym_envs.reasoning_gym.generators import OTHER_QUESTION, RIGHT

log = logging.getLogger(__name__)

INSTRUCTION: Final = "\nGive your final answer between <answer> and </answer>."
TEST_ONE_IN: Final = 5  # questions that belong to the test split
MAX_FRUITLESS: Final = 100  # entries in a row without a new question of the split, until a generator is given up
MAX_ANSWER_CHARS: Final = 4000  # or four times the right one's; longer ones are wrong
_NOT_FINITE: Final = re.compile(r"(?<![a-z])(?:nan|inf|infinity)(?![a-z])", re.IGNORECASE)

NO_ANSWER: Final = "its entries come without a right answer, so nothing shows that its scorer works"
EXCLUDED: Final[Mapping[str, str]] = {
    "boxnet": NO_ANSWER,
    "coin_flip": "its scorer gives 1.0 for any beginning of the right number, as 0",
    "composite": "it is a mixture of others; name those",
    "game_of_life_halting": "its scorer gives 1.0 for any text",
    "graph_color": NO_ANSWER,
    "knight_swap": "one entry takes seconds to make",
    "propositional_logic": NO_ANSWER,
    "rubiks_cube": NO_ANSWER,
    "rush_hour": NO_ANSWER,
}
"""Generators that are left out unless they are named, and why."""


class ReasoningGym(Environment[None]):
    """Questions of reasoning-gym's generators.

    Recorded in `info`: success (the score is 1), score (0 to 1, the generator's own), answer (what was in the last
    tags, or None), dataset, scorer_error (only where the scorer failed on the answer, which then scores 0).
    """

    name: ClassVar[str] = "reasoning_gym"
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    requirements: ClassVar[str] = "pip install 'reasoning-gym>=0.1.25'"

    def __init__(
        self,
        *,
        datasets: Annotated[
            Sequence[str] | Mapping[str, Mapping[str, Json] | None],
            "names of generators, or a mapping of names to their settings; empty is all but the faulty ones",
        ] = (),
        size: Annotated[int, "entries of one data set, after which one with another seed begins"] = 500,
        test_tasks: Annotated[int, "tasks of the test split at most"] = 512,
        cpu_s: Annotated[float, "CPU seconds for making an entry or scoring an answer, in a process of its own"] = 10.0,
    ) -> None:
        """Raises UserError for a value that is not allowed; names and settings are checked when tasks are asked for."""
        if size < 1 or test_tasks < 1 or cpu_s <= 0:
            raise UserError(
                f"reasoning_gym: size {size}, test_tasks {test_tasks}, cpu_s {cpu_s}: allowed are size >= 1, "
                "test_tasks >= 1, cpu_s > 0"
            )
        if isinstance(datasets, str):
            raise UserError(f"reasoning_gym: datasets is a list of names, as [{datasets}]")
        given = datasets if isinstance(datasets, Mapping) else dict.fromkeys(datasets)
        self._datasets: dict[str, dict[str, Json]] = {name: dict(config or {}) for name, config in given.items()}
        self._size, self._test_tasks = size, test_tasks
        self._calls = KillableCalls(
            "agentgym_envs.reasoning_gym.generators:serve",
            cpu_s=cpu_s,
            environ={"PYTHONHASHSEED": "0"},  # some generators go through sets
        )

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        sources = [
            _Source(self._calls, name, {**config, "size": self._size}, seed) for name, config in self._chosen().items()
        ]
        seen: set[str] = set()
        made = index = 0
        while sources and (split == "train" or made < self._test_tasks):
            source = sources[_number(f"{seed}/{index}") % len(sources)]
            index += 1
            task = source.next(split, seen)
            if task is None:
                sources.remove(source)
            else:
                made += 1
                yield task

    async def start(self, context: EpisodeContext[None]) -> None:
        context.info.update(success=False, score=0.0, answer=None, dataset=_drawn(context.task)["dataset"])

    async def reply(self, context: EpisodeContext[None]) -> Reply:
        said = _last_answer(context.messages[-1]["content"])
        drawn = _drawn(context.task)
        if said and _may_be_scored(said, str(drawn["answer"])):
            context.info.update(answer=said, **await self._score(said, context.task))
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message] | None:
        """The entry's own answer; None where it has none."""
        answer = _drawn(task)["answer"]
        if answer is None:
            return None
        return iter([Message(role="assistant", content=f"<answer>{answer}</answer>")])

    @reward(weight=0.0, inline=True)
    def score(self, episode: Episode) -> float:
        """The generator's own score, which gives many wrong answers a little."""
        return float(str(episode.info["score"]))

    def close(self) -> None:
        """End its processes; it may be used again."""
        self._calls.close()

    async def _score(self, said: str, task: Task) -> dict[str, Json]:
        """Raises InfraError when the machine was too slow, or the generator is not deterministic."""
        drawn = {key: value for key, value in _drawn(task).items() if key != "answer"}
        question = task.prompt[0]["content"].removesuffix(INSTRUCTION)
        try:
            value = await self._calls({**drawn, "question": question, "said": said})
        except CallFailed as failed:
            if failed.kind == "time_limit" or OTHER_QUESTION in str(failed):
                raise InfraError(f"reasoning_gym: scoring an answer of {drawn['dataset']}: {failed}") from failed
            return {"scorer_error": str(failed)}
        score = min(1.0, max(0.0, float(str(value))))
        return {"score": score, "success": score >= RIGHT}

    def _chosen(self) -> dict[str, dict[str, Json]]:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise UserError(f"reasoning_gym needs the package reasoning-gym: {self.requirements}")
        names = self._calls.wait({"names": True})
        assert isinstance(names, list)
        for name in self._datasets:
            if name not in names:
                raise UserError(f"reasoning_gym: no dataset {name!r}.{nearest(name, names)}")
        return self._datasets or {str(name): {} for name in names if name not in EXCLUDED}


class _Source:
    """The entries of one generator, in order."""

    def __init__(self, calls: KillableCalls, name: str, config: dict[str, Json], seed: int) -> None:
        self._calls, self._name, self._config, self._seed = calls, name, config, seed
        self._round = self._index = 0

    def next(self, split: Split, seen: set[str]) -> Task | None:
        """The next question of the split, in `test` one that is not in `seen`; None when there seems to be none."""
        for _ in range(MAX_FRUITLESS):
            index, dataset_seed, entry = self._entry()
            if not isinstance(entry, list):
                continue
            question, answer = entry
            key = f"{self._name}\n{question}"
            if (_number(key) % TEST_ONE_IN == 0) != (split == "test") or key in seen:
                continue
            if split == "test":
                seen.add(key)
            drawn: dict[str, Json] = {"dataset": self._name, "config": self._config, "seed": dataset_seed}
            return Task(
                task_id=f"reasoning_gym/{self._name}/{dataset_seed}/{index}",
                prompt=({"role": "user", "content": question + INSTRUCTION},),
                answer={**drawn, "index": index, "answer": answer},
                split=split,
            )
        return None

    def _entry(self) -> tuple[int, int, Json]:
        """Its place, and [question, answer]; None for one that cannot be solved, or not be made within the limits."""
        size = int(str(self._config["size"]))
        if self._index == size:
            self._round, self._index = self._round + 1, 0
        index, self._index = self._index, self._index + 1
        dataset_seed = _number(f"{self._seed}/{self._name}/{self._round}") % 2**31
        drawn: dict[str, Json] = {"dataset": self._name, "config": self._config, "seed": dataset_seed, "index": index}
        try:
            return index, dataset_seed, self._calls.wait(drawn)
        except CallFailed as failed:
            if failed.kind not in ("cpu_limit", "time_limit", "died", "MemoryError"):
                raise UserError(
                    f"reasoning_gym: the dataset {self._name!r} with {self._config} cannot be made: {failed}"
                ) from failed
            log.warning("reasoning_gym: left out entry %d of %s, seed %d: %s", index, self._name, dataset_seed, failed)
            return index, dataset_seed, None


def _may_be_scored(said: str, gold: str) -> bool:
    """Whether a text may be scored: not many pages, and not nan or infinity, which some scorers take for any number."""
    not_finite = _NOT_FINITE.search(said) and not _NOT_FINITE.search(gold)
    return len(said) <= max(MAX_ANSWER_CHARS, 4 * len(gold)) and not not_finite


def _last_answer(text: str) -> str:
    """What is in the last tags; empty without. No regular expression: over many open tags one takes minutes."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, said = before.rpartition("<answer>")
    return said.strip() if closed and opened else ""


def _drawn(task: Task) -> dict[str, Json]:
    assert isinstance(task.answer, Mapping)
    return dict(task.answer)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
