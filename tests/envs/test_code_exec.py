"""The code_exec environment: attempts are graded, visible failures are shown, hidden ones never."""

from __future__ import annotations

from itertools import islice

import pytest

from agentgym.env import EpisodeContext, Reply
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import CallCase, CaseResult, GradeRequest, Limits, RunResult, RunStatus, Verdict
from agentgym.types import Task
from agentgym_envs.code_exec.answers import find_code
from agentgym_envs.code_exec.environment import CodeExec
from agentgym_envs.code_exec.problems import Problem
from agentgym_envs.code_exec.sources import make_source

LIMITS = Limits()


class Judge:
    """A sandbox that runs nothing: it gives out verdicts by the code's first comment."""

    name = "judge"

    def __init__(self) -> None:
        self.requests: list[GradeRequest] = []

    async def run(self, code: str, *, stdin: str = "", limits: Limits = LIMITS) -> RunResult:
        raise NotImplementedError

    async def grade(self, request: GradeRequest) -> Verdict:
        self.requests.append(request)
        visible, hidden = 1, len(request.cases) - 1
        passed = CaseResult(passed=True)
        hidden_failure = CaseResult(passed=False, error="returned 'SECRET', expected 'HIDDEN'")
        if "# right" in request.code:
            return Verdict(status=RunStatus.OK, results=(passed,) * (visible + hidden))
        if "# only visible" in request.code:
            return Verdict(status=RunStatus.OK, results=(passed, *[hidden_failure] * (hidden - 1), passed))
        if "# wrong" in request.code:
            failure = CaseResult(passed=False, error="returned [9], expected [8]")
            return Verdict(status=RunStatus.OK, results=(failure, *[hidden_failure] * hidden))
        if "# raises" in request.code:
            failure = CaseResult(passed=False, error="raised KeyError: 1")
            return Verdict(status=RunStatus.OK, results=(failure, *[hidden_failure] * hidden))
        if "# broken" in request.code:
            error = "SyntaxError: invalid syntax (line 2)"
            failure = CaseResult(passed=False, error=error)
            return Verdict(status=RunStatus.ERROR, results=(failure,) * (1 + hidden), error=error)
        if "# late" in request.code:  # the visible case passed, a hidden one hung
            error = "timed out after 5 s"
            late = CaseResult(passed=False, error=error)
            return Verdict(status=RunStatus.TIMEOUT, results=(passed, *[late] * hidden), error=error)
        unreached = CaseResult(passed=False, error="not reached")
        return Verdict(status=RunStatus.UNSUPPORTED, results=(unreached,) * (1 + hidden))


def a_task() -> Task:
    return next(CodeExec().tasks("train", seed=3))


def code(comment: str) -> str:
    return f"def f(xs):  # {comment}\n    return xs"


async def play(
    *answers: str, task: Task | None = None, feedback_chars: int = 200
) -> tuple[EpisodeContext, Reply, Judge]:
    environment, judge = CodeExec(feedback_chars=feedback_chars), Judge()
    task = task or a_task()
    context = EpisodeContext(task=task, messages=list(task.prompt), max_turns=2, sandbox=judge)
    context.state = await environment.start(context)
    for answer in answers:
        context.messages.append({"role": "assistant", "content": answer})
        context.turn += 1
        reply = await environment.reply(context)
        context.messages.extend(reply.messages)
    await environment.finish(context)
    return context, reply, judge


def test_it_is_installed_under_its_name() -> None:
    environment = PluginRegistry.discover().environment("code_exec")()
    assert isinstance(environment, CodeExec)
    assert environment.max_turns == 2 and dict(environment.rewards) == {"success": 1.0}


async def test_a_right_answer_ends_the_episode_successfully() -> None:
    context, reply, judge = await play(code("right"))
    assert reply.done and not reply.invalid and not reply.messages
    assert context.info["success"] is True and context.info["tests_passed"] == 1.0
    assert context.info["attempts"] == 1 and context.info["format_ok"] is True
    assert len(judge.requests) == 1  # one sandbox call an attempt, visible and hidden together
    problem = Problem.from_json(context.task.answer)
    assert judge.requests[0].cases == problem.visible + problem.hidden


async def test_a_visible_failure_is_told_and_the_agent_may_try_again() -> None:
    context, reply, _ = await play(code("wrong"))
    case = Problem.from_json(context.task.answer).visible[0]
    assert isinstance(case, CallCase)
    assert not reply.done
    assert [m["content"] for m in reply.messages] == [f"f({case.args[0]!r}) returned [9], expected [8]"]
    assert context.info["success"] is False and context.info["tests_passed"] == 0.0

    context, reply, _ = await play(code("wrong"), code("right"))
    assert reply.done and context.info["success"] is True and context.info["attempts"] == 2
    verdicts = context.info["verdicts"]
    assert isinstance(verdicts, list) and len(verdicts) == 2


async def test_an_exception_and_a_syntax_error_are_told_as_what_they_are() -> None:
    _, raised, _ = await play(code("raises"))
    assert raised.messages[0]["content"].endswith(") raised KeyError: 1")
    _, broken, _ = await play(code("broken"))
    assert broken.messages[0]["content"] == "SyntaxError: invalid syntax (line 2)"


