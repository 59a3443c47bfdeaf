"""MBPP- and HumanEval-shaped data become tasks with visible and hidden cases."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from agentgym.env import EpisodeContext
from agentgym.errors import UserError
from agentgym.sandbox import AssertCase, CaseResult, GradeRequest, RunStatus, Verdict
from agentgym.types import Task
from agentgym_envs.code_exec.datasets_source import called_name, docstring_cases, humaneval_problem, row_task
from agentgym_envs.code_exec.environment import CodeExec
from agentgym_envs.code_exec.problems import Problem

DATA = Path(__file__).parent.parent / "data"
HUMANEVAL, MBPP = str(DATA / "humaneval_shaped.jsonl"), str(DATA / "mbpp_shaped.jsonl")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def passes(solution: str, problem: Problem) -> bool:
    """Whether our own reference solution satisfies all cases."""
    names: dict[str, object] = {}
    exec(f"{problem.prelude}\n{solution}", names)
    names["candidate"] = names[problem.entry]
    try:
        for case in problem.cases:
            assert isinstance(case, AssertCase)
            exec(case.source, dict(names))
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("path", [HUMANEVAL, MBPP])
def test_each_row_is_in_one_split_and_its_own_solution_is_right(path: str) -> None:
    environment = CodeExec(source="jsonl", path=path)
    test = list(environment.tasks("test"))
    train = list(islice(environment.tasks("train"), 10 - len(test)))
    assert test and train
    assert len({task.task_id for task in test + train}) == 10
    for task in test + train:
        problem = Problem.from_json(task.answer)
        assert problem.visible and problem.hidden and problem.solution
        assert passes(problem.solution, problem)
        wrong = f"def {problem.entry}(*arguments):\n    return 'no'"
        assert not passes(wrong, problem)
        said = task.prompt[0]["content"]
        assert problem.entry in said
        assert not any(case.source in said for case in problem.hidden if isinstance(case, AssertCase))


def test_train_goes_round_in_an_order_that_the_seed_fixes() -> None:
    environment = CodeExec(source="jsonl", path=MBPP)
    num_train = 10 - len(list(environment.tasks("test")))
    names = [task.task_id for task in islice(environment.tasks("train", 1), 3 * num_train)]
    assert set(names[:num_train]) == set(names[num_train : 2 * num_train])
    assert names == [task.task_id for task in islice(environment.tasks("train", 1), 3 * num_train)]
    assert names != [task.task_id for task in islice(environment.tasks("train", 2), 3 * num_train)]


def test_parquet_gives_the_same_tasks(tmp_path: Path) -> None:
    import datasets

    file = tmp_path / "mbpp_shaped.parquet"
    rows = [json.loads(line) for line in Path(MBPP).read_text().splitlines()]
    datasets.Dataset.from_list(rows).to_parquet(str(file))
    from_parquet = list(CodeExec(source="parquet", path=str(file)).tasks("test"))
    assert from_parquet == list(CodeExec(source="jsonl", path=MBPP).tasks("test"))


def test_the_number_of_visible_assertions_can_be_set() -> None:
    for visible, shown in ((0, 0), (2, 2), (9, 2)):  # one of three always stays hidden
        task = next(CodeExec(source="jsonl", path=MBPP, visible=visible).tasks("train"))
        problem = Problem.from_json(task.answer)
        assert (len(problem.visible), len(problem.hidden)) == (shown, 3 - shown)


def test_docstring_examples_are_visible_cases() -> None:
    examples = ">>> g(2)\n    4\n    >>> g(\"a\")\n    'aa'\n    >>> other(1)\n    1"
    prompt = f'def g(x):\n    """Twice.\n\n    {examples}\n    """\n'
    assert [case.source for case in docstring_cases(prompt, "g") if isinstance(case, AssertCase)] == [
        "assert g(2) == 4",
        "assert g(\"a\") == 'aa'",
    ]


def test_an_expected_string_keeps_its_quotes() -> None:
    cases = docstring_cases('def g(x):\n    """\n    >>> g(1)\n    "21"\n    >>> g(2)\n    3"""\n', "g")
    assert [case.source for case in cases if isinstance(case, AssertCase)] == [
        'assert g(1) == "21"',
        "assert g(2) == 3",
    ]


def test_helper_functions_of_a_prompt_are_there_for_the_hidden_tests() -> None:
    prompt = 'def twice(x):\n    return 2 * x\n\n\ndef half(x):\n    """The half of x."""\n'
    problem = humaneval_problem(
        {
            "prompt": prompt,
            "entry_point": "half",
            "canonical_solution": "    return x // 2\n",
            "test": "def check(candidate):\n    assert candidate(twice(7)) == 7\n",
        }
    )
    assert passes(problem.solution, problem)
    assert not passes(prompt, problem)


def test_the_tested_function_is_found_behind_builtins() -> None:
    assert called_name("assert sorted(g(h(1))) == [1]") == "g"
    with pytest.raises(ValueError, match="no function is called"):
        called_name("assert len([]) == 0")


def test_a_row_of_another_shape_is_named() -> None:
    for row, message in (
        ({"task_id": 7, "question": "?"}, "row 7 of x: it has"),
        ({"task_id": 8, "text": "t", "code": "", "test_list": []}, "row 8 of x: test_list"),
        ({"task_id": 9, "text": "t", "code": "", "test_list": ["assert ("]}, "row 9 of x"),
        ({"task_id": 10, "prompt": 1, "entry_point": "f", "test": ""}, "row 10 of x: prompt is text"),
    ):
        with pytest.raises(UserError, match=message):
            row_task(row, split="train", visible=1, where="x")


TREE = {
    "task_id": 20,
    "text": "Write a function to count the nodes of a tree.",
    "code": "class Knot:\n    def __init__(self): self.more = []\n\n"
    "def knots(root):\n    return 1 + sum(map(knots, root.more))",
    "test_setup_code": "tree = Knot()\ntree.more.append(Knot())",
    "test_list": ["assert knots(tree) == 2", "assert knots(tree.more[0]) == 1"],
}


def problem_of(row: dict[str, object]) -> Problem:
    return Problem.from_json(row_task(row, split="train", visible=1, where="x").answer)


def test_a_function_may_have_the_name_of_a_builtin() -> None:
    code = "def max(a, b):\n    return a if a > b else b"
    row: dict[str, object] = {"task_id": 1, "text": "t", "code": code, "test_list": ["assert max(1, 2) == 2"] * 2}
    assert problem_of(row).entry == "max"
    row["test_list"] = ["assert sum([max(1, 2)]) == 2"] * 2
    assert problem_of(row).entry == "max"


def test_tests_have_the_modules_that_the_solution_imports_and_they_name() -> None:
    code = "import re, math as m\nfrom os import path, sep\ndef f(x):\n    return m.pi"
    tests = ["assert f(1) == m.pi", "assert sep and f(2) > 3"]
    problem = problem_of({"task_id": 1, "text": "t", "code": code, "test_list": tests})
    assert problem.prelude.splitlines() == ["import math as m", "from os import sep"]
    assert passes(problem.solution, problem)


def test_a_setup_that_needs_the_solutions_names_is_part_of_each_test() -> None:
    problem = problem_of(TREE)
    assert problem.prelude == "" and passes(problem.solution, problem)
    said = row_task(TREE, split="train", visible=1, where="x").prompt[0]["content"]
    assert "tree = Knot()" in said
    plain = problem_of({**TREE, "test_setup_code": "import math\nhalf = math.pi / 2"})
    assert plain.prelude == "import math\nhalf = math.pi / 2"


def test_a_bad_row_is_named_and_left_out_with_a_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [json.loads(line) for line in Path(MBPP).read_text().splitlines()]
    rows[3]["test_list"] = ["assert len([1]) == 1"]
    rows[5]["test_list"] = []
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    environment = CodeExec(source="jsonl", path=str(file))
    num_train = 8 - len(list(environment.tasks("test")))
    assert len({task.task_id for task in islice(environment.tasks("train"), 2 * num_train)}) == num_train
    [record] = caplog.records
    assert "left out 2 of 10 rows" in record.getMessage() and "row 3 of" in record.getMessage()
    file.write_text("\n".join(map(json.dumps, [rows[3], rows[5]])))
    with pytest.raises(UserError, match=r"row 3 of .*; 2 of 2 rows are like it"):
        list(CodeExec(source="jsonl", path=str(file)).tasks("test"))


class Accepting:
    """A sandbox that accepts every solution of a task whose tests never run."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    async def grade(self, request: GradeRequest) -> Verdict:
        self.codes.append(request.code)
        asserted = "assert" in "".join(
            c.source for c in request.cases if isinstance(c, AssertCase) and "def t" not in c.source
        )
        passed = not asserted or "return x" in request.code
        return Verdict(status=RunStatus.OK, results=tuple(CaseResult(passed=passed) for _ in request.cases))


