"""The benchmark of a sandbox, on one that calculates in this process."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import fields, replace

import pytest

from agentgym.errors import InfraError
from agentgym.sandbox import Capabilities, CaseResult, RunResult, RunStatus, Verdict
from agentgym_sandboxes.audit.bench import (
    CALL,
    CONTAINER_START,
    GRADE_ASSERTS,
    QUICK,
    SESSION_FILE,
    SESSION_OPEN,
    START,
    bench,
)

PLAN = replace(
    QUICK, timing=replace(QUICK.timing, rounds=2, calls=8, calls_at_once=8, pause_s=0.0), episodes=40, load_s=0.05
)  # fmt: skip


class Calculator:
    """Answers what it is asked; `opened` and `closed` count the objects, `leaked` are descriptors."""

    def __init__(self, log: list[str], *, sessions: bool = False, wrong: bool = False, leaks: bool = False) -> None:
        self.name = "calculator"
        self._log, self._sessions, self._wrong, self._leaks = log, sessions, wrong, leaks
        self.leaked: list[int] = []
        self._files: dict[str, bytes] = {}

    async def probe(self) -> Capabilities:
        flags = dict.fromkeys((field.name for field in fields(Capabilities)), True)
        return Capabilities(**flags | {"backend": self.name, "detail": "it", "sessions": self._sessions})

    async def start(self):
        self._log.append("start")
        return self

    async def close(self) -> None:
        self._log.append("close")

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def run(self, code, *, stdin="", limits=None) -> RunResult:
        if self._leaks:
            self.leaked.append(os.dup(0))
        text = "43\n" if self._wrong else "42\n"
        return RunResult(status=RunStatus.OK, exit_code=0, stdout=text, stderr="")

    async def exec(self, command, *, stdin="", folder=".", limits=None) -> RunResult:
        return await self.run("")

    async def write(self, path, data) -> None:
        self._files[path] = data

    async def read(self, path, *, max_bytes=0) -> bytes:
        return self._files[path]

    async def grade(self, request) -> Verdict:
        assert len(request.cases) == 10
        return Verdict(status=RunStatus.OK, results=tuple(CaseResult(passed=True) for _ in request.cases))

    @asynccontextmanager
    async def session(self, *, network=()):
        self._log.append("session")
        yield self

    def metrics(self) -> dict[str, float]:
        return {"sandbox/start_p50_s": 0.25, "sandbox/containers_live": 2.0}


def quiet(text: str) -> None:
    pass


async def test_everything_is_measured_and_every_sandbox_is_closed_again() -> None:
    log: list[str] = []
    result = await bench(lambda: Calculator(log, sessions=True), PLAN, quiet)
    names = [timing.name for timing in result.timings]
    assert {START, CONTAINER_START, CALL, GRADE_ASSERTS, SESSION_OPEN, SESSION_FILE} <= set(names)
    start = result.timing(CONTAINER_START)
    assert start is not None and (start.p50_ms, start.calls) == (250, PLAN.starts)
    assert log.count("start") == PLAN.starts + 1 and log.count("close") == PLAN.starts + 2  # one was only probed
    assert log.count("session") == PLAN.sessions + 1 + 1 + 2  # and of 4 + 40 episodes one in twenty
    assert result.growth is not None and result.growth.after.containers == 2


async def test_a_sandbox_without_sessions_is_measured_without_them() -> None:
    log: list[str] = []
    result = await bench(lambda: Calculator(log), PLAN, quiet)
    assert "session" not in log and result.timing(SESSION_OPEN) is None


async def test_a_sandbox_that_answers_wrongly_is_not_timed_and_is_closed() -> None:
    log: list[str] = []
    with pytest.raises(InfraError, match="was answered with"):
        await bench(lambda: Calculator(log, wrong=True), PLAN, quiet)
    assert log.count("close") == log.count("start") + 1


async def test_growth_is_seen() -> None:
    made: list[Calculator] = []

    def make() -> Calculator:
        made.append(Calculator([], leaks=True))
        return made[-1]

    try:
        growth = (await bench(make, PLAN, quiet)).growth
    finally:
        for descriptor in [fd for one in made for fd in one.leaked]:
            os.close(descriptor)
    assert growth is not None and growth.episodes == 40
    leaked = growth.after.descriptors - growth.before.descriptors
    assert leaked == pytest.approx(40, abs=10)  # other threads of this process may open and close some