@pytest.mark.parametrize("comment", ["only visible", "late"])
async def test_a_hidden_failure_ends_the_episode_without_a_word(comment: str) -> None:
    context, reply, _ = await play(code(comment))
    assert reply.done and reply.messages == () and context.info["success"] is False
    share = context.info["tests_passed"]
    assert isinstance(share, float) and 0.0 <= share < 1.0


async def test_nothing_hidden_is_ever_said() -> None:
    for comment in ("wrong", "raises", "broken", "only visible", "late"):
        context, _, _ = await play(code(comment), code(comment))
        said = "\n".join(m["content"] for m in context.messages if m["role"] != "assistant")
        assert "SECRET" not in said and "HIDDEN" not in said
        for case in Problem.from_json(context.task.answer).hidden:
            assert isinstance(case, CallCase) and repr(case.args[0]) not in said.replace("[]", "")


async def test_no_code_breaks_the_rules() -> None:
    for answer in ("I don't know", "", "x = 1", "```python\nprint(1)\n```", "def g(xs):\n    return xs"):
        context, reply, judge = await play(answer)
        assert reply.done and reply.invalid
        assert context.info["format_ok"] is False and context.info["success"] is False
        assert context.info["tests_passed"] == 0.0 and not judge.requests


async def test_unsupported_code_is_not_scored() -> None:
    context, reply, _ = await play(code("odd"))
    assert reply.done and not reply.invalid and context.info["unsupported"] is True
    assert context.info["success"] is None and context.info["tests_passed"] is None


async def test_feedback_is_cut_to_its_limit() -> None:
    _, reply, _ = await play(code("wrong"), feedback_chars=20)
    assert len(reply.messages[0]["content"]) == 20


async def test_a_missing_sandbox_or_a_short_verdict_is_infrastructure() -> None:
    task = a_task()
    context = EpisodeContext(task=task, messages=[{"role": "assistant", "content": code("right")}])
    environment = CodeExec()
    context.state = await environment.start(context)
    with pytest.raises(InfraError, match="without a sandbox"):
        await environment.reply(context)

    class Forgetful(Judge):
        async def grade(self, request: GradeRequest) -> Verdict:
            return Verdict(status=RunStatus.OK, results=(CaseResult(passed=True),), error="out of fuel")

    context.sandbox = Forgetful()
    with pytest.raises(InfraError, match=r"judged 1 of \d+ cases: out of fuel"):
        await environment.reply(context)

    class Unable(Judge):
        async def grade(self, request: GradeRequest) -> Verdict:
            return Verdict(status=RunStatus.UNSUPPORTED, results=(), error="it runs nothing")

    context.sandbox = Unable()
    assert (await environment.reply(context)).done
    assert context.info["unsupported"] is True and context.info["verdicts"][-1]["error"] == "it runs nothing"


async def test_one_object_serves_overlapping_episodes() -> None:
    environment, judge = CodeExec(), Judge()
    tasks = list(islice(environment.tasks("train"), 2))
    contexts = [EpisodeContext(task=t, messages=list(t.prompt), max_turns=2, sandbox=judge) for t in tasks]
    for context in contexts:
        context.state = await environment.start(context)
    for context, comment in zip(contexts, ("right", "wrong"), strict=True):
        context.messages.append({"role": "assistant", "content": code(comment)})
        context.turn += 1
        await environment.reply(context)
    assert [context.info["success"] for context in contexts] == [True, False]


def test_code_is_found_bare_fenced_and_after_thinking() -> None:
    assert find_code("def f(x):\n    return x", "f") == "def f(x):\n    return x\n"
    assert find_code("Sure:\n```python\ndef f(x):\n    return 1\n```\nDone.", "f") == "def f(x):\n    return 1\n"
    two = "```py\ndef f(x):\n    return 1\n```\nbetter:\n```\ndef f(x):\n    return 2\n```"
    assert find_code(two, "f") == "def f(x):\n    return 2\n"
    assert find_code("```python\ndef f(x):\n    return 3", "f") == "def f(x):\n    return 3\n"  # cut off
    assert find_code("<think>def f(x): no</think>def f(x): return 4", "f") == "def f(x): return 4\n"
    assert find_code("<think>def f(x): return 4", "f") is None
    assert find_code("def ff(x): return 4", "f") is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("procedual", {}, "Did you mean 'procedural'"),
        ("procedural", {"max_dificulty": 2}, "Did you mean 'max_difficulty'"),
        ("procedural", {"max_difficulty": 9}, "give 1 to 4"),
        ("procedural", {"max_difficulty": True}, "whole number"),
        ("procedural", {"weights": {7: 1.0}}, "no difficulty 7"),
        ("procedural", {"weights": {"2": -1}}, "the share of 2"),
        ("procedural", {"weights": {4: 1.0}, "max_difficulty": 2}, "leave no task"),
        ("procedural", {"weights": "hard"}, "map a difficulty"),
        ("procedural", {"visible": 0}, "at least 1"),
        ("jsonl", {}, "needs `path`"),
        ("jsonl", {"path": "/nowhere.jsonl"}, "no file"),
        ("parquet", {"path": 3}, "is a string"),
        ("hub", {}, "needs `dataset`"),
    ],
)
def test_wrong_options_are_explained(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_source(name, options)


def test_wrong_limits_are_explained() -> None:
    with pytest.raises(UserError, match="feedback_chars"):
        CodeExec(feedback_chars=3)