async def test_tests_that_never_run_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    environment, sandbox = CodeExec(source="jsonl", path=MBPP), Accepting()

    async def play(name: str, test: str) -> None:
        row = {"task_id": name, "text": "t", "code": "", "test_list": [test, test]}
        task: Task = row_task(row, split="train", visible=1, where="rows.jsonl")
        context: EpisodeContext[Problem] = EpisodeContext(task=task, messages=list(task.prompt), sandbox=sandbox)  # type: ignore[arg-type]
        context.state = await environment.start(context)
        context.messages.append({"role": "assistant", "content": "def f(x):\n    return x"})
        context.turn = 1
        assert (await environment.reply(context)).done and context.info["success"] is True

    for _ in range(2):
        await play("idle", "def t():\n    assert f(1) == 2")
        await play("busy", "assert f(1) == 1")
    assert len(sandbox.codes) == 6
    [record] = caplog.records
    assert "rows/idle" in record.getMessage() and "does nothing" in record.getMessage()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text("{not json\n")
    with pytest.raises(UserError, match=r"broken\.jsonl cannot be read"):
        next(CodeExec(source="jsonl", path=str(file)).tasks("train"))


def test_two_rows_make_two_splits_and_one_row_is_refused(tmp_path: Path) -> None:
    lines = Path(MBPP).read_text().splitlines()
    for first in range(0, 10, 2):
        file = tmp_path / f"two{first}.jsonl"
        file.write_text("\n".join(lines[first : first + 2]))
        environment = CodeExec(source="jsonl", path=str(file))
        assert len(list(environment.tasks("test"))) == 1
        assert next(environment.tasks("train")) not in list(environment.tasks("test"))
    single = tmp_path / "one.jsonl"
    single.write_text(lines[0])
    with pytest.raises(UserError, match="no row for the test split"):
        list(CodeExec(source="jsonl", path=str(single)).tasks("test"))
