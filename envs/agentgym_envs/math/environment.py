"""The environment: an agent answers a question with a number, and may try again if it is allowed to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias, get_args

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import UserError, nearest
from agentgym.types import Message, Split, Task
from agentgym_envs.math import gsm8k
from agentgym_envs.math.answers import Number, find_answer, parse_number
from agentgym_envs.math.procedural import LEVELS, problems

Source: TypeAlias = Literal["procedural", "jsonl", "parquet", "hub"]
INSTRUCTION: Final = "\nEnd your reply with a line `#### <number>`."


class MathEnvironment(Environment):
    """Questions with a number for an answer, compared exactly.

    Recorded in `info`: success (bool), answer (the last reply's number in a canonical form, or None),
    format_ok (whether it was marked as asked), tries (int). It needs no sandbox.
    """

    name: ClassVar[str] = "math"
    version: ClassVar[int] = 2
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = 2

    def __init__(
        self,
        *,
        source: Source = "procedural",
        levels: Sequence[int] = LEVELS,
        test_tasks: int = 512,
        path: str | None = None,
        test_path: str | None = None,
        test_share: float = 0.1,
        subset: str = "",
        tries: int = 1,
    ) -> None:
        """source: where questions come from, and which of the options below it reads.

        procedural: levels, of 1 (sums) to 5 (word problems); test_tasks, the most that the test split has.
        jsonl, parquet: path, a file, and test_path, or else test_share of the file as test split.
        hub: path, a data set's name (openai/gsm8k), and subset (main); its splits `train` and `test`.
        tries: 2 lets the agent answer again when its first answer is wrong.
        Raises UserError for a value that is not allowed; files are read when tasks are asked for.
        """
        if source not in get_args(Source):
            raise UserError(f"math: no source {source!r}.{nearest(source, get_args(Source))}")
        if not levels or any(level not in LEVELS for level in levels):
            raise UserError(f"math: levels is {list(levels)}; give some of {list(LEVELS)}")
        if source != "procedural" and not path:
            what = "a data set's name" if source == "hub" else "a file"
            raise UserError(f"math: source {source!r} needs `path`, {what}")
        if not 0 < test_share < 1 or test_tasks < 1 or tries not in (1, 2):
            raise UserError(
                f"math: test_share {test_share}, test_tasks {test_tasks}, tries {tries}: allowed are "
                "0 < test_share < 1, test_tasks >= 1, tries 1 or 2"
            )
        self._source = source
        self._levels, self._test_tasks = tuple(levels), test_tasks
        self._path, self._test_path, self._test_share = path or "", test_path, test_share
        self._subset = subset
        self._tries = tries

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        if self._source == "procedural":
            return self._procedural(split, seed)
        return self._from_rows(split, seed)

    async def start(self, context: EpisodeContext) -> None:
        context.info.update(success=False, answer=None, format_ok=False, tries=0)

    async def reply(self, context: EpisodeContext) -> Reply:
        found = find_answer(context.messages[-1]["content"])
        right = _answer_of(context.task)
        success = found.number is not None and found.number.equals(right)
        context.info.update(
            success=success,
            answer=None if found.number is None else str(found.number),
            format_ok=found.marked and found.number is not None,
            tries=context.turn,
        )
        if success or context.turn >= self._tries:
            return Reply(done=True)
        wrong = "I found no number in it." if found.number is None else f"{found.number} is not right."
        return Reply(messages=({"role": "user", "content": f"{wrong} Try again.{INSTRUCTION}"},))

    def _procedural(self, split: Split, seed: int) -> Iterator[Task]:
        limit = self._test_tasks if split == "test" else None
        for index, problem in enumerate(problems(split, seed, self._levels, limit)):
            yield Task(
                task_id=f"math/procedural/{split}/{seed}/{index}",
                prompt=(question_prompt(problem.question),),
                answer=str(problem.answer),
                split=split,
                difficulty=problem.level,
            )

    def _from_rows(self, split: Split, seed: int) -> Iterator[Task]:
        rows = self._rows(split)
        if not rows:
            raise UserError(f"math: {self._path} has no row for the {split} split; see test_share and test_path")
        for row in gsm8k.in_order(rows, split, seed):
            yield Task(
                task_id=f"math/{self._source}/{row.key[:16]}",
                prompt=(question_prompt(row.question),),
                answer=str(row.answer),
                split=split,
            )

    def _rows(self, split: Split) -> list[gsm8k.Row]:
        if self._source != "hub" and self._test_path is None:
            return gsm8k.split_rows(self._read("train"), split, self._test_share)
        rows = self._read(split)
        if split == "test":
            return rows
        held_out = {row.key for row in self._read("test")}
        return [row for row in rows if row.key not in held_out]

    def _read(self, split: Split) -> list[gsm8k.Row]:
        if self._source == "hub":
            return gsm8k.read_hub(self._path, self._subset, split)
        path = self._path if split == "train" else self._test_path
        assert path is not None  # else the caller splits the one file
        return gsm8k.read_jsonl(Path(path)) if self._source == "jsonl" else gsm8k.read_parquet(Path(path))


def question_prompt(question: str) -> Message:
    return {"role": "user", "content": question + INSTRUCTION}


def _answer_of(task: Task) -> Number:
    number = parse_number(str(task.answer))
    assert number is not None, f"task {task.task_id} has the answer {task.answer!r}"
    return number
