"""Imperfect demonstrations of `code_exec`: attempts with mistakes, the errors they get, and second attempts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from agentgym.sandbox import CallCase, CaseResult
from agentgym.types import Message
from agentgym_envs.code_exec.environment import feedback_message
from agentgym_envs.code_exec.feedback import case_feedback
from agentgym_envs.code_exec.operations import OPERATIONS, Step, run_steps, source
from agentgym_envs.code_exec.procedural import ENTRY, Pipeline, pipeline
from agentgym_envs.code_exec.sources import pipeline_prompt

Steps = tuple[Step, ...]

HABITS: Mapping[str, str] = {
    "sort_descending": "sort_ascending",
    "keep_below": "keep_above",
    "absolute": "negate",
    "odd_places": "even_places",
    "drop_last": "drop_first",
    "take_last": "take_first",
    "append_count": "append_sum",
    "prepend": "append",
}
"""What the demonstrator mistakes an operation for, more often than not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationConfig:
    """weights: share of each difficulty. turns: the maximum of attempts.

    habit_share: how many of the operations in HABITS are written as what they are mistaken for.
    mistake_share: how many of all other steps are wrong, by slips of every kind. Both also apply to the attempt
    after an error.
    """

    weights: Mapping[int, float] = field(default_factory=lambda: {1: 2.0, 2: 3.0, 3: 3.0, 4: 1.0})
    mistake_share: float = 0.2
    habit_share: float = 0.6
    turns: int = 2
    seed: int = 0


def demonstrations(config: DemonstrationConfig) -> Iterator[list[Message]]:
    """Endless conversations over tasks of the train split; each ends with an attempt."""
    index = 0
    while True:
        name = f"demonstration/{config.seed}/{index}"
        made = pipeline("train", name, config.weights)
        yield conversation(made, random.Random(f"{name}/mistakes"), config)
        index += 1


def conversation(made: Pipeline, rng: random.Random, config: DemonstrationConfig) -> list[Message]:
    problem = made.problem()
    messages: list[Message] = [pipeline_prompt(made.request, problem)]
    for turn in range(config.turns):
        attempt = with_mistakes(made.steps, config, rng)
        messages.append({"role": "assistant", "content": source(attempt, ENTRY)})
        error = _visible_error(made, attempt)
        if error is None or turn + 1 == config.turns:
            break
        messages.append(feedback_message(error))
    return messages


def with_mistakes(steps: Steps, config: DemonstrationConfig, rng: random.Random) -> Steps:
    """The steps as written by someone with habits and slips."""
    written: list[Step] = []
    for step in steps:
        if step.name in HABITS and rng.random() < config.habit_share:
            written.append(_as(HABITS[step.name], step, rng))
        elif rng.random() < config.mistake_share:
            written.extend(_slip(step, rng))
        else:
            written.append(step)
    return tuple(written)


def _slip(step: Step, rng: random.Random) -> list[Step]:
    """Another parameter, an operation that is easily confused with it, or nothing."""
    kinds = ["confused", "confused", "left_out"] + ["parameter"] * (len(step.operation.parameters) > 1)
    kind = rng.choice(kinds)
    if kind == "left_out":
        return []
    if kind == "parameter":
        others = [k for k in step.operation.parameters if k != step.k]
        return [replace(step, k=min(others, key=lambda k: (abs(k - step.k), rng.random())))]
    return [_as(rng.choice(step.operation.confused_with), step, rng)]


def _as(name: str, step: Step, rng: random.Random) -> Step:
    """Another operation, with the same parameter if that is allowed."""
    allowed = OPERATIONS[name].parameters
    k = step.k if step.k in allowed else rng.choice(allowed) if allowed else 0
    return Step(name=name, k=k)


def _visible_error(made: Pipeline, attempt: Steps) -> str | None:
    """What the environment replies to the attempt."""
    for numbers in made.visible_inputs:
        wanted = run_steps(made.steps, list(numbers))
        returned = run_steps(attempt, list(numbers))
        if returned != wanted:
            case = CallCase(args=(list(numbers),), expected=wanted)
            result = CaseResult(passed=False, error=f"returned {returned!r}, expected {wanted!r}")
            return case_feedback(ENTRY, case, result)
    return None
