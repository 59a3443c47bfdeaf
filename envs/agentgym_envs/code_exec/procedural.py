"""Makes tasks from a seed alone: pipelines over lists of integers, graded by their length."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentgym.sandbox import CallCase
from agentgym.types import Split
from agentgym_envs.code_exec.operations import OPERATIONS, Numbers, Step, run_steps, source
from agentgym_envs.code_exec.problems import Problem

ENTRY = "f"
MAX_DIFFICULTY = 4
DEFAULT_WEIGHTS: Mapping[int, float] = {1: 1.0, 2: 3.0, 3: 4.0, 4: 2.0}
TEST_SHARE = 8  # one behaviour in this many belongs to the test split
# They decide the split: a change of them makes another environment, so give that another version.
PROBES = ((3, -7, 0, 12, 5, 3, -2, 8, 11), (-9, 4, 4, 7, -1, 6), (10, 2, -3, 1, 2, 9), (9, -4, 5, -8))
_FRUITLESS_DRAWS = 1000  # in a row; after that a small level has no new program left
_LARGEST = 200  # no value of an example is further from 0: long numbers cost tokens and teach nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A composed program, the words it is asked for in, and the inputs that judge it."""

    steps: tuple[Step, ...]
    wording: tuple[int, ...]  # which phrase of each step
    visible_inputs: tuple[tuple[int, ...], ...]
    hidden_inputs: tuple[tuple[int, ...], ...]

    @property
    def difficulty(self) -> int:
        return len(self.steps)

    @property
    def request(self) -> str:
        parts = [step.phrase(choice) for step, choice in zip(self.steps, self.wording, strict=True)]
        return ", then ".join(parts)

    @property
    def split(self) -> Split:
        return split_of(self.steps)

    def problem(self) -> Problem:
        return Problem(
            entry=ENTRY,
            visible=tuple(self._case(numbers) for numbers in self.visible_inputs),
            hidden=tuple(self._case(numbers) for numbers in self.hidden_inputs),
            solution=source(self.steps, ENTRY),
        )

    def _case(self, numbers: tuple[int, ...]) -> CallCase:
        return CallCase(args=(list(numbers),), expected=run_steps(self.steps, list(numbers)))


def behaviour(steps: tuple[Step, ...]) -> bytes:
    """A digest of what a program does with the probes, the same for all programs that do the same."""
    outputs = [run_steps(steps, list(numbers)) for numbers in PROBES]
    return hashlib.sha256(repr(outputs).encode()).digest()


def split_of(steps: tuple[Step, ...]) -> Split:
    """The split, by what the program does, so that no other way to write it, wording or input changes it."""
    return "test" if int.from_bytes(behaviour(steps)[:8], "big") % TEST_SHARE == 0 else "train"


def pipelines(
    split: Split, seed: int, weights: Mapping[int, float] = DEFAULT_WEIGHTS, *, num_visible: int = 1
) -> Iterator[Pipeline]:
    """The same on every machine: they depend on the arguments alone.

    Train is endless. Test has no behaviour twice, and ends when these difficulties have no other.
    """
    seen: set[bytes] = set()
    index = fruitless = 0
    while fruitless < _FRUITLESS_DRAWS:
        made = pipeline(split, f"{seed}/{split}/{index}", weights, num_visible=num_visible)
        index += 1
        if split == "test":
            does = behaviour(made.steps)
            if does in seen:
                fruitless += 1
                continue
            seen.add(does)
        fruitless = 0
        yield made


def pipeline(split: Split, name: str, weights: Mapping[int, float], *, num_visible: int = 1) -> Pipeline:
    """The pipeline that follows from a name."""
    digest = hashlib.sha256(name.encode()).digest()
    rng = random.Random(int.from_bytes(digest, "big"))
    length = rng.choices(list(weights), list(weights.values()))[0]
    while True:  # a draw may be of the other split, or hold a step that changes nothing
        steps = tuple(_draw_step(rng) for _ in range(length))
        if len({step.name for step in steps}) < length or split_of(steps) != split:
            continue
        wording = tuple(rng.randrange(2) for _ in steps)
        visible = _telling_inputs(rng, steps, num_visible)
        hidden = _hidden_inputs(rng, steps)
        if visible is not None and hidden is not None:
            return Pipeline(steps=steps, wording=wording, visible_inputs=visible, hidden_inputs=hidden)


def _draw_step(rng: random.Random) -> Step:
    operation = OPERATIONS[rng.choice(list(OPERATIONS))]
    return Step(name=operation.name, k=rng.choice(operation.parameters) if operation.parameters else 0)


def _telling_inputs(rng: random.Random, steps: tuple[Step, ...], count: int) -> tuple[tuple[int, ...], ...] | None:
    """Examples in which every step shows: leaving any one out gives another result, and none is empty."""
    found: list[tuple[int, ...]] = []
    for _ in range(12 * count):
        numbers = _draw_numbers(rng, low=-4, high=9, shortest=4, longest=6)
        if numbers not in found and _discriminates(steps, numbers):
            found.append(numbers)
        if len(found) == count:
            return tuple(found)
    return None


def _hidden_inputs(rng: random.Random, steps: tuple[Step, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Six inputs, the empty list among them; at least two must distinguish every step."""
    drawn = [_draw_numbers(rng, low=-9, high=12, shortest=3, longest=9) for _ in range(5)]
    results = [run_steps(steps, list(numbers)) for numbers in drawn]
    if sum(_discriminates(steps, numbers) for numbers in drawn) < 2 or len({tuple(r) for r in results}) < 4:
        return None
    return (*drawn, ())


def _discriminates(steps: tuple[Step, ...], numbers: tuple[int, ...]) -> bool:
    result = run_steps(steps, list(numbers))
    if not result or max(map(abs, result)) > _LARGEST:
        return False
    return all(run_steps(steps[:at] + steps[at + 1 :], list(numbers)) != result for at in range(len(steps)))


def _draw_numbers(rng: random.Random, *, low: int, high: int, shortest: int, longest: int) -> tuple[int, ...]:
    numbers: Numbers = [rng.randint(low, high) for _ in range(rng.randint(shortest, longest))]
    if rng.random() < 0.5:  # a repeat, so that removing repeats shows
        numbers[rng.randrange(len(numbers))] = numbers[0]
    return tuple(numbers)
