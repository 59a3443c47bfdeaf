"""The demonstrations of `math` are right without habits, and with them leave something to learn."""

from __future__ import annotations

import random
from itertools import islice

from agentgym_envs.math.answers import find_answer
from agentgym_envs.math.procedural import Problem, problems
from apps.sft.math_demonstrations import HABITS, MathDemonstrationConfig, math_conversation, math_demonstrations

TASKS = list(islice(problems("train", 3, (1, 2)), 1500))


def is_right(problem: Problem, config: MathDemonstrationConfig, seed: int = 0) -> bool:
    prompt, said = math_conversation(problem, random.Random(seed), config)
    assert problem.question in prompt["content"]
    found = find_answer(said["content"])
    assert found.marked and found.number is not None and len(said["content"]) <= 64
    return found.number.value == problem.answer


def test_without_habits_and_mistakes_every_answer_is_right() -> None:
    config = MathDemonstrationConfig(habit_share=0, mistake_share=0)
    assert [problem for problem in TASKS if not is_right(problem, config)] == []


def test_every_habit_makes_a_good_part_of_its_kind_wrong() -> None:
    config = MathDemonstrationConfig(habit_share=1, mistake_share=0)
    right = {kind: [is_right(problem, config) for problem in TASKS if problem.kind == kind] for kind in HABITS}
    shares = {kind: sum(flags) / len(flags) for kind, flags in right.items()}
    assert all(share < 0.6 for share in shares.values()), shares


def test_an_imitator_would_start_in_the_middle() -> None:
    config = MathDemonstrationConfig()
    right = [is_right(problem, config, seed) for seed, problem in enumerate(TASKS)]
    assert 0.45 < sum(right) / len(right) < 0.57


def test_the_seed_alone_decides_the_conversations() -> None:
    one, same, other = (list(islice(math_demonstrations(MathDemonstrationConfig(seed=seed)), 30)) for seed in (5, 5, 6))
    assert one == same and one != other
