"""The suite of sandboxes: what every backend promises, of programs and of grading; sessions are in `sessions.py`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import (
    AssertCase,
    CallCase,
    Capabilities,
    Case,
    GradeRequest,
    Limits,
    RunResult,
    RunStatus,
    SandboxBackend,
    StdioCase,
    Verdict,
)
from agentgym.testing.suite import Suite, children, expect, promise, skip
from agentgym.types import SandboxSpec

BACKEND, SANDBOX = "agentgym.sandbox:SandboxBackend", "agentgym.sandbox:Sandbox"
RESULT, VERDICT, CASE = "agentgym.sandbox:RunResult", "agentgym.sandbox:Verdict", "agentgym.sandbox:CallCase"


class SandboxSuite(Suite):
    """What the suites of a backend share: the backend itself, started once for all tests of the class."""

    walls_s: ClassVar[Sequence[float]] = (0.5, 5.0, 50.0)
    """Limits of wall time that are tried in turn where a program has to reach its loop: a machine may be busy."""

    def make(self) -> SandboxBackend:
        """A new backend, not started."""
        raise NotImplementedError("define `make`, which returns a new backend that is not started")

    @asynccontextmanager
    async def made(self) -> AsyncIterator[SandboxBackend]:
        """The same with what it needs around it; override it where that is more than the backend."""
        yield self.make()

    async def backend(self) -> SandboxBackend:
        """One that is started, for all tests of the class."""
        if "backend" not in self._shared:
            made = await self._exits.enter_async_context(self.made())
            self._shared["backend"] = await self._exits.enter_async_context(made)
        found: SandboxBackend = self._shared["backend"]
        return found

    async def able(self) -> Capabilities:
        return await (await self.backend()).probe()


class SandboxConformance(SandboxSuite):
    """Subclass it in a test file, `class TestMine(SandboxConformance)`, and define `make`.

    The programs are Python. A sandbox of another language has its own in the attributes, and None for what the
    language cannot do; its `probe` reports `grades=False`.
    """

    hello: ClassVar[str] = "print('hello')"
    says: ClassVar[str] = "hello\n"
    """What `hello` prints."""
    failing: ClassVar[str] = "print('before')\nraise ValueError('no')"
    reading: ClassVar[str | None] = "print(input())"
    """Prints the first line of its standard input."""
    long: ClassVar[str | None] = "print('x' * 5000)"
    endless: ClassVar[str | None] = "while True: pass"
    flood: ClassVar[str | None] = "while True: print('x' * 1000)"
    keeping: ClassVar[str | None] = "kept = 5"
    """Leaves something behind that `finding` would print, if they were one program."""
    finding: ClassVar[str] = "print(kept)"

    @promise("agentgym.sandbox:Capabilities", "`detail` is one line for a person")
    async def test_probe_reports_its_name_and_one_line(self) -> None:
        able = await self.able()
        expect("the backend of its capabilities", able.backend, (await self.backend()).name)
        assert able.detail.strip() and "\n" not in able.detail, f"detail is {able.detail!r}"

    @promise(f"{BACKEND}.close", "safe to call twice")
    async def test_close_is_safe_to_call_twice_and_before_the_start(self) -> None:
        async with self.made() as backend:
            await backend.close()
        async with self.made() as backend:
            await backend.start()
            await backend.close()
            await backend.close()

    @promise(f"{BACKEND}.close", "Leave nothing behind")
    async def test_close_leaves_no_process_and_no_task(self) -> None:
        before = children(), asyncio.all_tasks()
        async with self.made() as made, made as backend:
            await backend.run(self.hello)
        await asyncio.sleep(0)
        assert not (left := asyncio.all_tasks() - before[1]), f"tasks are left: {left}"
        assert not (alive := children() - before[0]), f"processes are left: {alive}"

    @promise(f"{BACKEND}.metrics", "named `sandbox/<what>_<unit>`")
    async def test_metrics_are_numbers_named_after_the_sandbox(self) -> None:
        backend = await self.backend()
        await backend.run(self.hello)
        for name, value in backend.metrics().items():
            assert name.startswith("sandbox/"), f"a metric is called {name!r}"
            assert isinstance(value, (int, float)) and math.isfinite(value), f"{name} is {value!r}"

    @promise(f"{SANDBOX}.session", "Raises UserError where the backend has no sessions")
    async def test_sessions_are_served_by_backends_that_report_them(self) -> None:
        backend, able = await self.backend(), await self.able()
        spec = SandboxSpec(allow_interpreters=(backend.name,), session=True)
        expect("`supports` of a session", backend.supports(spec), able.sessions)
        if able.sessions:
            return
        try:
            async with backend.session():
                pass
        except UserError:
            return
        raise AssertionError("`probe` reports no sessions, and `session` gives one")

    @promise(f"{SANDBOX}.run", "Run a program")
    async def test_a_program_runs_and_what_it_prints_comes_back(self) -> None:
        result = await self._run(self.hello)
        expect(
            "status, exit code and output",
            (result.status, result.exit_code, result.stdout),
            (RunStatus.OK, 0, self.says),
        )

    @promise(RESULT, "stdout_bytes, stderr_bytes: the same, as written")
    async def test_bytes_are_the_text_as_written(self) -> None:
        result = await self._run(self.hello)
        expect("stdout_bytes", result.stdout_bytes, self.says.encode())

    @promise(RESULT, "What a program did")
    async def test_a_failing_program_is_an_error_with_its_message(self) -> None:
        result = await self._run(self.failing)
        expect("the status of a program that fails", result.status, RunStatus.ERROR)
        assert result.exit_code and result.stderr.strip(), f"exit code {result.exit_code}, stderr {result.stderr!r}"

    @promise(f"{SANDBOX}.run", "Run a program")
    async def test_a_program_reads_its_standard_input(self) -> None:
        result = await self._run(self._has(self.reading), stdin="a line\n")
        expect("what it read", result.stdout.strip(), "a line")

    @promise(RESULT, "stdout and stderr are cut at the limit; truncated says so")
    async def test_output_is_cut_and_says_so(self) -> None:
        whole = await self._run(self._has(self.long))
        assert not whole.truncated, "output below the limit is `truncated`"
        result = await self._run(self._has(self.long), limits=Limits(output_bytes=1000))
        expect(
            "status, truncated and length",
            (result.status, result.truncated, len(result.stdout)),
            (RunStatus.OK, True, 1000),
        )

    @promise(RESULT, "limit: what was used and allowed, when status is a limit's")
    async def test_an_endless_program_ends_at_its_wall_limit(self) -> None:
        began_s = time.monotonic()
        result = await self._run(self._has(self.endless), limits=Limits(wall_s=0.5))
        expect("the status of an endless program", result.status, RunStatus.TIMEOUT)
        assert result.limit is not None, "limit is None"
        expect("the limit", (result.limit.resource, result.limit.allowed), ("wall_s", 0.5))
        took_s = time.monotonic() - began_s
        assert 0.5 <= result.limit.used <= took_s, f"used is {result.limit.used} s of {took_s} s"

    @promise("agentgym.sandbox:Limits", "What one call may use")
    async def test_a_flood_of_output_is_ended(self) -> None:
        for wall_s in self.walls_s:
            result = await self._run(self._has(self.flood), limits=Limits(output_bytes=1000, wall_s=wall_s))
            if result.status is not RunStatus.TIMEOUT:
                break
        expect("status and length", (result.status, len(result.stdout)), (RunStatus.OUTPUT_LIMIT, 1000))

    @promise(SANDBOX, "Calls may overlap")
    async def test_other_calls_go_on_beside_an_endless_one(self) -> None:
        backend, endless = await self.backend(), self._has(self.endless)
        for wall_s in self.walls_s:
            hanging = asyncio.create_task(backend.run(endless, limits=Limits(wall_s=wall_s)))
            await asyncio.sleep(0.05)
            await backend.run(self.hello)
            beside = not hanging.done()
            await hanging
            if beside:
                return
        raise AssertionError("a call waits until another one has ended")

    @promise(SANDBOX, "each is isolated from every other")
    async def test_no_call_sees_what_another_left(self) -> None:
        await self._run(self._has(self.keeping))
        result = await self._run(self.finding)
        assert result.status is not RunStatus.OK, f"it finds {result.stdout!r} of the call before"

    async def _run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> RunResult:  # noqa: B008
        result = await (await self.backend()).run(code, stdin=stdin, limits=limits)
        return skip(f"it cannot run this: {result.stderr}") if result.status is RunStatus.UNSUPPORTED else result

    def _has(self, program: str | None) -> str:
        return skip("its language cannot do this") if program is None else program


class GradingConformance(SandboxSuite):
    """What a backend promises that judges solutions; skipped where `probe` does not report `grades`."""

    @promise(f"{SANDBOX}.grade", "Judge a solution")
    async def test_a_right_solution_passes_every_case(self) -> None:
        cases = [CallCase(args=([1, 2, 3], i), expected=6 + i) for i in range(4)]
        verdict = await self._grade("def f(xs, i):\n    return sum(xs) + i\n", *cases)
        expect("the errors of a right solution", [one.error for one in verdict.results], [""] * 4)
        assert verdict.passed and verdict.status is RunStatus.OK, f"the verdict is {verdict}"

    @promise(VERDICT, "How a solution did, case by case; as many results as there were cases")
    async def test_each_case_is_judged_by_itself(self) -> None:
        cases = [CallCase(args=(x,), expected=10 // x if x else None) for x in (1, 0, 5)]
        verdict = await self._grade("def f(x):\n    return 10 // x\n", *cases)
        expect("which cases passed", self._passed(verdict), [True, False, True])
        expect("the status where every case was judged", verdict.status, RunStatus.OK)

    @promise("agentgym.sandbox:CaseResult", "error: what a person would want to read")
    async def test_a_failed_case_says_why(self) -> None:
        verdict = await self._grade("def f():\n    return 3\n", CallCase(args=(), expected=4))
        expect("its error", verdict.results[0].error, "returned 3, expected 4")

    @promise(VERDICT, "error: why the solution could not be judged at all")
    async def test_a_solution_that_does_not_load_fails_every_case(self) -> None:
        verdict = await self._grade("def f(:\n", *[CallCase(args=(), expected=1)] * 3)
        expect("status and results", (verdict.status, self._passed(verdict)), (RunStatus.ERROR, [False] * 3))
        assert "SyntaxError" in verdict.error, f"the error is {verdict.error!r}"

    @promise(VERDICT, "then the cases that were not reached count as failed")
    async def test_what_was_judged_before_a_timeout_counts(self) -> None:
        cases = [CallCase(args=(x,), expected=x) for x in (0, 1, 2)]
        for wall_s in self.walls_s:
            code = "def f(x):\n    while x == 1:\n        pass\n    return x\n"
            verdict = await self._grade(code, *cases, limits=Limits(wall_s=wall_s))
            if verdict.results[0].passed:
                break
        expect("status and results", (verdict.status, self._passed(verdict)), (RunStatus.TIMEOUT, [True, False, False]))

    @promise(CASE, "Types count: True is not 1, (1,) is not [1].")
    async def test_types_count(self) -> None:
        pairs: list[tuple[object, object]] = [(True, 1), (1, True), (1.0, 1), ((1,), [1]), ([1, (2,)], [1, [2]])]
        code = f"def f(number):\n    return {[value for value, _ in pairs]!r}[number]\n"
        cases = [CallCase(args=(number,), expected=expected) for number, (_, expected) in enumerate(pairs)]
        expect(f"which of {pairs} pass", self._passed(await self._grade(code, *cases)), [False] * len(pairs))

    @promise(CASE, "tolerance: for floats, relative and absolute; 0 is exact")
    async def test_tolerance_is_for_floats_only(self) -> None:
        near: list[Case] = [CallCase(args=([1.0 + 1e-9],), expected=[1.0], tolerance=1e-6)]
        far: list[Case] = [CallCase(args=(x,), expected=1.0, tolerance=1e-6) for x in (1.001, 1)]
        exact: list[Case] = [CallCase(args=(1.0 + 1e-9,), expected=1.0)]
        verdict = await self._grade("def f(x):\n    return x\n", *near, *far, *exact)
        expect("which cases passed", self._passed(verdict), [True, False, False, False])

    @promise(CASE, "expected_args: what the positional arguments must be after the call")
    async def test_arguments_that_change_in_place_are_compared(self) -> None:
        cases = [CallCase(args=([2, 1],), expected_args=(after,)) for after in ([1, 2], [2, 1])]
        verdict = await self._grade("def f(xs):\n    xs.sort()\n", *cases)
        expect("which cases passed", self._passed(verdict), [True, False])

    @promise(CASE, "as_list: an iterator or a generator that it returns is read to its end first")
    async def test_an_iterator_can_be_compared_as_a_list(self) -> None:
        case = CallCase(args=(3,), expected=[0, 1, 2], as_list=True)
        verdict = await self._grade("def f(n):\n    for i in range(n):\n        yield i\n", case)
        assert verdict.passed, f"the verdict is {verdict}"

    @promise(
        "agentgym.sandbox:AssertCase",
        "Python source that raises when the solution is wrong; it sees the entry's name and `candidate`.",
    )
    async def test_assertions_see_the_solution_by_both_names(self) -> None:
        sources = ("assert candidate(1) == f(1) == 2", "assert f(1) == 3", "raise KeyError('k')")
        verdict = await self._grade("def f(x):\n    return x + 1\n", *map(_assertion, sources))
        expect("which cases passed", self._passed(verdict), [True, False, False])

    @promise(
        "agentgym.sandbox:StdioCase", "Run the code as a program of its own on `stdin`, and compare what it prints."
    )
    async def test_programs_are_compared_by_what_they_print(self) -> None:
        cases = [StdioCase(stdin="4 5\n", expected=expected) for expected in ("9", "9  \n\n", "10")]
        verdict = await self._grade("print(sum(map(int, input().split())))\n", *cases)
        expect("which cases passed", self._passed(verdict), [True, True, False])

    @promise("agentgym.sandbox:GradeRequest", "prelude: trusted source that the test side runs first")
    async def test_assertions_see_the_prelude(self) -> None:
        verdict = await self._grade(
            "def f():\n    return 2\n", _assertion("assert f() == wanted"), prelude="wanted = 2"
        )
        assert verdict.passed, f"the verdict is {verdict}"

    @promise(f"{SANDBOX}.grade", "Raises InfraError when the sandbox, not the solution, failed.")
    async def test_a_broken_prelude_is_not_the_solutions_fault(self) -> None:
        try:
            verdict = await self._grade("def f(): pass", _assertion("f()"), prelude="1 / 0")
        except InfraError:
            return
        raise AssertionError(f"the prelude raises, and the solution gets the verdict {verdict}")

    @promise(CASE, "args, kwargs, expected: plain builtin values")
    async def test_a_case_that_is_no_plain_value_is_the_users_mistake(self) -> None:
        for case in (CallCase(args=(), expected=[object()]), CallCase(args=(object(),), expected=1)):
            try:
                verdict = await self._grade("def f(*xs): return 1", case)
            except UserError:
                continue
            raise AssertionError(f"{case} gets the verdict {verdict}")

    @promise(SANDBOX, "each is isolated from every other")
    async def test_no_solution_sees_another_ones_names(self) -> None:
        await self._grade("secret = 5\ndef f(): return 1\n", CallCase(args=(), expected=1))
        verdict = await self._grade("def f(): return secret\n", CallCase(args=(), expected=5))
        assert not verdict.passed, "a solution sees a name of the one before"

    async def _grade(self, code: str, *cases: Case, prelude: str = "", limits: Limits = Limits()) -> Verdict:  # noqa: B008
        if not (await self.able()).grades:
            skip("it does not judge solutions")
        request = GradeRequest(code=code, entry="f", cases=cases, prelude=prelude, limits=limits)
        verdict = await (await self.backend()).grade(request)
        return skip(f"it cannot run this: {verdict.error}") if verdict.status is RunStatus.UNSUPPORTED else verdict

    @staticmethod
    def _passed(verdict: Verdict) -> list[bool]:
        return [result.passed for result in verdict.results]


def _assertion(source: str) -> AssertCase:
    return AssertCase(source=source)
