"""code_exec in the embedded interpreter: every procedural task is solvable there, and wrong code fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

import pytest

from agentgym.env import EpisodeContext
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import Sandbox, SandboxBackend
from agentgym.types import Task
from agentgym_envs.code_exec.environment import CodeExec
from agentgym_envs.code_exec.operations import OPERATIONS, Step, run_steps, source
from agentgym_envs.code_exec.problems import Problem
from agentgym_envs.code_exec.procedural import pipelines
from agentgym_envs.code_exec.sources import pipeline_task

pytest.importorskip("pydantic_monty")
DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
async def monty() -> AsyncIterator[SandboxBackend]:
    async with PluginRegistry.discover().sandbox("monty")({}) as backend:
        yield backend


async def attempt(sandbox: Sandbox, task: Task, *answers: str) -> EpisodeContext:
    environment = CodeExec()
    context = EpisodeContext(task=task, messages=list(task.prompt), max_turns=2, sandbox=sandbox)
    context.state = await environment.start(context)
    for answer in answers:
        context.messages.append({"role": "assistant", "content": answer})
        context.turn += 1
        context.messages.extend((await environment.reply(context)).messages)
    await environment.finish(context)
    return context


async def test_the_task_allows_monty(monty: SandboxBackend) -> None:
    spec = next(CodeExec().tasks("train")).sandbox
    assert spec is not None and monty.supports(spec)


async def test_reference_solutions_are_right_and_shortened_ones_wrong(monty: SandboxBackend) -> None:
    used: set[str] = set()
    for made in islice(pipelines("test", 0), 120):
        used |= {step.name for step in made.steps}
        task = pipeline_task(made, task_id="t")
        solved = await attempt(monty, task, made.problem().solution)
        assert solved.info["success"] is True and solved.info["tests_passed"] == 1.0, task.prompt
        failed = await attempt(monty, task, source(made.steps[:-1], "f"))
        assert failed.info["success"] is False, task.prompt
    assert used == set(OPERATIONS)


async def test_feedback_reads_as_in_the_demonstrations(monty: SandboxBackend) -> None:
    made = next(made for made in pipelines("train", 4, {2: 1.0}))
    wrong = (*made.steps[:-1], Step(name="append", k=7))
    context = await attempt(monty, pipeline_task(made, task_id="t"), source(wrong, "f"))
    numbers = list(made.visible_inputs[0])
    assert context.messages[-1]["content"] == (
        f"f({numbers}) returned {run_steps(wrong, list(numbers))}, expected {run_steps(made.steps, list(numbers))}"
    )


async def test_an_error_is_corrected_in_the_second_attempt(monty: SandboxBackend) -> None:
    task = next(CodeExec().tasks("test"))
    right = Problem.from_json(task.answer).solution
    context = await attempt(monty, task, "def f(xs):\n    return xs[", f"```python\n{right}\n```")
    assert "SyntaxError" in context.messages[2]["content"]
    assert context.info["success"] is True and context.info["attempts"] == 2


async def test_code_that_the_interpreter_lacks_is_unsupported_not_failed(monty: SandboxBackend) -> None:
    task = next(CodeExec().tasks("test"))
    context = await attempt(monty, task, "def f(xs):\n    for x in xs:\n        yield x")
    assert context.info["unsupported"] is True and context.info["success"] is None


@pytest.mark.parametrize("name", ["humaneval_shaped.jsonl", "mbpp_shaped.jsonl"])
async def test_data_sets_are_graded(monty: SandboxBackend, name: str) -> None:
    environment = CodeExec(source="jsonl", path=str(DATA / name))
    for task in [*environment.tasks("test"), *islice(environment.tasks("train"), 9)]:
        problem = Problem.from_json(task.answer)
        solved = await attempt(monty, task, problem.solution)
        assert solved.info["success"] is True, (task.task_id, solved.info)
        failed = await attempt(monty, task, f"def {problem.entry}(*arguments):\n    return 'no'")
        assert failed.info["success"] is False, task.task_id
