"""The environment: an agent answers a question, may compute on the way, and may try again if it is allowed to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

from agentgym.env import Benchmark, Environment, EpisodeContext, Reply
from agentgym.errors import UserError, nearest
from agentgym.sandbox import Limits
from agentgym.types import Message, SandboxSpec, Split, Task
from agentgym_envs.math import rows as data
from agentgym_envs.math.answers import AnswerFormat, Found, find_answer
from agentgym_envs.math.benchmarks import BENCHMARKS
from agentgym_envs.math.expressions import Judge
from agentgym_envs.math.number import Number
from agentgym_envs.math.procedural import LEVELS, problems, working
from agentgym_envs.math.rows import Row
from agentgym_envs.math.solutions import calculations, final_message, plain_text, with_calls
from agentgym_envs.math.tools import Calculator, Python
from agentgym_envs.math.units import factor_to, units_of

Source: TypeAlias = Literal["procedural", "jsonl", "json", "parquet", "hub"]
Units: TypeAlias = Literal["ignore", "check"]
INSTRUCTION: Final = "\nEnd your reply with a line `#### <number>`."
BOXED_INSTRUCTION: Final = "\nPut your final answer in \\boxed{}."
TOOL_TURNS: Final = 8  # at most, with a tool
KEY_CHARS: Final = 16  # of a row's key, in its task's id


class MathEnvironment(Environment[Calculator | Python | None]):
    """Questions with a number or an expression for an answer, compared exactly.

    Recorded in `info`: success (bool), answer (the last reply's number in a canonical form, its expression, or None),
    format_ok (whether it was marked as asked), tries (int). It needs no sandbox, except for `tools: python`.
    """

    name: ClassVar[str] = "math"
    version: ClassVar[int] = 2
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = 2
    benchmarks: ClassVar[Mapping[str, Benchmark]] = BENCHMARKS

    def __init__(
        self,
        *,
        source: Annotated[Source, "where questions come from"] = "procedural",
        levels: Annotated[Sequence[int], "of 1 (sums) to 5 (word problems); of MATH's rows their level"] = LEVELS,
        test_tasks: Annotated[int, "tasks of the procedural test split at most"] = 512,
        path: Annotated[
            str | None,
            "a file with GSM8K's or MATH's rows, for json also a folder, for hub a data set's name (openai/gsm8k)",
        ] = None,
        test_path: Annotated[str | None, "the file of the test split; null takes test_share of path's rows"] = None,
        test_share: Annotated[float, "share of path's rows that are the test split; 1 is all"] = 0.1,
        subset: Annotated[str, "the hub's name of a part of a data set (main)"] = "",
        tries: Annotated[int, "2 lets the agent answer again when its first answer is wrong"] = 1,
        answer_format: Annotated[
            AnswerFormat,
            "boxed asks for \\boxed{} and takes nothing else, hashes a line ####; auto asks for what the source has, "
            "and takes both, `answer:` and a last number",
        ] = "auto",
        tolerance: Annotated[float, "relative error at which numbers are equal"] = 0.0,
        units: Annotated[
            Units, "check wants a marked answer in the unit that the row's answer has, or in one that converts to it"
        ] = "ignore",
        types: Annotated[Sequence[str], "types of MATH's rows; empty is all"] = (),
        max_bad_share: Annotated[float, "share of rows that may be unreadable; they are left out and named"] = 0.01,
        tools: Annotated[
            Literal["calculator", "python"] | None, "a calculator, or Python in a session of a sandbox"
        ] = None,
    ) -> None:
        """Raises UserError for a value that is not allowed; files are read when tasks are asked for."""
        _check_choice("source", source, get_args(Source))
        _check_choice("answer_format", answer_format, get_args(AnswerFormat))
        _check_choice("units", units, get_args(Units))
        _check_choice("tools", tools, ("calculator", "python", None))
        if not levels or any(level not in LEVELS for level in levels):
            raise UserError(f"math: levels is {list(levels)}; give some of {list(LEVELS)}")
        if source != "procedural" and not path:
            what = "a data set's name" if source == "hub" else "a file"
            raise UserError(f"math: source {source!r} needs `path`, {what}")
        if not 0 < test_share <= 1 or test_tasks < 1 or tries not in (1, 2):
            raise UserError(
                f"math: test_share {test_share}, test_tasks {test_tasks}, tries {tries}: allowed are "
                "0 < test_share <= 1, test_tasks >= 1, tries 1 or 2"
            )
        if not 0 <= tolerance < 1 or not 0 <= max_bad_share <= 1:
            raise UserError(
                f"math: tolerance {tolerance}, max_bad_share {max_bad_share}: allowed are 0 <= tolerance < 1, "
                "0 <= max_bad_share <= 1"
            )
        self._source = source
        self._levels, self._test_tasks = tuple(levels), test_tasks
        self._path, self._test_path, self._test_share = path or "", test_path, test_share
        self._subset, self._types, self._max_bad_share = subset, tuple(types), max_bad_share
        self._tries = tries
        self._form, self._tolerance, self._units = answer_format, tolerance, units
        self._tool = tools
        self._files: dict[Split, list[Row]] = {}
        self._notes: dict[Split, str] = {}
        self._by_key: dict[str, Row] = {}
        self._judge: Judge | None = None
        if tools is not None:
            self.tools = Calculator if tools == "calculator" else Python  # type: ignore[misc]
            self.max_turns = TOOL_TURNS  # type: ignore[misc]

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        if self._source == "procedural":
            return self._procedural(split, seed)
        return self._from_rows(split, seed)

    def split_note(self, split: Split) -> str:
        return self._notes.get(split, "")

    async def start(self, context: EpisodeContext[Calculator | Python | None]) -> Calculator | Python | None:
        context.info.update(success=False, answer=None, format_ok=False, tries=0)
        if self._tool == "python":
            assert context.session is not None  # the task asks for one
            return Python(context.session, Limits())
        return Calculator() if self._tool else None

    async def reply(self, context: EpisodeContext[Calculator | Python | None]) -> Reply:
        found = find_answer(context.messages[-1]["content"], self._form)
        given = _canonical(found, context.task)
        success = given is not None and await self._is_right(found, context.task)
        tries = int(str(context.info["tries"])) + 1
        context.info.update(success=success, answer=given, format_ok=found.marked and given is not None, tries=tries)
        if success or tries >= self._tries:
            return Reply(done=True)
        what = "number" if _expression_of(context.task) is None else "answer"
        wrong = f"I found no {what} in it." if given is None else f"{given} is not right."
        return Reply(messages=({"role": "user", "content": f"{wrong} Try again.{self._instruction(context.task)}"},))

    def solve(self, task: Task) -> Iterator[Message]:
        """The solution of its row, or the answer; with a tool its calculations are calls."""
        boxed = self._asks_for_box(_expression_of(task))
        if self._source == "procedural":
            expression = working(task.prompt[0]["content"].removesuffix(self._instruction(task)))
            return with_calls(self._tool, [expression], final_message("", str(task.answer), boxed=boxed))
        row = self._row_of(task)
        answer = row.answer if isinstance(row.answer, str) else str(task.answer)
        return with_calls(
            self._tool, calculations(row.solution), final_message(plain_text(row.solution), answer, boxed=boxed)
        )

    async def _is_right(self, found: Found, task: Task) -> bool:
        gold = _expression_of(task)
        if gold is not None:
            if self._judge is None:
                self._judge = Judge(self._tolerance)
            return await self._judge.is_right(gold, found.text, task.prompt[0]["content"])
        right, said = _answer_of(task), found.number
        assert said is not None
        if self._units == "check" and (wanted := units_of(str(task.answer))):
            factor = factor_to(wanted[0], units_of(found.text.rpartition("=")[2]))
            return factor is not None and Number(said.value * factor).equals(right, self._tolerance)
        return said.equals(right, self._tolerance)

    def _procedural(self, split: Split, seed: int) -> Iterator[Task]:
        limit = self._test_tasks if split == "test" else None
        for index, problem in enumerate(problems(split, seed, self._levels, limit)):
            yield Task(
                task_id=f"math/procedural/{split}/{seed}/{index}",
                prompt=(question_prompt(problem.question, self._asks_for_box(None)),),
                answer=str(problem.answer),
                sandbox=self._sandbox(),
                split=split,
                difficulty=problem.level,
            )

    def _from_rows(self, split: Split, seed: int) -> Iterator[Task]:
        rows = self._rows(split)
        if not rows:
            raise UserError(
                f"math: {self._path} has no row for the {split} split; see test_share, test_path, levels and types"
            )
        if any(isinstance(row.answer, str) for row in rows):
            self._judge = self._judge or Judge(self._tolerance)  # a missing package is reported here, not in an episode
        for row in data.in_order(rows, split, seed):
            expression = row.answer if isinstance(row.answer, str) else None
            number = row.stated if self._units == "check" and units_of(row.stated) else str(row.answer)
            yield Task(
                task_id=f"math/{self._source}/{row.key[:KEY_CHARS]}",
                prompt=(question_prompt(row.question, self._asks_for_box(expression)),),
                answer=number if expression is None else {"expression": expression},
                sandbox=self._sandbox(),
                split=split,
                difficulty=row.level,
            )

    def _rows(self, split: Split) -> list[Row]:
        rows = self._split_rows(split)
        rows = [row for row in rows if not row.level or row.level in self._levels]
        return [row for row in rows if row.kind in self._types] if self._types else rows

    def _split_rows(self, split: Split) -> list[Row]:
        if self._source != "hub" and self._test_path is None:
            rows = self._read("train")
            kept = data.split_rows(rows, split, self._test_share)
            if len(kept) < len(rows):
                self._notes[split] = (
                    f"The {split} split is {len(kept)} of the {len(rows)} rows of {self._path} (test_share "
                    f"{self._test_share:g}, by a hash; env.options.test_share 1 takes all)"
                )
            return kept
        rows = self._read(split)
        if split == "test":
            return rows
        held_out = {row.key for row in self._read("test")}
        return [row for row in rows if row.key not in held_out]

    def _read(self, split: Split) -> list[Row]:
        if split not in self._files:
            path = self._path if split == "train" or self._source == "hub" else self._test_path
            assert path is not None  # else the caller splits the one file
            self._files[split] = data.read_rows(self._source, path, self._subset, split, self._max_bad_share)
        return self._files[split]

    def _row_of(self, task: Task) -> Row:
        key = task.task_id.rpartition("/")[2]
        if key not in self._by_key:
            self._by_key.update({row.key[:KEY_CHARS]: row for row in self._split_rows(task.split)})
        return self._by_key[key]

    def _asks_for_box(self, expression: str | None) -> bool:
        return self._form == "boxed" or (self._form == "auto" and expression is not None)

    def _instruction(self, task: Task) -> str:
        return BOXED_INSTRUCTION if self._asks_for_box(_expression_of(task)) else INSTRUCTION

    def _sandbox(self) -> SandboxSpec | None:
        return SandboxSpec(session=True) if self._tool == "python" else None


def question_prompt(question: str, boxed: bool = False) -> Message:
    return {"role": "user", "content": question + (BOXED_INSTRUCTION if boxed else INSTRUCTION)}


def _check_choice(option: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        names = [name for name in allowed if name is not None]
        raise UserError(f"math: no {option} {value!r}.{nearest(str(value), names)}")


def _expression_of(task: Task) -> str | None:
    return str(task.answer["expression"]) if isinstance(task.answer, Mapping) else None


def _answer_of(task: Task) -> Number:
    number = find_answer(f"#### {task.answer}").number  # its first line, as it was read
    assert number is not None, f"task {task.task_id} has the answer {task.answer!r}"
    return number


def _canonical(found: Found, task: Task) -> str | None:
    """The answer that is compared, as it is recorded; None where there is none."""
    if _expression_of(task) is not None:
        return found.text[:1000] or None
    return None if found.number is None else str(found.number)
