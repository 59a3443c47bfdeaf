"""Plays the oracle and the probes, and hands the episodes to the judge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agentgym.evals.audit.attempt import Attempt, always, replayed
from agentgym.evals.audit.judge import Judge
from agentgym.evals.audit.oracle import Solution, has_oracle, most_frequent, solving, written
from agentgym.evals.audit.probes import PROBES, STEPS, huge
from agentgym.evals.audit.stage import Played, Says, Stage
from agentgym.evals.audit.watched import Hangs
from agentgym.held_loop import limited
from agentgym.types import Task

HELD_S, HELD_HUGE_S = 0.25, 1.0  # 1.0 s for a text that no agent can write at the usual limits
Schemas = Sequence[Mapping[str, Any]]


async def solve(stage: Stage, tasks: Sequence[Task], judge: Judge, *, together: bool) -> tuple[list[Solution], Schemas]:
    """Solutions of the tasks, and the schemas of the tools. together: they are also played at the same time."""
    report = judge.report
    began = time.monotonic()
    solutions: list[Solution] = []
    unknown: list[Solution] = []
    played: list[Played] = []
    for task in tasks:
        solution = Solution(task, is_oracle=True)
        try:
            with limited(stage.config.env_timeout_s):
                known = has_oracle(stage.environment, task)
            if not known:
                unknown.append(written(task))
                continue
            played.append(await stage.play(task, _oracle(stage, solution), seed=len(solutions)))
        except Exception as error:  # of `solve`: what else fails is on the episode
            report.add_error("solve", f"the oracle raises in task {task.task_id}", error)
            if report.hangs:
                raise Hangs from error
            continue
        solutions.append(solution)
    if not solutions:
        return await _without_oracle(stage, tasks, judge)
    if unknown:
        report.notes.append(f"the oracle knows no way to do {len(unknown)} of {len(tasks)} tasks")
    judge.oracle(solutions, played, time.monotonic() - began)
    await _look_for_held(stage, "oracle", [(one.task, replayed(one)) for one in solutions], played, HELD_S, judge)
    if together:
        await _play_together(stage, solutions, played, judge)
    return [*solutions, *unknown], played[0].schemas


def _oracle(stage: Stage, solution: Solution) -> Says:
    return lambda watched: solving(stage.environment, solution)


async def _without_oracle(stage: Stage, tasks: Sequence[Task], judge: Judge) -> tuple[list[Solution], Schemas]:
    """The tasks' own answers stand in, where they are texts or numbers; what they earn says nothing."""
    judge.report.notes.append(
        "no oracle: the environment has no `solve(task)`, so whether right answers are rewarded, and the gap between "
        "them and the probes, are unknown"
    )
    solutions = [written(task) for task in tasks]
    judge.chance = most_frequent(solutions)
    return solutions, (await stage.play(tasks[0], always(""))).schemas


async def _play_together(stage: Stage, solutions: Sequence[Solution], alone: Sequence[Played], judge: Judge) -> None:
    """What is played at the same time has the same result as alone."""

    def outcomes(played: Sequence[Played]) -> list[tuple[float | None, bool]]:
        return [(one.episode.reward, one.episode.success) for one in played]

    parts = [(one.task, _oracle(stage, Solution(one.task, is_oracle=True))) for one in solutions]
    at_once, _ = await stage.play_all(parts)
    if outcomes(at_once) == outcomes(alone):
        return
    again = [await stage.play(task, says, seed=number) for number, (task, says) in enumerate(parts)]
    pairs = zip(outcomes(alone), outcomes(again), outcomes(at_once), strict=True)
    number, (one, two, three) = next((n, pair) for n, pair in enumerate(pairs) if len(set(pair)) > 1)
    task_id = solutions[number].task.task_id
    if one != two:
        message = f"task {task_id}: the same answer has (reward, success) {one}, then {two}"
        judge.report.add("scores_change", "played again", message)
    else:
        message = f"task {task_id}: (reward, success) {one} alone, {three} while others are played. Is state on `self`?"
        judge.report.add("shared_state", "episodes", message)


