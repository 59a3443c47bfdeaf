"""The graders for sandboxes of plugins judge as ours do, in the same words, and the strict one cannot be fooled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from process_backend import ProcessBackend

from agentgym import AssertCase, CallCase, GradeRequest, InfraError, Limits, RunResult, RunStatus, StdioCase, hookimpl
from agentgym.grading import grade_strictly, grade_trusted
from agentgym.hooks import PluginRegistry
from agentgym.rollout.text_episode import TextEpisode, TextGame, TextGameConfig
from agentgym.sandbox import SandboxUnavailable

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADDS = (CallCase(args=(1, 2), expected=3), CallCase(args=(0, 0), expected=0), AssertCase(source="assert f(2, 2) == 4"))
PRELUDE = "def check(g):\n    assert g(1, 1) == 2, 'one and one'\n"
CHECKED = (AssertCase(source="check(f)"), AssertCase(source="assert helper() == 7"), AssertCase(source="f(1, 1) + 1"))
SOLUTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "wrong": ("def f(a, b):\n    print('{')\n    return a - b", ADDS),
    "exits_in_test": ("import os\ndef f(a, b):\n    if a == 2: os._exit(3)\n    return a + b", (*ADDS, ADDS[2])),
    "syntax": ("def f(a, b:", ADDS),
    "hangs": ("def f(a, b):\n    while True: pass", ADDS[2:]),
    "prelude": ("def helper(): return 7\ndef f(a, b): return a + b", CHECKED),
    "prelude_wrong": ("def helper(): return 8\ndef f(a, b): return 0", CHECKED),
    "program": ("print(int(input()) + 1)", (StdioCase(stdin="1", expected="2"), StdioCase(stdin="x", expected="0"))),
}


def request(name: str, **limits: Any) -> GradeRequest:
    code, cases = SOLUTIONS[name]
    limits = Limits(wall_s=1.0 if name == "hangs" else 20.0, **limits)
    return GradeRequest(code=code, entry="f", cases=cases, prelude=PRELUDE, limits=limits)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "trusted"])
@pytest.mark.parametrize("name", SOLUTIONS)
async def test_a_public_grader_says_what_our_sandboxes_say(name: str, strict: bool, unsafe_subprocess) -> None:
    backend = ProcessBackend(strict=strict)
    theirs, ours = await asyncio.gather(backend.grade(request(name)), unsafe_subprocess.grade(request(name)))
    assert (theirs.status, theirs.error) == (ours.status, ours.error)
    if name == "hangs":
        assert not theirs.passed
    assert theirs.results == ours.results


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "trusted"])
async def test_a_failing_prelude_is_the_tasks_mistake(strict: bool) -> None:
    broken = GradeRequest(code="def f(): pass", entry="f", cases=(AssertCase(source="f()"),), prelude="1 / 0")
    with pytest.raises(InfraError, match="the tests' prelude failed: ZeroDivisionError"):
        await ProcessBackend(strict=strict).grade(broken)


FORGES = """
import json, os, struct
def f(a, b):
    head = {{"reason": {reason}, "exits": {{"serve": 0, "judge": 0}}, "truncated": False, "wall_s": 0.1, "cpu_s": 0.1,
            "memory_mib": 1.0, "names": ["answers", "verdict"]}}
    blobs = [b'["ok"]\\n["r",3]\\n["r",0]\\n', b'["ok"]\\n["pass"]\\n']
    head["sizes"] = [len(blob) for blob in blobs]
    head = json.dumps(head).encode()
    frame = struct.pack(">II", len(head), sum(map(len, blobs))) + head + b"".join(blobs)
    for fd in os.listdir(f"/proc/{{os.getppid()}}/fd"):
        try:
            file = os.open(f"/proc/{{os.getppid()}}/fd/{{fd}}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(file, frame)
        except OSError:
            pass
    {end}
"""
HOSTILE = {
    "forged": FORGES.format(reason="None", end="return 5"),
    "forged_reason": FORGES.format(reason="'timeout'", end="return 5"),
    "forged_and_killed": FORGES.format(reason="None", end="os.kill(os.getppid(), 9)"),
    "killed": "import os\ndef f(a, b): os.kill(os.getppid(), 9)",
    "stopped": "import os, signal\ndef f(a, b): os.kill(os.getppid(), signal.SIGSTOP)",
    "garbage": "import os\ndef f(a, b):\n    for fd in range(3, 99):\n        try: os.write(fd, b'[]\\n' * 9)\n"
    "        except OSError: pass\n    return 5",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.hostile] * (name == "stopped")) for name in HOSTILE]
)
async def test_what_a_solution_does_to_its_side_of_the_strict_grader_does_not_pass_a_test(name: str) -> None:
    """Nor is it taken for a failure of the sandbox, which would be played again."""
    made = GradeRequest(code=HOSTILE[name], entry="f", cases=ADDS, limits=Limits(wall_s=1.0))
    verdict = await ProcessBackend().grade(made)
    assert not verdict.passed and not verdict.results[-1].passed and len(verdict.results) == len(ADDS)


async def test_a_sandbox_without_python_is_reported_as_such() -> None:
    @asynccontextmanager
    async def connect(program: str, limits: Limits) -> AsyncIterator[Any]:
        process = await asyncio.create_subprocess_exec("false", stdin=-1, stdout=-1)
        yield process.stdout, process.stdin
        await process.communicate()

    async def run(code: str, *, stdin: str = "", limits: Limits | None = None) -> RunResult:
        return RunResult(status=RunStatus.ERROR, exit_code=127, stdout="", stderr="sh: 1\npython3: not found\n")

    with pytest.raises(SandboxUnavailable, match="does it have python3"):
        await grade_strictly(request("wrong"), run, connect)
    with pytest.raises(SandboxUnavailable, match=r"could not start the grader's program: python3: not found"):
        await grade_trusted(request("wrong"), run)


async def test_what_a_sandbox_cannot_run_is_unsupported() -> None:
    async def run(code: str, *, stdin: str = "", limits: Limits | None = None) -> RunResult:
        return RunResult(status=RunStatus.UNSUPPORTED, exit_code=None, stdout="", stderr="no\nos")

    verdict = await grade_trusted(request("wrong"), run)
    assert verdict.status is RunStatus.UNSUPPORTED and [result.error for result in verdict.results] == ["no os"] * 3


class Plugin:
    @hookimpl
    def sandboxes(self) -> dict[str, Any]:
        return {"process": lambda options: ProcessBackend(**options)}


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "trusted"])
async def test_code_exec_is_played_in_a_sandbox_of_a_third_party(strict: bool) -> None:
    registry = PluginRegistry.discover()
    registry.register(Plugin(), "process")
    game = await TextGame.start(
        registry, TextGameConfig(name="code_exec", sandbox="process", sandbox_options={"strict": strict})
    )
    episode = TextEpisode(game)
    await episode.reset(seed=0)
    entry = str(episode.task.answer["entry"])  # type: ignore[index, call-overload]
    said = (await episode.step(f"```python\ndef {entry}(*given): return object()\n```")).text
    assert ", expected " in str(said)
    solution = next(game.environment.solve(episode.task))["content"]
    after = await episode.step(f"```python\n{solution}\n```")
    assert after.terminated and after.info["success"] is True and after.reward == 1.0
    await game.close()
