"""Procedural tasks: the same everywhere, splits apart, graded, and solvable."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest

from agentgym.sandbox import AssertCase, CallCase
from agentgym_envs.code_exec.answers import find_code
from agentgym_envs.code_exec.environment import CodeExec
from agentgym_envs.code_exec.operations import OPERATIONS, Step, run_steps, source
from agentgym_envs.code_exec.problems import Problem
from agentgym_envs.code_exec.procedural import MAX_DIFFICULTY, pipeline, pipelines, split_of


def compiled(code: str) -> Callable[[list[int]], object]:
    """The reference solutions are ours, so they may run here."""
    names: dict[str, object] = {}
    exec(code, names)
    function = names["f"]
    assert callable(function)
    return function


def run_code(code: str, argument: list[int]) -> object:
    return compiled(code)(argument)


def test_seeds_give_different_tasks() -> None:
    first, second = (next(CodeExec().tasks("train", seed)) for seed in (0, 1))
    assert first.prompt != second.prompt


def behaviour(code: str, inputs: list[list[int]]) -> str:
    """What the source itself does, on inputs that the split has never seen."""
    function = compiled(code)
    return repr([function(list(numbers)) for numbers in inputs])


def test_no_test_task_behaves_like_a_train_task_or_another_test_task() -> None:
    rng = random.Random(2024)
    inputs = [[rng.randint(-9, 12) for _ in range(rng.randint(1, 9))] for _ in range(50)]
    test = [behaviour(source(made.steps, "f"), inputs) for made in islice(pipelines("test", 0), 512)]
    train = {behaviour(source(made.steps, "f"), inputs) for made in islice(pipelines("train", 1), 3000)}
    assert len(test) == 512
    assert len([found for found in test if found in train]) == 0
    assert len(set(test)) == 512


def test_both_splits_have_every_level_and_every_operation() -> None:
    for split in ("train", "test"):
        made = list(islice(pipelines(split, 3), 512))  # type: ignore[arg-type]
        assert {one.difficulty for one in made} == set(range(1, MAX_DIFFICULTY + 1))
        assert {step.name for one in made for step in one.steps} == set(OPERATIONS)


def test_a_level_with_few_programs_ends_early_instead_of_repeating_or_hanging() -> None:
    made = list(pipelines("test", 0, {1: 1.0}))
    singles = {(Step(name=o.name, k=k),) for o in OPERATIONS.values() for k in o.parameters or (0,)}
    assert {one.steps for one in made} == {steps for steps in singles if split_of(steps) == "test"}
    assert len(made) == len({one.steps for one in made})


def test_difficulty_is_the_number_of_steps() -> None:
    for difficulty in range(1, MAX_DIFFICULTY + 1):
        environment = CodeExec(weights={difficulty: 1.0})
        for task in islice(environment.tasks("train"), 20):
            assert task.difficulty == difficulty
            solution = Problem.from_json(task.answer).solution
            assert len(solution.splitlines()) == difficulty + 2  # def, one line a step, return
    easy = CodeExec(max_difficulty=2)
    assert {task.difficulty for task in islice(easy.tasks("train"), 60)} == {1, 2}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_does_in_code_what_its_reference_does(name: str) -> None:
    inputs = [[], [3], [-3, -3, 4], [5, 1, 5, 0, -7, 12, 8], list(range(-9, 10))]
    operation = OPERATIONS[name]
    for k in operation.parameters or (0,):
        steps = (Step(name=name, k=k),)
        for numbers in inputs:
            assert run_code(source(steps, "f"), list(numbers)) == run_steps(steps, list(numbers))
    assert set(operation.confused_with) <= set(OPERATIONS)


def test_examples_tell_every_step_and_hidden_inputs_stay_hidden() -> None:
    for made in islice(pipelines("train", 2), 100):
        problem = made.problem()
        for case in problem.visible:
            assert isinstance(case, CallCase)
            for left_out in range(len(made.steps)):
                shorter = made.steps[:left_out] + made.steps[left_out + 1 :]
                assert run_steps(shorter, list(made.visible_inputs[0])) != case.expected
    for task in islice(CodeExec().tasks("train", 2), 100):
        problem, said = Problem.from_json(task.answer), task.prompt[0]["content"]
        assert problem.solution not in said
        for case in problem.hidden:
            assert isinstance(case, CallCase) and f"f({case.args[0]!r})" not in said


def test_hidden_cases_reject_what_leaves_out_a_step() -> None:
    for made in islice(pipelines("test", 3), 60):
        hidden = made.problem().hidden
        for left_out in range(len(made.steps)):
            wrong = source(made.steps[:left_out] + made.steps[left_out + 1 :], "f")
            results = [run_code(wrong, list(c.args[0])) == c.expected for c in hidden if isinstance(c, CallCase)]  # type: ignore[call-overload]
            assert not all(results)


def test_a_pipeline_depends_on_its_name_alone() -> None:
    weights = {2: 1.0, 3: 1.0}
    assert pipeline("train", "x", weights) == pipeline("train", "x", weights)
    assert pipeline("train", "x", weights) != pipeline("train", "y", weights)


def test_problems_survive_json() -> None:
    problem = Problem(
        entry="g",
        visible=(CallCase(args=([1, "a", None, 1.5, True],), expected=[[]], tolerance=1e-6),),
        hidden=(AssertCase(source="assert g(1) == (1, 2)"),),
        prelude="import math",
        solution="def g(x): ...",
    )
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
    with pytest.raises(ValueError, match="no JSON form"):
        Problem(entry="g", visible=(), hidden=(CallCase(args=(1,), expected=(1, 2)),)).to_json()
    with pytest.raises(ValueError, match="a problem's 'entry'"):
        Problem.from_json({"entry": 3})


def test_an_instruction_is_a_paragraph_after_every_task_and_is_followed_by_the_oracle() -> None:
    silent, telling = CodeExec(), CodeExec(instruction="In Python.")
    plain, told = (list(islice(environment.tasks("test", 5), 20)) for environment in (silent, telling))
    for task, with_it in zip(plain, told, strict=True):
        said, in_a_block = (str(next(env.solve(task) or iter(()))["content"]) for env in (silent, telling))
        assert not said.startswith("`") and in_a_block.startswith("```python\n") and in_a_block.endswith("\n```")
        assert find_code(said, "f") == find_code(in_a_block, "f") == f"{said}\n"
        ((asked,), (asked_with_it,)) = task.prompt, with_it.prompt
        assert asked_with_it == {**asked, "content": asked["content"] + "\n\nIn Python."}
        assert replace(with_it, prompt=task.prompt) == task
