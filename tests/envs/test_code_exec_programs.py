"""Rows about programs that read standard input become tasks, and are graded by what is printed."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.sandbox import CaseResult, StdioCase
from agentgym_envs.code_exec.answers import defines, find_code
from agentgym_envs.code_exec.datasets_source import row_task
from agentgym_envs.code_exec.environment import CodeExec
from agentgym_envs.code_exec.feedback import case_feedback
from agentgym_envs.code_exec.problems import Problem

STDIO = str(Path(__file__).parent.parent / "data" / "stdio_shaped.jsonl")


def printed(program: str, stdin: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What our own reference solution prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        exec(program, {})
    return out.getvalue()


def test_each_row_is_a_program_with_examples_and_hidden_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    environment = CodeExec(source="jsonl", path=STDIO, visible=1)
    test = list(environment.tasks("test"))
    rows = [json.loads(line) for line in Path(STDIO).read_text().splitlines()]
    assert 0 < len(test) < len(rows)
    for row in rows:
        task = row_task(row, split="train", visible=1, where=STDIO)
        problem = Problem.from_json(task.answer)
        assert problem.entry == "" and len(problem.visible) == 1 and len(problem.hidden) == 2
        assert not task.sandbox.allow_interpreters
        for case, stdin, expected in zip(problem.cases, row["inputs"], row["outputs"], strict=True):
            assert isinstance(case, StdioCase)
            assert (case.stdin, case.expected) == (stdin, expected)
            if not case.tolerance:
                assert printed(problem.solution, stdin, monkeypatch) == expected
        said = task.prompt[0]["content"]
        assert f"Input:\n{row['inputs'][0].rstrip()}\nOutput:\n{row['outputs'][0].rstrip()}" in said


@pytest.mark.parametrize(
    "tests",
    [
        {"inputs": ["1\n", "2\n"], "outputs": ["a\n", "b\n"]},
        {"stdin": ["1\n", "2\n"], "expected": ["a\n", "b\n"]},
        {"tests": [{"stdin": "1\n", "expected": "a\n"}, {"input": "2\n", "output": "b\n"}]},
        {"input_output": json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["a\n", "b\n"]})},
        {"test_cases": json.dumps([{"input": "1\n", "output": "a\n"}, {"input": "2\n", "output": "b\n"}])},
        {"public_tests": {"input": ["1\n"], "output": ["a\n"]}, "private_tests": {"input": ["2\n"], "output": ["b\n"]}},
        {"input_output": {"inputs": [["1", ""], "2\n"], "outputs": [["a", ""], "b\n"]}, "inputs": None},
    ],
)
def test_tests_are_found_in_the_shapes_that_data_sets_have(tests: dict[str, object]) -> None:
    row = {"task_id": 1, "question": "Say it.", **tests}
    problem = Problem.from_json(row_task(row, split="train", visible=1, where="x.jsonl").answer)
    assert problem.visible == (StdioCase(stdin="1\n", expected="a\n"),)
    assert problem.hidden == (StdioCase(stdin="2\n", expected="b\n"),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?", "inputs": ["1"], "outputs": []}, "as many inputs as outputs"),
        ({"question": "?", "inputs": [], "outputs": []}, "no hidden test"),
        ({"inputs": ["1"], "outputs": ["2"]}, "no statement"),
        ({"question": "?", "inputs": [1], "outputs": ["2"]}, "is text, not 1"),
        ({"question": "?", "tests": "{"}, "not valid JSON"),
        ({"question": "?", "tests": 3}, "a list or a mapping"),
        ({"question": "?", "tests": {"fn_name": "f", "inputs": [[1]], "outputs": [2]}}, "call a function"),
        ({"question": "?", "inputs": ["1"], "outputs": ["1"], "tolerance": "x"}, "tolerance"),
    ],
)
def test_rows_of_other_shapes_are_explained(row: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        row_task({"task_id": 7, **row}, split="train", visible=1, where="x.jsonl")


def test_a_program_is_the_last_block_or_a_bare_text_that_is_python() -> None:
    assert find_code("First\n```\nprint(1)\n```\nthen\n```python\nprint(2)\n```", "") == "print(2)\n"
    assert find_code("print(input())", "") == "print(input())\n"
    assert find_code("I don't know.", "") is None
    assert find_code("", "") is None


def test_classes_and_methods_are_found_too() -> None:
    assert defines("class Stack:\n    pass\n", "Stack")
    assert defines("class Solution(object):\n    def go(self): pass\n", "Solution.go")
    assert not defines("class Stacks:\n    pass\n", "Stack")
    assert not defines("def Solution(): pass\n", "Solution.go")


def test_a_failing_program_is_told_with_its_input() -> None:
    case = StdioCase(stdin="4 2\n", expected="2")
    failed = CaseResult(passed=False, error="printed '3', expected '2'")
    assert case_feedback("", case, failed) == "On input '4 2' the program printed '3', expected '2'"
    long = case_feedback("", StdioCase(stdin="1 " * 500, expected=""), failed)
    assert len(long) < 200
