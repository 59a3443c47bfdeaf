"""How many programs are started: all of a right solution's, and no more than it takes of a wrong one."""

from __future__ import annotations

import pytest

from agentgym.sandbox import GradeRequest, LimitHit, Limits, RunResult, RunStatus, StdioCase
from agentgym_sandboxes.host.stdio import grade_programs

pytestmark = pytest.mark.asyncio(loop_scope="session")

CASES = tuple(StdioCase(stdin=str(number), expected=str(number)) for number in range(40))
REQUEST = GradeRequest(code="", entry="", cases=CASES, limits=Limits(wall_s=5.0))


class Programs:
    """Each takes so long, and prints its number where that is in `right`, else nothing."""

    def __init__(self, wall_s: float, right: range) -> None:
        self.wall_s, self.right, self.num_started = wall_s, right, 0

    async def __call__(self, code: str, *, stdin: str = "", limits: Limits = Limits()) -> RunResult:  # noqa: B008
        self.num_started += 1
        printed = stdin if int(stdin) in self.right else ""
        return RunResult(status=RunStatus.OK, exit_code=0, stdout=printed, stderr="", wall_s=self.wall_s)


async def test_a_solution_that_is_slow_and_right_is_judged_to_the_end() -> None:
    programs = Programs(4.9, range(40))
    assert (await grade_programs(REQUEST, programs, 1)).passed
    assert programs.num_started == 40


async def test_failing_slowly_is_not_waited_for_to_the_end() -> None:
    """Forty programs of nearly five seconds would last longer than an episode waits for its environment."""
    programs = Programs(4.9, range(2))
    verdict = await grade_programs(REQUEST, programs, 1)
    assert programs.num_started == 7
    assert [result.error for result in verdict.results[:3]] == ["", "", "printed '', expected '2'"]
    assert {result.error for result in verdict.results[7:]} == {"not reached"}
    assert (verdict.status, verdict.error) == (RunStatus.TIMEOUT, "timed out after 20 s")
    assert verdict.limit == LimitHit(resource="wall_s", used=pytest.approx(24.5), allowed=20.0)


async def test_failing_quickly_is_judged_to_the_end() -> None:
    programs = Programs(0.01, range(0))
    verdict = await grade_programs(REQUEST, programs, 1)
    assert (programs.num_started, verdict.status) == (40, RunStatus.OK)
