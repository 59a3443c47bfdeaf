"""`grading: official` beside the official graders, on tasks of our own: where verdicts agree, and where they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest
import pytest_asyncio

from agentgym.env import EpisodeContext, Reply
from agentgym.errors import UserError
from agentgym.sandbox import SandboxBackend
from agentgym_envs.code_exec.datasets_source import Grading, Row, row_task
from agentgym_envs.code_exec.environment import CodeExec
from agentgym_envs.code_exec.problems import Problem
from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig

DATA = Path(__file__).parent.parent / "data"
MBPP = str(DATA / "mbpp_shaped.jsonl")
HUMANEVAL_ROW: Row = {
    "task_id": "own/0",
    "entry_point": "middle",
    "prompt": """from typing import List


def double(x: int) -> int:
    return 2 * x


def middle(xs: List[int]) -> List[int]:
    \"\"\"All but the first and the last.
    >>> middle([1, 2, 3])
    [2]
    >>> middle([7])
    []
    \"\"\"
""",
    "canonical_solution": "    return xs[1:-1]\n",
    "test": """def check(candidate):
    assert candidate([1, 2, 3]) == [2]
    assert double(candidate([4, 5, 6])[0]) == 10
""",
}
MBPP_ROW: Row = {
    "task_id": 12,
    "text": "Write a function to halve a number.",
    "code": "def half(x):\n    return x / 2",
    "test_setup_code": "",
    "test_list": ["assert half(2) == 1", "assert half(4) == 2", "assert half(6) == 3"],
}
ANSWERS = {  # the answer, and whether the official grader, ours as official, and ours with the examples accept it
    "right": ("def middle(xs):\n    return xs[1:-1]", "yes yes yes"),
    "prints": ("def middle(xs):\n    print(xs)\n    return xs[1:-1]", "yes yes yes"),
    "off by one": ("def middle(xs):\n    return xs[1:]", "no no no"),
    "another type": ("def middle(xs):\n    return tuple(xs[1:-1])", "no no no"),
    "without the prompt's imports": ("def middle(xs: List[int]):\n    return xs[1:-1]", "yes yes no"),
    "against an example": ("def middle(xs):\n    return xs[1:-1] if xs[1:] else xs", "yes yes no"),
    "not a def": ("middle = lambda xs: xs[1:-1]", "yes yes no"),
    "an object that equals everything": (
        "class All:\n    def __eq__(self, other): return True\n    def __getitem__(self, key): return 5\n\n"
        "def middle(xs):\n    return All()",
        "yes no no",
    ),
    "expects that reading input fails": (
        "def middle(xs):\n    try:\n        input()\n    except OSError:\n        return xs[1:-1]",
        "yes no no",
    ),
    "another helper": ("def double(x):\n    return x\ndef middle(xs):\n    return xs[1:-1]", "no yes yes"),
}


def official(row: Row, answer: str) -> bool:
    """What human_eval/execution.py runs: prompt, completion and test in one namespace, where input() raises OSError."""

    def no_input(*_: object) -> NoReturn:
        raise OSError

    try:
        exec(f"{row['prompt']}\n{answer}\n{row['test']}\ncheck({row['entry_point']})", {"input": no_input})
    except Exception:
        return False
    return True


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[UnsafeSubprocessBackend]:
    """For the snippets of this file only: it holds nothing back."""
    async with UnsafeSubprocessBackend(UnsafeSubprocessConfig(allow_unsafe=True)) as backend:
        yield backend


async def graded(row: Row, answer: str, sandbox: SandboxBackend, grading: Grading) -> tuple[bool, Reply]:
    environment = CodeExec(source="jsonl", path=MBPP, grading=grading)
    task = row_task(row, split="test", visible=1, where="own", grading=grading)
    context: EpisodeContext[Problem] = EpisodeContext(task=task, messages=list(task.prompt), sandbox=sandbox)
    context.state = await environment.start(context)
    context.messages.append({"role": "assistant", "content": f"```python\n{answer}\n```"})
    context.turn = 1
    reply = await environment.reply(context)
    return context.info["success"] is True, reply


async def test_official_grading_accepts_what_the_official_grader_accepts_but_for_three_kinds(
    sandbox: UnsafeSubprocessBackend,
) -> None:
    gradings: tuple[Grading, ...] = ("official", "all")
    verdicts = await asyncio.gather(
        *(graded(HUMANEVAL_ROW, answer, sandbox, one) for answer, _ in ANSWERS.values() for one in gradings)
    )
    for number, (name, (answer, expected)) in enumerate(ANSWERS.items()):
        (ours, reply), (with_examples, _) = verdicts[2 * number : 2 * number + 2]
        found = (official(HUMANEVAL_ROW, answer), ours, with_examples)
        assert " ".join("yes" if one else "no" for one in found) == expected, name
        assert reply.done, "one attempt"


async def test_all_of_mbpps_tests_are_shown_and_all_decide_the_one_attempt(sandbox: UnsafeSubprocessBackend) -> None:
    task = row_task(MBPP_ROW, split="test", visible=1, where="own", grading="official")
    said = task.prompt[0]["content"]
    assert said.startswith("You are an expert Python programmer, and here is your task: Write a function to halve")
    assert said.endswith("assert half(2) == 1\nassert half(4) == 2\nassert half(6) == 3")
    for answer, success in (("half = lambda x: x / 2", True), ("def half(x):\n    return x + 1", False)):
        passed, reply = await graded(MBPP_ROW, answer, sandbox, "official")
        assert passed is success and reply.done and not reply.messages
    _, second = await graded(MBPP_ROW, "def half(x):\n    return x + 1", sandbox, "all")
    assert second.messages and not second.done, "an example was wrong: one more attempt"


def test_a_test_split_is_a_share_all_rows_or_a_range_of_ids_and_says_so() -> None:
    def split(path: str = MBPP, **options: object) -> tuple[list[int], str]:
        environment = CodeExec(source="jsonl", path=path, **options)
        numbers = sorted(int(task.task_id.rpartition("/")[2]) for task in environment.tasks("test"))
        return numbers, environment.split_note("test")

    everything, note = split(test_share=1)
    assert len(everything) == 10 and note == ""
    few, note = split()
    assert set(few) < set(everything) and f"{len(few)} of the 10 rows of {MBPP} (test_share 0.2" in note
    some, note = split(test_ids=[everything[2], everything[4]])
    assert some == everything[2:5] and f"3 of the 10 rows of {MBPP} (test_ids" in note
    humaneval = str(DATA / "humaneval_shaped.jsonl")
    assert split(humaneval) == split(humaneval, grading="official"), "what one trains on the other does not measure"
    for options, said in (
        ({"grading": "oficial"}, "no grading 'oficial'. Did you mean 'official'"),
        ({"test_share": 0}, "test_share is 0; give more than 0"),
        ({"test_ids": [1]}, "first and last task_id"),
    ):
        with pytest.raises(UserError, match=said):
            split(**options)
