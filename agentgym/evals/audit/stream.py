"""What an environment's tasks promise: two splits with tasks, apart from each other, the same for a seed, in time."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.evals.audit.findings import Report
from agentgym.evals.audit.structure import content, own_structure, pattern, text
from agentgym.held_loop import each, limited
from agentgym.rollout.tasks import task_fault
from agentgym.types import Split, Task

NUM_TEST, NUM_TRAIN, TRAIN_SEEDS = 512, 256, 3
MAX_TEST = 20_000  # more than that is an endless split, or one that nobody plays
MAX_DRAW_S = 4.0
SLOW_AFTER = 4  # tasks, then a slow stream is not drawn further
SLOW_TASK_S = 0.1  # the mean; tasks are drawn on the event loop that all episodes share


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Tasks of a split. ended: the split has no more. mean_s: of a task after the first. first_s: of the first."""

    tasks: Sequence[Task]
    ended: bool
    mean_s: float
    first_s: float


def draw(environment: Environment[Any], split: Split, seed: int, count: int, limit_s: float = math.inf) -> Drawn:
    """The first tasks of a stream, as many as can be had in a few seconds. limit_s: of each."""
    began = time.perf_counter()
    tasks: list[Task] = []
    first_s = 0.0
    stream = each(partial(environment.tasks, split, seed), limit_s)
    ended = True
    for task in stream:
        tasks.append(task)
        if len(tasks) == 1:
            first_s = time.perf_counter() - began
        spent_s = time.perf_counter() - began
        if len(tasks) > SLOW_AFTER and spent_s - first_s > SLOW_TASK_S * len(tasks):
            break
        if len(tasks) >= count or spent_s > MAX_DRAW_S:
            ended = next(stream, None) is None
            break
    mean_s = (time.perf_counter() - began - first_s) / max(1, len(tasks) - 1)
    return Drawn(tasks=tasks, ended=ended, mean_s=mean_s, first_s=first_s)


def check_stream(
    environment: Environment[Any], seed: int, report: Report, say: Callable[[str], None], *, limit_s: float = math.inf
) -> None:
    """Add what is wrong with the tasks to a report. limit_s: of each task."""
    drawn: dict[Split, list[Drawn]] = {"test": [], "train": []}
    wanted = [("test", seed, NUM_TEST), *(("train", seed + n, NUM_TRAIN) for n in range(TRAIN_SEEDS))]
    for split, one_seed, count in wanted:
        if split not in environment.splits:
            continue
        say(f"drawing {split} tasks")
        try:
            drawn[split].append(draw(environment, split, one_seed, count, limit_s))
        except UserError:  # a package or a file is missing
            raise
        except Exception as error:  # plugin code: anything may come
            report.add_error(f"tasks of {split}", f"tasks({split!r}, {one_seed}) raises", error)
            return
    for split, streams in drawn.items():
        if not streams:
            report.notes.append(f"it has no {split} split")
            continue
        if not streams[0].tasks:
            report.add("no_tasks", split, f"the {split} split has no task with these options and seed {seed}")
            continue
        _check_time(split, streams[0], report)
        _check_tasks(split, streams[0].tasks, report)
    if not (drawn["test"] and drawn["test"][0].tasks):
        return
    try:
        _check_end(environment, drawn["test"][0], seed, report, limit_s)
    except Exception as error:  # plugin code: anything may come
        report.add_error("tasks of test", f"tasks('test', {seed}) raises", error)
    tests, train = _sound(drawn["test"][0].tasks), _sound(task for one in drawn["train"] for task in one.tasks)
    _check_repeats(tests, report)
    if tests and train:
        _check_overlap(environment, train, tests, report, limit_s)


def _check_time(split: str, drawn: Drawn, report: Report) -> None:
    report.figures[f"{split}_task_ms"] = drawn.mean_s * 1000
    if drawn.mean_s > SLOW_TASK_S:
        message = f"{drawn.mean_s:.2f} s a task; at most {SLOW_TASK_S:g} s, since all episodes wait meanwhile"
        report.add("slow_tasks", split, message)


