"""Grades and runs in monty sessions. Everything here blocks its thread; the backend calls it in threads.

A session is an interpreter process of its own. The expected values never enter it: results are compared here.
"""

from __future__ import annotations

import builtins
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

from agentgym.errors import InfraError
from agentgym.sandbox import (
    AssertCase,
    CallCase,
    GradeRequest,
    Limits,
    RunResult,
    RunStatus,
    SandboxLost,
    Verdict,
)
from agentgym_sandboxes import judging, wording
from agentgym_sandboxes.docker.agent import values
from agentgym_sandboxes.judging import Answer, End, NoValue, Returned
from agentgym_sandboxes.monty.config import MontyConfig
from agentgym_sandboxes.monty.gaps import is_gap, syntax_error
from agentgym_sandboxes.wording import Raised

if TYPE_CHECKING:
    from pydantic_monty import Monty, MontyError, MontySession

MIB = 1 << 20
BATCH_LIMIT_S = 0.25  # most grades end within it; one that doesn't is made again, call by call
_UNSUPPORTED = "monty can't run it"

# All calls in one feed. The types are read inside: a value that leaves may change its type (a range becomes text).
_BATCH = """
def __odd_type(value):
    kind = type(value).__name__
    if kind in ("int", "bool", "float", "str", "bytes", "NoneType", "complex"):
        return ""
    if kind in ("list", "tuple", "set", "frozenset"):
        for item in value:
            odd = __odd_type(item)
            if odd:
                return odd
        return ""
    if kind == "dict":
        for key, item in value.items():
            odd = __odd_type(key) or __odd_type(item)
            if odd:
                return odd
        return ""
    return kind
{entry}  # a NameError when the solution does not define it
__answers = []
for __args, __kwargs in __calls:
    try:
        __value = {entry}(*__args, **__kwargs)
        __odd = __odd_type(__value)
        __answers.append(("n", __odd, "") if __odd else ("r", __value, ""))
    except BaseException as __error:
        __answers.append(("x", type(__error).__name__, str(__error)))
__answers
"""


class Unsupported(Exception):
    """The interpreter can't run the code."""


