"""Grades and runs in monty sessions. Everything here blocks its thread; the backend calls it in threads.

A session is an interpreter process of its own. The expected values never enter it: results are compared here.
"""

from __future__ import annotations

import textwrap
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

from agentgym.errors import InfraError
from agentgym.sandbox import AssertCase, CallCase, GradeRequest, LimitHit, Limits, RunResult, RunStatus, Verdict
from agentgym_sandboxes.host import judging, wording
from agentgym_sandboxes.host.judging import Answer, End
from agentgym_sandboxes.host.wording import Raised
from agentgym_sandboxes.monty.config import MontyConfig
from agentgym_sandboxes.monty.failing import (
    UNSUPPORTED,
    Ended,
    Unsupported,
    memory_hit,
    raised_of,
    refuse_gaps,
    refuse_unknown_name,
)
from agentgym_sandboxes.monty.gaps import differs, is_gap, reads_input
from agentgym_sandboxes.monty.inside import BATCH, HELPERS, call_source
from agentgym_sandboxes.monty.output import Output
from agentgym_sandboxes.monty.solution import Solution, answer_of, read_answers, refuse_what_differs

if TYPE_CHECKING:
    from pydantic_monty import Monty, MontySession

MIB = 1 << 20
BATCH_LIMIT_S = 0.25  # most grades end within it; one that doesn't is made again, call by call


