"""An environment: write a function and submit it; a sandbox judges it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from agentgym import (
    CallCase,
    Environment,
    Episode,
    EpisodeContext,
    GradeRequest,
    Message,
    Reply,
    Sandbox,
    SandboxSpec,
    Split,
    Task,
    Verdict,
)

INPUTS = (0, 1, -3, 10)


class Attempt:
    """The state of an episode; its public method is the tool."""

    def __init__(self, sandbox: Sandbox, request: GradeRequest) -> None:
        self._sandbox, self._request = sandbox, request
        self._verdict: Verdict | None = None

    async def submit(self, source: str) -> str:
        """Hand in the function.

        Args:
            source: Python that defines f.
        """
        self._request = replace(self._request, code=source)
        self._verdict = await self._sandbox.grade(self._request)
        failed = [result.error for result in self._verdict.results if not result.passed]
        return self._verdict.error or next(iter(failed), "All cases pass.")


class Kata(Environment[Attempt]):
    """Write a linear function. Recorded in `info`: success (bool), tests_passed, size (characters that were judged)."""

    name = "kata"
    rewards = {"success": 1.0, "short": 0.5}
    max_turns = 3
    tools = Attempt

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        pairs = [(a, b) for a in range(2, 14) for b in range(14)]
        for a, b in sorted(pairs, key=lambda pair: hashlib.sha256(f"{seed}/{pair}".encode()).digest()):
            if ((a + b) % 5 == 0) == (split == "test"):
                text = f"Write a Python function f(x) that returns {a} * x + {b}. Call submit with its source."
                yield Task(
                    task_id=f"kata/{a}-{b}",
                    prompt=({"role": "user", "content": text},),
                    answer=[a, b],
                    sandbox=SandboxSpec(grades=True),
                    split=split,
                )

    async def start(self, context: EpisodeContext[Attempt]) -> Attempt:
        context.info.update(success=False, tests_passed=0.0, size=0)
        assert context.sandbox is not None
        a, b = context.task.answer
        cases = tuple(CallCase(args=(x,), expected=a * x + b) for x in INPUTS)
        return Attempt(context.sandbox, GradeRequest(code="", entry="f", cases=cases))

    async def reply(self, context: EpisodeContext[Attempt]) -> Reply:
        """A turn without a call ends the episode; where nothing was submitted, its text is."""
        attempt = context.state
        if attempt._verdict is None:
            await attempt.submit(context.messages[-1]["content"])
        assert attempt._verdict is not None
        passed = sum(result.passed for result in attempt._verdict.results)
        context.info.update(success=attempt._verdict.passed, tests_passed=passed / len(INPUTS))
        context.info["size"] = len(attempt._request.code)
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message]:
        a, b = task.answer
        function = {"name": "submit", "arguments": {"source": f"def f(x):\n    return {a} * x + {b}\n"}}
        call = {"type": "function", "id": "1", "function": function}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"role": "assistant", "content": "Done."}


def short(episode: Episode) -> float:
    """1 for nothing, towards 0 for much that was submitted."""
    size = episode.info.get("size", 0)
    assert isinstance(size, int)
    return 1 / (1 + size / 100)