class _Ended(Exception):
    """The code was ended: it says nothing more."""

    def __init__(self, status: RunStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


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
        for case in calls:
            judging.question(case)  # refuses what is no plain value
        answers: list[Answer] = []
        failures: list[Raised | None] = []
        ended, ended_text = RunStatus.OK, ""
        try:
            loaded = None
            batch = None if asserts else self._batch(request, calls)
            if batch is not None:
                answers = batch
            else:
                loaded = self._one_by_one(request, calls, asserts, answers, failures)
            if loaded is not None:
                return judging.load_failure(request.cases, loaded, time.monotonic() - began_s)
            _refuse_gaps(answer for answer in (*answers, *failures) if isinstance(answer, Raised))
        except _Ended as error:
            ended, ended_text = error.status, error.text
        except Unsupported as error:
            ended, ended_text = RunStatus.UNSUPPORTED, f"{_UNSUPPORTED}: {error}"
            answers, failures = [], []
        return judging.assemble(
            request.cases,
            answers,
            failures,
            End(ended, ended_text),
            wall_s=time.monotonic() - began_s,
        )

    def run(self, code: str, stdin: str, limits: Limits) -> RunResult:
        """Run a program. There is no standard input: code that reads it is unsupported."""
        from pydantic_monty import MontyError

        began_s = time.monotonic()
        output = _Output(limits.output_bytes)
        status, exit_code, said = RunStatus.OK, 0, ""
        try:
            with self._session(limits, limits.wall_s) as session:
                session.feed_run(code, print_callback=output)
        except MontyError as error:
            status, exit_code = RunStatus.ERROR, 1
            try:
                raised = _raised(error, limits, code)
                said = f"{wording.error_text(raised)}\n"
                if is_gap(raised):
                    status, said = RunStatus.UNSUPPORTED, f"{_UNSUPPORTED}: {said}"
            except Unsupported as reason:
                status, said = RunStatus.UNSUPPORTED, f"{_UNSUPPORTED}: {reason}\n"
            except _Ended as end:
                status, said = end.status, f"{end.text}\n"
        if output.flooded:
            status = RunStatus.OUTPUT_LIMIT
        return RunResult(
            status=status,
            exit_code=exit_code if status in (RunStatus.OK, RunStatus.ERROR) else None,
            stdout=output.text("stdout"),
            stderr=output.text("stderr") + said,
            truncated=output.truncated,
            wall_s=time.monotonic() - began_s,
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

        if not request.entry.isidentifier():
            return None
        inputs = {"__calls": [(list(case.args), dict(case.kwargs)) for case in calls]}
        try:
            with self._session(request.limits, min(BATCH_LIMIT_S, request.limits.wall_s)) as session:
                quiet = _Output(0)
                session.feed_run(request.code, print_callback=quiet)
                found = session.feed_run(
                    _BATCH.format(entry=request.entry), inputs=inputs, print_callback=quiet
                )
        except MontyError:
            return None
        if type(found) is not list or len(found) != len(calls):
            return None
        answers = [_batch_answer(item) for item in found]
        return None if None in answers else cast("list[Answer]", answers)

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
            solution = _Solution(session, request, deadline_s)
            try:
                session.feed_run(request.code, print_callback=_Output(0))
                session.feed_run(request.entry)  # a NameError when the solution does not define it
            except MontyError as error:
                raised = _raised(error, request.limits, request.code)
                _refuse_gaps([raised])
                return raised
            for case in calls:
                answers.append(solution.call(case.args, dict(case.kwargs)))
            for test in asserts:
                failures.append(self._test(request, test, solution))
        return None

    def _test(self, request: GradeRequest, case: AssertCase, solution: _Solution) -> Raised | None:
        """Run one test in a session of its own, with the solution behind a proxy."""
        from pydantic_monty import MontyError

        proxies = {"candidate": solution.proxy, request.entry: solution.proxy}
        raised = None
        with self._session(request.limits, request.limits.wall_s) as session:
            try:
                session.feed_run(request.prelude, print_callback=_Output(0))
            except MontyError as error:
                raised = _raised(error, request.limits, request.prelude)
                _refuse_gaps([raised])
                raise InfraError(f"the tests' prelude failed: {wording.error_text(raised)}") from None
            try:
                # a prelude may hold the entry's signature, as HumanEval's prompts do: it must not be what is tested
                if request.entry.isidentifier():
                    session.feed_run(f"{request.entry} = candidate", external_lookup=proxies)
                session.feed_run(case.source, external_lookup=proxies, print_callback=_Output(0))
            except MontyError as error:
                raised = _raised(error, request.limits, case.source)
        if solution.end is not None:
            raise solution.end
        return raised


class _Solution:
    """A loaded solution and what is left of its time."""

    def __init__(self, session: MontySession, request: GradeRequest, deadline_s: float) -> None:
        self._session = session
        self._request = request
        self._deadline_s = deadline_s
        self.end: _Ended | Unsupported | None = None

    def call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Answer:
        """Call the entry. Raises _Ended when the solution ran out of time or crashed."""
        from pydantic_monty import MontyError

        limits = self._request.limits
        if time.monotonic() > self._deadline_s:
            raise _Ended(RunStatus.TIMEOUT, wording.timeout_text(limits.wall_s))
        inputs = {"__args": list(args), "__kwargs": kwargs}
        source = f"{self._request.entry}(*__args, **__kwargs)"
        try:
            value = self._session.feed_run(source, inputs=inputs, print_callback=_Output(0))
        except MontyError as error:
            return _raised(error, limits, source)
        return _answer_of(value)

    def proxy(self, *args: object, **kwargs: object) -> object:
        """What the tests call. A solution that was ended stays ended, whatever the test catches."""
        try:
            if self.end is not None:
                raise self.end
            answer = self.call(args, kwargs)
            if isinstance(answer, Raised):
                _refuse_gaps([answer])
        except (_Ended, Unsupported) as error:
            self.end = error
            raise RuntimeError(str(error)) from None
        if isinstance(answer, Returned):
            return values.decode(answer.tree)
        if isinstance(answer, NoValue):
            raise TypeError(f"returned <{answer.kind}>, which is no plain value")
        raise _builtin_exception(answer)


class _Output:
    """Takes what a program prints; keeps the first `max_bytes` characters of each stream."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._kept: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._sizes = {"stdout": 0, "stderr": 0}

    def __call__(self, stream: str, text: str) -> None:
        room = self._max - self._sizes[stream]
        if room > 0:
            self._kept[stream].append(text[:room])
        self._sizes[stream] += len(text)
        if self.flooded:
            raise MemoryError("too much output")

    def text(self, stream: str) -> str:
        return "".join(self._kept[stream])

    @property
    def truncated(self) -> bool:
        return any(size > self._max for size in self._sizes.values())

    @property
    def flooded(self) -> bool:
        return 0 < 128 * self._max < max(self._sizes.values())


def _batch_answer(item: object) -> Answer | None:
    if type(item) is not tuple or len(item) != 3:
        return None
    tag, content, message = item
    if tag == "r":
        return _answer_of(content)
    if type(content) is not str or type(message) is not str:
        return None
    return NoValue(content) if tag == "n" else Raised(content, message)


def _answer_of(value: object) -> Answer:
    try:
        return Returned(values.encode(value))
    except values.NotPlain as error:
        return NoValue(str(getattr(value, "name", error.kind)))


def _raised(error: MontyError, limits: Limits, code: str) -> Raised:
    """What the code raised. Raises _Ended or Unsupported when it was no exception of the code's own."""
    from pydantic_monty import MontyCrashedError, MontyRuntimeError, MontySyntaxError

    if isinstance(error, MontyCrashedError):
        if error.timed_out:
            raise _Ended(RunStatus.TIMEOUT, wording.timeout_text(limits.wall_s))
        raise Unsupported("the interpreter crashed")
    if isinstance(error, MontySyntaxError):
        refused = syntax_error(code)
        if refused is None:
            raise Unsupported(str(error))
        return refused
    if not isinstance(error, MontyRuntimeError):
        raise SandboxLost(f"monty failed: {error}")
    exception = error.exception()
    message = str(exception)
    if isinstance(exception, TimeoutError) and message.startswith("feed time limit exceeded"):
        raise _Ended(RunStatus.TIMEOUT, wording.timeout_text(limits.wall_s))
    frames = error.traceback()
    return Raised(type(exception).__name__, message, frames[-1].line if frames else 0)


def _refuse_gaps(raised: object) -> None:
    for one in cast("list[Raised]", raised):
        if is_gap(one):
            raise Unsupported(wording.error_text(one))


def _builtin_exception(raised: Raised) -> Exception:
    kind = getattr(builtins, raised.kind, None)
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, (StopIteration, UnicodeError))
    ):
        return kind(raised.message)
    return RuntimeError(raised.message)