def make_attempts(solutions: Sequence[Solution], *, has_tools: bool) -> list[Attempt]:
    """What probes know of each task. The other solutions of a task begin with the next one's.

    First come those that do not say on their way what is right in this one, as in a search among few numbers, and that
    have another last word: an explanation before the same answer makes another text.
    """
    texts = Counter(one.text for one in solutions if one.text and not one.has_calls)
    usual = texts.most_common(1)[0][0] if texts else ""
    attempts = []
    for number, right in enumerate(solutions):
        others: dict[str, Solution] = {}
        for other in [*solutions[number + 1 :], *solutions[:number]]:
            is_other = other.key != right.key and (right.task.answer is None or other.task.answer != right.task.answer)
            if other.said and is_other:
                others.setdefault(other.key, other)
        in_order = sorted(others.values(), key=partial(_likeness, right))
        attempts.append(Attempt(task=right.task, right=right, others=in_order, usual=usual, has_tools=has_tools))
    return attempts


def _likeness(right: Solution, other: Solution) -> int:
    return 2 * any(message in right.said[-1:] for message in other.said) + (other.last_word == right.last_word)


async def play_probe(stage: Stage, name: str, attempts: Sequence[Attempt], judge: Judge) -> None:
    """All variants of a probe in all tasks, or in the first few where it is costly."""
    probe = PROBES[name]
    slow = await _slow_variants(stage, attempts[0], judge) if name == "huge" else set[str]()
    labels: list[str] = []
    parts: list[tuple[Task, Says]] = []
    for attempt in attempts[: probe.max_tasks]:
        for label, says in probe.variants(attempt):
            if label not in slow:
                labels.append(label)
                parts.append((attempt.task, says))
    if not parts:
        return
    played, seconds = await stage.play_all(parts)
    by_variant: dict[str, dict[int, Played]] = {}  # and by task
    for label, (task, _), one in zip(labels, parts, played, strict=True):
        by_variant.setdefault(label, {})[id(task)] = one
    for label, control in probe.controls.items():
        for task_of, one in by_variant.pop(control, {}).items():
            if judge.is_rewarded(one):
                by_variant[label].pop(task_of, None)
    of_variant = {label: [*by_task.values()] for label, by_task in by_variant.items() if by_task}
    judge.probe(name, probe.what, of_variant, probe.figure_only, seconds)
    await _look_for_held(stage, name, parts, played, HELD_HUGE_S if name == "huge" else HELD_S, judge)


async def _slow_variants(stage: Stage, attempt: Attempt, judge: Judge) -> set[str]:
    """What already takes long when it is shorter: it is a finding, and is not played at its whole size."""
    slow: set[str] = set()
    for size in STEPS:
        for label, says in huge(attempt, size):
            if label in slow:
                continue
            held_s = (await stage.play(attempt.task, says)).held_s
            if held_s > HELD_S and (held_s := min(held_s, (await stage.play(attempt.task, says)).held_s)) > HELD_S:
                judge.held("huge", held_s, HELD_S, f"{size} characters of {label}, {attempt.task.task_id}")
                slow.add(label)
    return slow


async def _look_for_held(
    stage: Stage, name: str, parts: Sequence[tuple[Task, Says]], played: Sequence[Played], limit_s: float, judge: Judge
) -> None:
    """Play the slowest once more: a call that is slow two times is slow, not the machine or a first import."""
    slowest = max(range(len(played)), key=lambda number: played[number].held_s)
    if played[slowest].held_s <= limit_s:
        return
    task, says = parts[slowest]
    held_s = min(played[slowest].held_s, (await stage.play(task, says)).held_s)
    if held_s > limit_s:
        judge.held(name, held_s, limit_s, task.task_id)
