"""Components that break one promise each, by the test that has to find it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import Capabilities, GradeRequest, Limits, RunResult, RunStatus, SandboxBackend, Verdict
from agentgym.testing import GradingConformance, SandboxConformance, ToolFormatConformance
from agentgym.testing.suite import Suite
from agentgym.text.tool_formats.base import Parsed
from agentgym.text.tool_formats.hermes import Hermes
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import SandboxSpec
from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig

Broken = Mapping[str, Callable[[], Any]]
"""What `make` returns, by the test that has to fail."""


class Unfrozen(Hermes):
    """Not a dataclass of its own, so its fields are no settings."""


@dataclass(frozen=True)
class Changed(Hermes):
    parsed: Callable[[Parsed], Parsed] = lambda parsed: parsed
    written: Callable[[str], str] = lambda content: content

    def parse(self, text: str) -> Parsed:
        return self.parsed(super().parse(text))

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        return super().write(calls, self.written(content))


class Typed(Changed):
    def parse_ids(self, token_ids: Sequence[int], tokenizer: Any) -> Parsed:
        return self.parse(tokenizer.decode(token_ids))


def named(parsed: Parsed) -> Parsed:
    calls = (replace(c, name=c.name.lower()) if isinstance(c, ToolCall) else c for c in parsed.calls)
    return replace(parsed, calls=tuple(calls))


def strict(parsed: Parsed) -> Parsed:
    if any(isinstance(call, MalformedCall) for call in parsed.calls):
        raise ValueError("cannot be read")
    return parsed


def faults(parsed: Parsed, change: Callable[[MalformedCall], list[MalformedCall]]) -> Parsed:
    calls = [one for call in parsed.calls for one in (change(call) if isinstance(call, MalformedCall) else [call])]
    return replace(parsed, calls=tuple(calls))


FORMATS: Broken = {
    "test_a_recipe_can_choose_it_by_its_import_path": Unfrozen,
    "test_a_call_is_read_as_it_was_written": lambda: Changed(named),
    "test_several_calls_keep_their_order": lambda: Changed(lambda p: replace(p, calls=p.calls[::-1])),
    "test_what_was_said_before_calls_is_kept": lambda: Changed(written=str.upper),
    "test_a_turn_without_calls_is_content": lambda: Changed(lambda p: replace(p, content=p.content.strip())),
    "test_damaged_texts_never_raise": lambda: Changed(strict),
    "test_damaged_calls_are_malformed": lambda: Changed(lambda p: faults(p, lambda call: [])),
    "test_a_fault_is_one_short_line": lambda: Changed(lambda p: faults(p, lambda call: [replace(call, fault="a\nb")])),
    "test_typed_markers_are_not_calls": Typed,
}


@dataclass
class Sandbox(SandboxBackend):
    """Right in all but what is changed here."""

    able: Mapping[str, Any] = ()  # type: ignore[assignment]
    result: Callable[[RunResult], RunResult] = lambda result: result
    verdict: Callable[[Verdict], Verdict] = lambda verdict: verdict
    program: Callable[[str, str, list[str]], tuple[str, str]] = lambda code, stdin, earlier: (code, stdin)
    request: Callable[[GradeRequest, list[str]], GradeRequest] = lambda request, earlier: request
    measured: Mapping[str, float] = ()  # type: ignore[assignment]
    sessions: bool = False
    one_at_a_time: bool = False
    closes_once: bool = False
    leaves_a_task: bool = False
    forgives: Verdict | None = None
    name = "unsafe_subprocess"

    def __post_init__(self) -> None:
        self.inner = UnsafeSubprocessBackend(UnsafeSubprocessConfig(allow_unsafe=True))
        self.earlier: list[str] = []
        self.lock = asyncio.Lock()
        self.tasks: list[object] = []

    def supports(self, spec: SandboxSpec) -> bool:
        return self.sessions or self.inner.supports(spec)

    async def probe(self) -> Capabilities:
        return replace(await self.inner.probe(), **dict(self.able))

    async def start(self) -> Self:
        await self.inner.start()
        if self.leaves_a_task:
            self.tasks.append(asyncio.create_task(asyncio.sleep(1e6)))
        return self

    async def close(self) -> None:
        await self.inner.close()
        if self.closes_once:
            self.close = self.inner.name  # type: ignore[method-assign, assignment]

    def metrics(self) -> dict[str, float]:
        return dict(self.measured)

    async def run(self, code: str, *, stdin: str = "", limits: Limits = Limits()) -> RunResult:  # noqa: B008
        code, stdin = self.program(code, stdin, self.earlier)
        self.earlier.append(code)
        if not self.one_at_a_time:
            return self.result(await self.inner.run(code, stdin=stdin, limits=limits))
        async with self.lock:
            return self.result(await self.inner.run(code, stdin=stdin, limits=limits))

    async def grade(self, request: GradeRequest) -> Verdict:
        request = self.request(request, self.earlier)
        self.earlier.append(request.code)
        try:
            return self.verdict(await self.inner.grade(request))
        except (InfraError, UserError):
            if self.forgives is None:
                raise
            return self.forgives


def judged(passed: bool | None, **changed: Any) -> Callable[[Verdict], Verdict]:
    """All results are this; None leaves them."""

    def change(verdict: Verdict) -> Verdict:
        results = tuple(one if passed is None else replace(one, passed=passed, error="") for one in verdict.results)
        return replace(verdict, results=results, **changed)

    return change


FORGIVEN = Verdict(status=RunStatus.ERROR, results=())
SANDBOXES: Broken = {
    "test_probe_reports_its_name_and_one_line": lambda: Sandbox({"backend": "other"}),
    "test_close_is_safe_to_call_twice_and_before_the_start": lambda: Sandbox(closes_once=True),
    "test_close_leaves_no_process_and_no_task": lambda: Sandbox(leaves_a_task=True),
    "test_metrics_are_named_with_their_units": lambda: Sandbox(measured={"calls": 1.0}),
    "test_sessions_are_served_by_backends_that_report_them": lambda: Sandbox(sessions=True),
    "test_a_program_runs_and_what_it_prints_comes_back": lambda: Sandbox(result=lambda r: replace(r, stdout="")),
    "test_bytes_are_the_text_as_written": lambda: Sandbox(result=lambda r: replace(r, stdout_bytes=b"")),
    "test_a_failing_program_is_an_error_with_its_message": lambda: Sandbox(
        result=lambda r: replace(r, status=RunStatus.OK)
    ),
    "test_a_program_reads_its_standard_input": lambda: Sandbox(program=lambda code, stdin, earlier: (code, "")),
    "test_output_is_cut_and_says_so": lambda: Sandbox(result=lambda r: replace(r, truncated=False)),
    "test_an_endless_program_ends_at_its_wall_limit": lambda: Sandbox(result=lambda r: replace(r, limit=None)),
    "test_a_flood_of_output_is_ended": lambda: Sandbox(
        program=lambda code, stdin, earlier: (code.replace("while True", "for _ in range(9)"), stdin)
    ),
    "test_other_calls_go_on_beside_an_endless_one": lambda: Sandbox(one_at_a_time=True),
    "test_no_call_sees_what_another_left": lambda: Sandbox(
        program=lambda code, stdin, earlier: ("\n".join([*earlier, code]), stdin)
    ),
}
GRADERS: Broken = {
    "test_a_right_solution_passes_every_case": lambda: Sandbox(verdict=judged(False)),
    "test_each_case_is_judged_by_itself": lambda: Sandbox(verdict=lambda v: replace(v, results=v.results[:1])),
    "test_a_failed_case_says_why": lambda: Sandbox(verdict=judged(False)),
    "test_a_solution_that_does_not_load_fails_every_case": lambda: Sandbox(verdict=judged(None, status=RunStatus.OK)),
    "test_what_was_judged_before_a_timeout_counts": lambda: Sandbox(verdict=judged(False)),
    "test_types_count": lambda: Sandbox(verdict=judged(True)),
    "test_tolerance_is_for_floats_only": lambda: Sandbox(verdict=judged(True)),
    "test_arguments_that_change_in_place_are_compared": lambda: Sandbox(verdict=judged(True)),
    "test_an_iterator_can_be_compared_as_a_list": lambda: Sandbox(verdict=judged(False)),
    "test_assertions_see_the_solution_by_both_names": lambda: Sandbox(verdict=judged(False)),
    "test_programs_are_compared_by_what_they_print": lambda: Sandbox(verdict=judged(False)),
    "test_assertions_see_the_prelude": lambda: Sandbox(request=lambda r, earlier: replace(r, prelude="")),
    "test_a_broken_prelude_is_not_the_solutions_fault": lambda: Sandbox(forgives=FORGIVEN),
    "test_a_case_that_is_no_plain_value_is_the_users_mistake": lambda: Sandbox(forgives=FORGIVEN),
    "test_no_solution_sees_another_ones_names": lambda: Sandbox(
        request=lambda r, earlier: replace(r, code="\n".join([*earlier, r.code]))
    ),
}
BROKEN: Mapping[type[Suite], Broken] = {
    ToolFormatConformance: FORMATS,
    SandboxConformance: SANDBOXES,
    GradingConformance: GRADERS,
}
