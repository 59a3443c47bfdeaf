"""Tasks from rows of data, MBPP- and HumanEval-shaped or programs with inputs and outputs: a hub name or a file."""

from __future__ import annotations

import ast
import builtins
import hashlib
import logging
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from agentgym import data_sets
from agentgym.errors import UserError
from agentgym.python_syntax import parse_expression, parse_module
from agentgym.sandbox import AssertCase, Case
from agentgym.types import SandboxSpec, Split, Task
from agentgym_envs.code_exec.problems import Problem, case_text
from agentgym_envs.code_exec.programs import holds_program, program_problem

log = logging.getLogger(__name__)

Row = Mapping[str, object]
Grading: TypeAlias = Literal["all", "official"]
TEST_SHARE: Final = 0.2  # of the rows, where the data has no splits of its own
_WRONG_EXAMPLES = ("median([-10, 4, 6, 1000, 10, 20])",)  # HumanEval/47 says 15.0, and its own tests 8.0
_SANDBOX = SandboxSpec(allow_interpreters=("monty",), grades=True)
_PROGRAM_SANDBOX = SandboxSpec(grades=True)  # an interpreter without standard input is of no use


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """Rows of another shape are left out, with one warning.

    reader: `json`, `parquet` (path: a file) or `hub` (path: a data set's name, subset: its config).

    visible: how many of a row's assertions the agent sees; a HumanEval row shows those in its docstring. grading:
    official takes the benchmark's own tests alone, and its prompt where it has one for a chat.

    test_share: of rows without splits of their own, by a hash of their cases. test_ids: first and last `task_id` of the
    test split instead.
    """

    reader: str
    path: str
    subset: str = ""
    visible: int = 1
    grading: Grading = "all"
    test_share: float = TEST_SHARE
    test_ids: tuple[int, int] | None = None
    notes: dict[Split, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _warned: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.reader != "hub" and not Path(self.path).is_file():
            raise UserError(f"code_exec: there is no file {self.path!r}")
        if self.visible < 0:
            raise UserError(f"code_exec: visible is {self.visible}; give at least 0")
        if not 0 < self.test_share <= 1:
            raise UserError(f"code_exec: test_share is {self.test_share}; give more than 0, and 1 for all rows")

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Train repeats forever, each time in another order; test ends."""
        tasks = self._read(split)
        if not tasks:
            raise UserError(f"code_exec: {self.path} has no row for the {split} split")
        rng = random.Random(seed)
        while True:
            yield from rng.sample(tasks, len(tasks))
            if split == "test":
                return

    def _read(self, split: Split) -> list[Task]:
        splits = _load(self.reader, self.path, self.subset)
        own = {"train", "test"} <= set(splits)
        rows = splits[split] if own else [row for name in sorted(splits) for row in splits[name]]
        tasks = self._row_tasks(rows, split, self.grading)
        if own:
            return tasks
        if self.test_ids is not None:
            first, last = self.test_ids
            held_out = {task.task_id for task in tasks if first <= _number(task) <= last}
            how = f"test_ids {first} to {last}"
        else:  # by the same hash however they are graded, so that no row is in two splits
            held_out = _held_out(self._row_tasks(rows, split, "all"), self.test_share)
            how = f"test_share {self.test_share:g}, by a hash; env.options.test_share 1 takes all"
        kept = [task for task in tasks if (task.task_id in held_out) == (split == "test")]
        if len(kept) < len(tasks):
            self.notes[split] = f"The {split} split is {len(kept)} of the {len(tasks)} rows of {self.path} ({how})"
        return kept

    def _row_tasks(self, rows: Sequence[Row], split: Split, grading: Grading) -> list[Task]:
        """Raises UserError when no row is of a shape that is known."""
        tasks: list[Task] = []
        refused: list[str] = []
        for row in rows:
            try:
                tasks.append(row_task(row, split=split, visible=self.visible, where=self.path, grading=grading))
            except UserError as error:
                refused.append(str(error))
        if not refused:
            return tasks
        if not tasks:
            raise UserError(f"{refused[0]}; {len(refused)} of {len(rows)} rows are like it")
        text = f"left out {len(refused)} of {len(rows)} rows of {self.path}: {'; '.join(refused[:3])}"
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s%s", text, "; …" if len(refused) > 3 else "")
        return tasks


def row_task(row: Row, *, split: Split, visible: int, where: str, grading: Grading = "all") -> Task:
    """A task from one row; raises UserError, naming the row, for one of another shape."""
    try:
        if {"prompt", "entry_point", "test"} <= set(row):
            ask, problem = _humaneval(row)
        elif "test_list" in row:
            ask, problem = _mbpp(row, visible)
        elif holds_program(row):
            ask, problem = program_problem(row, visible)
        else:
            raise ValueError(
                f"it has {sorted(row)}; HumanEval rows have task_id, prompt, entry_point, test, "
                "MBPP rows have task_id, text or prompt, code, test_list, rows of programs have a prompt and inputs "
                "with outputs"
            )
    except (ValueError, SyntaxError) as error:
        raise UserError(f"code_exec: row {row.get('task_id')!r} of {where}: {error}") from error
    if grading == "official":
        ask, problem = _as_official(row, ask, problem)
    return Task(
        task_id=f"{Path(where).stem}/{row.get('task_id')}",
        prompt=({"role": "user", "content": ask},),
        answer=problem.to_json(),
        sandbox=_SANDBOX if problem.entry else _PROGRAM_SANDBOX,
        split=split,
    )


def humaneval_problem(row: Row) -> Problem:
    """A HumanEval row: `check(candidate)` holds the hidden assertions, the docstring the visible ones.

    The prompt is the prelude too: some checks call the helper functions that it gives. Raises ValueError.
    """
    prompt, entry, test = _text(row, "prompt"), _text(row, "entry_point"), _text(row, "test")
    return Problem(
        entry=entry,
        visible=docstring_cases(prompt, entry),
        hidden=(AssertCase(source=f"{test}\ncheck(candidate)"),),
        prelude=prompt,
        solution=prompt + _text(row, "canonical_solution", ""),
    )


def _humaneval(row: Row) -> tuple[str, Problem]:
    """The prompt is a signature with a docstring."""
    problem = humaneval_problem(row)
    return f"Complete this Python function. Reply with the whole of it.\n\n{problem.prelude}", problem


def _mbpp(row: Row, visible: int) -> tuple[str, Problem]:
    tests = row["test_list"]
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
        raise ValueError(f"test_list is a list of assertions, not {tests!r}")
    code, first = _text(row, "code", ""), str(tests[0])
    setup = _text(row, "test_setup_code", "") or _text(row, "test_imports", "")
    imports = "".join(f"{line}\n" for line in needed_imports(code, "\n".join([setup, *map(str, tests)])))
    if free_names(imports + setup):  # the solution's: without them its tests fail, not the task
        tests, setup = [f"{setup}\n{test}" for test in tests], ""
    cases = [AssertCase(source=str(test)) for test in tests]
    seen = min(visible, len(cases) - 1)  # one at least stays hidden
    problem = Problem(
        entry=called_name(first, _defined(code)),
        visible=tuple(cases[:seen]),
        hidden=tuple(cases[seen:]),
        prelude=imports + setup,
        solution=code,
    )
    said = _text(row, "text", "") or _text(row, "prompt", "")
    if not said:
        raise ValueError("it has neither text nor prompt")
    examples = "".join("\n" + case_text(problem.entry, case) for case in problem.visible)
    return f"{said.strip()}\nName the function {problem.entry}.{examples}", problem


def _as_official(row: Row, ask: str, problem: Problem) -> tuple[str, Problem]:
    """One attempt, judged by the row's own tests alone.

    HumanEval's program is the prompt, then the answer: what it imports is there. MBPP's prompt shows all its tests
    (Austin et al. 2021, arXiv:2108.07732, sec. 3.2).
    """
    if "entry_point" in row:
        return ask, replace(problem, visible=(), opening=f"{problem.prelude}\n")
    if "test_list" in row:
        said = (_text(row, "text", "") or _text(row, "prompt", "")).strip()
        tests = "\n".join(map(str, cast(Sequence[object], row["test_list"])))
        ask = f"You are an expert Python programmer, and here is your task: {said} Your code should pass these tests:"
        ask = f"{ask}\n\n{tests}"
    return ask, replace(problem, visible=(), hidden=problem.cases)


def called_name(assertion: str, defined: Collection[str] = ()) -> str:
    """The function that an assertion calls: the outermost call of a name that the solution defines, or else that is
    not a builtin."""
    nodes = ast.walk(parse_module(assertion))  # breadth first, so the outermost comes first
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for name in [*(name for name in called if name in defined), *called]:
        if name in defined or not hasattr(builtins, name):
            return name
    raise ValueError(f"no function is called in {assertion!r}")


def needed_imports(code: str, tests: str) -> list[str]:
    """The solution's own imports of modules that its tests name: they were written to run in one namespace."""
    used = {node.id for node in ast.walk(parse_module(tests)) if isinstance(node, ast.Name)}
    found = []
    for node in _top_level(code):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            node.names = [one for one in node.names if (one.asname or one.name.partition(".")[0]) in used]
            if node.names:
                found.append(ast.unparse(node))
    return found


def free_names(source: str) -> set[str]:
    """Names that it uses and neither binds nor has from Python."""
    nodes = list(ast.walk(parse_module(source)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)} | {
        (one.asname or one.name).partition(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for one in node.names
    }
    bound |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {name.id for name in names} - bound - set(dir(builtins))


def _defined(code: str) -> set[str]:
    return {node.name for node in _top_level(code) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def _top_level(code: str) -> list[ast.stmt]:
    """The statements of a solution; none of one that is no Python: it need not be right."""
    try:
        return parse_module(code).body
    except SyntaxError:
        return []


def docstring_cases(prompt: str, entry: str) -> tuple[Case, ...]:
    """The `>>> entry(…)` examples of a docstring, as assertions."""
    found: list[Case] = []
    lines = prompt.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        match = re.match(rf"\s*>>>\s*({re.escape(entry)}\(.*\))\s*$", line)
        expected = following.strip().removesuffix('"""').strip()
        if match and _parses(match.group(1)) and _parses(expected) and match.group(1) not in _WRONG_EXAMPLES:
            found.append(AssertCase(source=f"assert {match.group(1)} == {expected}"))
    return tuple(found)


def _parses(expression: str) -> bool:
    try:
        parse_expression(expression)
    except SyntaxError:
        return False
    return True


def _text(row: Row, key: str, default: str | None = None) -> str:
    value = row.get(key, default)
    if isinstance(value, (list, tuple)):  # MBPP's sanitized form keeps imports as a list
        return "\n".join(str(line) for line in value)
    if not isinstance(value, str):
        raise ValueError(f"{key} is text, not {value!r}")
    return value


def _held_out(tasks: list[Task], share: float) -> set[str]:
    """The ids of the test split, by a hash of the cases: a row stays in its split in any order, file or wording.

    So few rows that one split would be empty give it the row with the lowest or highest hash; share 1 takes all.
    """
    hashes = {task.task_id: _hash(task) for task in tasks}
    limit = int(Fraction(str(share)) * 2**64)
    if share < 1:
        lowest, highest = min(hashes.values(), default=0), max(hashes.values(), default=0)
        limit = min(max(limit, lowest + 1), highest)
    return {name for name, value in hashes.items() if value < limit}


def _number(task: Task) -> int:
    """The number at the end of a row's id; -1 where there is none."""
    found = re.search(r"[0-9]+\Z", task.task_id)
    return int(found[0]) if found else -1


def _hash(task: Task) -> int:
    problem = Problem.from_json(task.answer)
    text = "\n".join(case_text(problem.entry, case) for case in problem.cases)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _load(reader: str, path: str, subset: str) -> dict[str, list[Row]]:
    """All splits by name. Raises UserError for what cannot be read."""
    data_sets.package("code_exec").disable_progress_bars()
    if reader == "hub":
        own = "rows of your own: --env.options.source jsonl --env.options.path FILE, or agentgym benchmark --data FILE"
        loaded = data_sets.load(path, subset or None, who="code_exec", advice=own)
    else:
        loaded = {"rows": data_sets.load(reader, files=[path], split="train", who="code_exec")}
    return {name: list(rows) for name, rows in loaded.items()}