class Interpreter:
    """Grades with sessions of one worker pool."""

    def __init__(self, pool: Monty, config: MontyConfig) -> None:
        self._pool = pool
        self._config = config

    def grade(self, request: GradeRequest) -> Verdict:
        """Judge a solution. Raises InfraError when the tests or the interpreter failed."""
        began_s = time.monotonic()
        calls = [case for case in request.cases if isinstance(case, CallCase)]
        asserts = [case for case in request.cases if isinstance(case, AssertCase)]
        questions = [judging.question(case) for case in calls]  # refuses what is not a plain value
        answers: list[Answer] = []
        failures: list[Raised | None] = []
        end = End(RunStatus.OK, "")
        try:
            refuse_what_differs(request, questions)
            loaded = None
            batch = None if asserts else self._batch(request, calls)
            if batch is not None:
                answers = batch
            else:
                loaded = self._one_by_one(request, calls, asserts, answers, failures)
            if loaded is not None:
                return judging.load_failure(request.cases, loaded, time.monotonic() - began_s)
            refuse_gaps((answer for answer in (*answers, *failures) if isinstance(answer, Raised)), request.code)
        except Ended as error:
            end = End(error.status, error.text, error.limit)
        except Unsupported as error:
            end = End(RunStatus.UNSUPPORTED, f"{UNSUPPORTED}: {error}")
            answers, failures = [], []
        return judging.assemble(request.cases, answers, failures, end, wall_s=time.monotonic() - began_s)

    def run(self, code: str, limits: Limits) -> RunResult:
        """Run a program. There is no standard input: code that may read it is unsupported."""
        from pydantic_monty import MontyError

        began_s = time.monotonic()
        output = Output(limits.output_bytes)
        status, exit_code, said = RunStatus.OK, 0, ""
        limit: LimitHit | None = None
        try:
            if reads_input(code):
                raise Unsupported("it has no standard input")
            if reason := differs(code):
                raise Unsupported(reason)
            with self._session(limits, limits.wall_s) as session:
                session.feed_run(code, print_callback=output)
        except Unsupported as reason:
            status, exit_code, said = RunStatus.UNSUPPORTED, 1, f"{UNSUPPORTED}: {reason}\n"
        except MontyError as error:
            status, exit_code = RunStatus.ERROR, 1
            try:
                raised = raised_of(error, limits, code)
                said = f"{wording.error_text(raised)}\n"
                limit = memory_hit(raised)
                if limit is not None:
                    status = RunStatus.OOM
                elif is_gap(raised, code) or self._is_refused(raised, code, limits):
                    status, said = RunStatus.UNSUPPORTED, f"{UNSUPPORTED}: {said}"
            except Unsupported as reason:
                status, said = RunStatus.UNSUPPORTED, f"{UNSUPPORTED}: {reason}\n"
            except Ended as end:
                status, said, limit = end.status, f"{end.text}\n", end.limit
        if output.flooded:
            status, limit = RunStatus.OUTPUT_LIMIT, output.hit
        stdout, stderr = output.text("stdout"), output.text("stderr") + said
        return RunResult(
            status=status,
            exit_code=exit_code if status in (RunStatus.OK, RunStatus.ERROR) else None,
            stdout=stdout,
            stderr=stderr,
            stdout_bytes=stdout.encode(errors="replace"),
            stderr_bytes=stderr.encode(errors="replace"),
            truncated=output.truncated,
            wall_s=time.monotonic() - began_s,
            limit=limit,
        )

    def _session(self, limits: Limits, feed_s: float) -> AbstractContextManager[MontySession]:
        return self._pool.checkout(
            limits={
                "max_feed_duration_secs": feed_s,
                "max_memory": min(limits.memory_mib, self._config.memory_mib) * MIB,
                "max_recursion_depth": self._config.max_recursion,
                "max_suspensions": 100_000,
            },
            assert_message_annotations=False,
            os_policy={"sleep": "zero"},  # a sleep would not count as time
        )

    def _batch(self, request: GradeRequest, calls: list[CallCase]) -> list[Answer] | None:
        """All calls at once; None when anything was out of the ordinary."""
        from pydantic_monty import MontyError

        inputs = {
            "__calls": [
                (list(case.args), dict(case.kwargs), case.as_list, case.expected_args is not None) for case in calls
            ]
        }
        batch = BATCH.format(load=request.entry, call=call_source(request.entry))
        try:
            with self._session(request.limits, min(BATCH_LIMIT_S, request.limits.wall_s)) as session:
                quiet = Output(0)
                session.feed_run(request.code, print_callback=quiet)
                found = session.feed_run(batch, inputs=inputs, print_callback=quiet)
        except MontyError:
            return None
        try:
            tree = read_answers(found, request.limits)
        except Ended:  # found by judging one by one
            return None
        if type(tree) is not list or len(tree) != len(calls):
            return None
        answers = [answer_of(item) for item in tree]
        # What was raised says where only when the call is made by itself.
        return None if any(isinstance(one, Raised | None) for one in answers) else cast("list[Answer]", answers)

    def _is_refused(self, raised: Raised, code: str, limits: Limits) -> bool:
        """Whether it is the interpreter's parser that raised it: it does so, too, where nothing is run."""
        from pydantic_monty import MontyError

        if raised.kind != "NotImplementedError":
            return False
        try:
            with self._session(limits, limits.wall_s) as session:
                session.feed_run("if False:\n" + textwrap.indent(code, " "))
        except MontyError:
            return True
        return False

    def _one_by_one(
        self,
        request: GradeRequest,
        calls: list[CallCase],
        asserts: list[AssertCase],
        answers: list[Answer],
        failures: list[Raised | None],
    ) -> Raised | None:
        """Fill answers and failures, call by call; what loading raised, if it did."""
        from pydantic_monty import MontyError

        deadline_s = time.monotonic() + request.limits.wall_s
        with self._session(request.limits, request.limits.wall_s) as session:
            solution = Solution(session, request, deadline_s)
            try:
                session.feed_run(request.code, print_callback=Output(0))
                session.feed_run(HELPERS)
                session.feed_run(request.entry)  # an error when the solution does not define it
            except MontyError as error:
                raised = raised_of(error, request.limits, request.code)
                refuse_gaps([raised], request.code)
                if self._is_refused(raised, request.code, request.limits):
                    raise Unsupported(wording.error_text(raised)) from None
                return raised
            for case in calls:
                answers.append(solution.call(case.args, dict(case.kwargs), case.as_list)[0])
            for test in asserts:
                failures.append(self._test(request, test, solution))
        return None

    def _test(self, request: GradeRequest, case: AssertCase, solution: Solution) -> Raised | None:
        """Run one test in a session of its own, with the solution behind a proxy."""
        from pydantic_monty import MontyError

        proxies = {"candidate": solution.proxy}
        raised = None
        with self._session(request.limits, request.limits.wall_s) as session:
            try:
                session.feed_run(request.prelude, print_callback=Output(0))
            except MontyError as error:
                raised = raised_of(error, request.limits, request.prelude)
                refuse_gaps([raised])
                refuse_unknown_name(raised)
                raise InfraError(f"the tests' prelude failed: {wording.error_text(raised)}") from None
            try:
                if request.entry.isidentifier():  # a prelude may hold its signature, as HumanEval's prompts do
                    session.feed_run(f"{request.entry} = candidate", external_lookup=proxies)
                session.feed_run(case.source, external_lookup=proxies, print_callback=Output(0))
            except MontyError as error:
                raised = raised_of(error, request.limits, case.source)
                refuse_unknown_name(raised)
        if solution.end is not None:
            try:
                raise solution.end
            finally:
                solution.end = None
        return raised