def _check_tasks(split: str, tasks: Sequence[Task], report: Report) -> None:
    for task in tasks:
        fault = _fault(task)
        if not fault and task.split != split:
            fault = f"it says split {task.split!r}, and tasks({split!r}) gave it"
        if fault:
            report.add("bad_task", split, f"task {getattr(task, 'task_id', task)!r:.80}: {fault}")
        elif not _is_json(task.answer):
            report.add("not_json", split, f"task {task.task_id}: the answer {task.answer!r:.120} is not JSON")
    by_id: dict[str, str] = {}
    for task in _sound(tasks):
        if by_id.setdefault(task.task_id, content(task)) != content(task):
            message = f"different tasks have the id {task.task_id!r}: results are compared by ids"
            report.add("equal_ids", split, message)


def _sound(tasks: Iterable[Task]) -> list[Task]:
    """The items that are tasks at all."""
    return [task for task in tasks if not _fault(task)]


def _fault(task: object) -> str:
    if fault := task_fault(task):
        return fault
    assert isinstance(task, Task)
    if not task.prompt:
        return "it has no prompt"
    if task.prompt[-1]["role"] == "assistant":
        return "its prompt ends with an assistant's message, so it is not the agent's turn"
    return ""


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _check_end(environment: Environment[Any], drawn: Drawn, seed: int, report: Report, limit_s: float) -> None:
    report.figures["test_tasks"] = float(len(drawn.tasks))
    if drawn.ended:
        return
    began, count = time.perf_counter(), 0
    for count, _ in enumerate(each(partial(environment.tasks, "test", seed), limit_s), start=1):
        if count > MAX_TEST:
            report.add("endless_test", "test", f"the test split has more than {MAX_TEST} tasks; it has to end")
            return
        if time.perf_counter() - began > MAX_DRAW_S:
            report.notes.append(f"whether the test split ends was not seen: {count} tasks in {MAX_DRAW_S:g} s")
            return
    report.figures["test_tasks"] = float(count)


def _check_repeats(tests: Sequence[Task], report: Report) -> None:
    counts = Counter(map(content, tests))
    if twice := sum(1 for count in counts.values() if count > 1):
        example = next(task for task in tests if counts[content(task)] > 1)
        message = f"{twice} of {len(counts)} test tasks come more than once, {example.task_id} among them"
        report.add("repeated_tasks", "test", message, text(example)[:300])


def _check_overlap(
    environment: Environment[Any], train: Sequence[Task], tests: Sequence[Task], report: Report, limit_s: float
) -> None:
    """Compare the test split with the train split of the same seed and of the next ones, which training takes."""
    shared = _shared(content, train, tests)
    report.figures["content_overlap"] = len(shared) / len(tests)
    if shared:
        message = f"{len(shared)} of {len(tests)} test tasks are among {len(train)} of the train split"
        report.add("split_overlap", "content", message, _examples(shared))
    prompts = _shared(text, train, tests)
    report.figures["prompt_overlap"] = len(prompts) / len(tests)
    if len(prompts) > len(shared):
        report.notes.append(
            f"{len(prompts)} of {len(tests)} test prompts are prompts of the train split, with other answers"
        )
    report.figures["structure_overlap"] = len(_shared(pattern, train, tests)) / len(tests)
    if (structure := own_structure(environment)) is not None:
        try:
            with limited(limit_s):
                alike = _shared(lambda task: json.dumps(structure(task), sort_keys=True), train, tests)
        except Exception as error:  # plugin code: anything may come
            report.add_error("structure", "structure(task) raises", error)
            return
        report.figures["own_structure_overlap"] = len(alike) / len(tests)
        if alike:
            message = f"{len(alike)} of {len(tests)} test tasks have the structure of a train task"
            report.add("structure_overlap", "structure", message, _examples(alike))


def _shared(key: Callable[[Task], str], train: Sequence[Task], tests: Sequence[Task]) -> list[Task]:
    known = set(map(key, train))
    return [task for task in tests if key(task) in known]


def _examples(tasks: Sequence[Task]) -> str:
    return "\n".join(f"{task.task_id}: {text(task)[:200]}" for task in tasks[:3])


def first_tasks(
    environment: Environment[Any], split: Split, seed: int, count: int, limit_s: float = math.inf
) -> list[Task]:
    """The tasks that are played. Of a split that repeats one, it is taken once."""
    chosen: dict[str, Task] = {}
    stream: Iterator[Task] = itertools.islice(each(partial(environment.tasks, split, seed), limit_s), count * 4)
    for task in stream:
        if _fault(task):
            continue
        chosen.setdefault(content(task), task)
        if len(chosen) >= count:
            break
    return list(chosen.values())
