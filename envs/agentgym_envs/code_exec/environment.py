"""The environment: an agent writes a Python function, sees how the examples fail, and tries again."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

from agentgym.env import Benchmark, Environment, EpisodeContext, Reply
from agentgym.errors import InfraError, UserError
from agentgym.sandbox import AssertCase, GradeRequest, Limits, RunStatus, Verdict
from agentgym.types import Message, Split, Task
from agentgym_envs.code_exec.answers import find_code
from agentgym_envs.code_exec.benchmarks import BENCHMARKS
from agentgym_envs.code_exec.feedback import feedback, verdict_record
from agentgym_envs.code_exec.problems import Problem, idle_solution
from agentgym_envs.code_exec.sources import TaskSource, make_source

log = logging.getLogger(__name__)


class CodeExec(Environment[Problem]):
    """Python functions against visible examples and hidden tests, over several turns.

    A turn is one attempt and one sandbox call. The episode ends when all cases pass, when the examples pass
    but hidden cases fail, or when the answer holds no code (which breaks the rules). Otherwise the agent is
    shown the first failing example. Recorded in `info`:
    success (bool; None where the sandbox could not judge), tests_passed (share of hidden cases of the last
    attempt; None likewise), format_ok (bool), attempts (int), verdicts (one record an attempt),
    unsupported (bool: the interpreter cannot run such code, which says nothing about its quality).
    """

    name: ClassVar[str] = "code_exec"
    version: ClassVar[int] = 2
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = 2
    benchmarks: ClassVar[Mapping[str, Benchmark]] = BENCHMARKS

    def __init__(
        self,
        *,
        source: Annotated[str, "where tasks come from: procedural, jsonl, json, parquet or hub"] = "procedural",
        instruction: Annotated[
            str, "a paragraph after every task, such as how the answer is read; the oracle then answers in a block"
        ] = "",
        feedback_chars: Annotated[int, "characters that an error message may take of the context"] = 200,
        wall_s: Annotated[float, "seconds of one attempt"] = 5.0,
        **options: Annotated[
            object,
            "what the source takes: procedural max_difficulty (steps of a program, 1 to 4), weights (the share of each "
            "difficulty), visible (examples in the prompt) and test_tasks (tasks of the test split at most); jsonl, "
            "json and parquet path, hub dataset and subset; all of rows visible, test_share (1 is all rows), "
            "test_ids (first and last task_id of the test split instead) and grading: `official` is one "
            "attempt, judged by the benchmark's own tests alone, `all` also by a docstring's examples",
        ],
    ) -> None:
        """Raises UserError for an unknown source, option or file."""
        if feedback_chars < 16 or wall_s <= 0:
            raise UserError(f"code_exec: feedback_chars {feedback_chars} must be at least 16, wall_s {wall_s} above 0")
        self._source: TaskSource = make_source(source, options)
        self._is_official = options.get("grading") == "official"
        self._instruction = instruction
        self._feedback_chars = feedback_chars
        self._limits = Limits(wall_s=wall_s)
        self._solved: set[str] = set()  # tasks whose test source was checked

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for task in self._source.tasks(split, seed):
            yield instructed(task, self._instruction) if self._instruction else task

    def split_note(self, split: Split) -> str:
        return self._source.notes.get(split, "")

    async def start(self, context: EpisodeContext[Problem]) -> Problem:
        context.info.update(
            success=False, tests_passed=0.0, format_ok=False, attempts=0, verdicts=[], unsupported=False
        )
        return Problem.from_json(context.task.answer)

    async def reply(self, context: EpisodeContext[Problem]) -> Reply:
        problem, info = context.state, context.info
        code = find_code(context.messages[-1]["content"], problem.entry, any_code=self._is_official)
        info["attempts"] = context.turn
        info["format_ok"] = code is not None
        if code is None:
            info["tests_passed"] = 0.0
            return Reply(done=True, invalid=True)
        verdict = await self._grade(context, problem, code)
        earlier = info["verdicts"]
        assert isinstance(earlier, list)
        info["verdicts"] = [*earlier, verdict_record(problem, verdict)]
        if verdict.status is RunStatus.UNSUPPORTED:
            info.update(unsupported=True, success=None, tests_passed=None)
            return Reply(done=True)
        hidden = verdict.results[len(problem.visible) :]
        info["tests_passed"] = sum(result.passed for result in hidden) / len(hidden)
        info["success"] = verdict.passed
        error = feedback(problem, verdict, self._feedback_chars)
        if verdict.passed:
            await self._check_tests(context, problem)
        if error is None:
            return Reply(done=True)  # solved, or only hidden cases fail, which are never shown
        return Reply(messages=(feedback_message(error),))

    def solve(self, task: Task) -> Iterator[Message] | None:
        """The task's own solution; data sets may come without. In a block where an instruction says how to answer."""
        solution = Problem.from_json(task.answer).solution
        if solution and self._instruction:
            solution = f"```python\n{solution.rstrip()}\n```"
        return iter([Message(role="assistant", content=solution)]) if solution else None

    async def _check_tests(self, context: EpisodeContext[Problem], problem: Problem) -> None:
        """When a task is solved for the first time: warn if a function that does nothing passes its tests, too."""
        name = context.task.task_id
        if name in self._solved or not any(isinstance(case, AssertCase) for case in problem.cases):
            return
        self._solved.add(name)
        with contextlib.suppress(InfraError):  # the episode is judged already
            if (await self._grade(context, problem, idle_solution(problem.entry))).passed:
                log.warning("code_exec: the tests of task %s pass for a function that does nothing: do they run?", name)

    async def _grade(self, context: EpisodeContext[Problem], problem: Problem, code: str) -> Verdict:
        if context.sandbox is None:
            raise InfraError(f"task {context.task.task_id} was started without a sandbox")
        request = GradeRequest(
            code=problem.opening + code,
            entry=problem.entry,
            cases=problem.cases,
            prelude=problem.prelude,
            limits=self._limits,
        )
        verdict = await context.sandbox.grade(request)
        if len(verdict.results) != len(problem.cases) and verdict.status is not RunStatus.UNSUPPORTED:
            why = f": {verdict.error}" if verdict.error else ""
            raise InfraError(f"the sandbox judged {len(verdict.results)} of {len(problem.cases)} cases{why}")
        return verdict


def instructed(task: Task, instruction: str) -> Task:
    """The task with a paragraph more."""
    *before, asked = task.prompt
    return replace(task, prompt=(*before, {**asked, "content": f"{asked['content']}\n\n{instruction}"}))


def feedback_message(error: str) -> Message:
    """The message that reports a failure to the agent."""
    return {"role": "user", "content": error}
