"""The steps that procedural tasks are composed of: an English phrase, a Python line and a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Numbers = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step on a list of integers.

    phrases: ways to say it. code: the expression that becomes the new `xs`. apply: the reference, written
    apart from `code` so that a test can hold one against the other. parameters: what `{k}` may be; empty
    when there is none. confused_with: the operations that a careless programmer writes instead.
    """

    name: str
    phrases: tuple[str, ...]
    code: str
    apply: Callable[[Numbers, int], Numbers]
    parameters: tuple[int, ...] = ()
    confused_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operation with its parameter; k is 0 where there is none."""

    name: str
    k: int = 0

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.name]

    def line(self) -> str:
        return "xs = " + self.operation.code.format(k=self.k)

    def phrase(self, choice: int) -> str:
        phrases = self.operation.phrases
        return phrases[choice % len(phrases)].format(k=self.k)


def run_steps(steps: tuple[Step, ...], numbers: Numbers) -> Numbers:
    """What a right solution returns."""
    for step in steps:
        numbers = step.operation.apply(numbers, step.k)
    return numbers


def source(steps: tuple[Step, ...], entry: str) -> str:
    """The reference solution: one line for each step."""
    lines = [f"def {entry}(xs):", *(f"    {step.line()}" for step in steps), "    return xs"]
    return "\n".join(lines)


def _every_other(xs: Numbers, start: int) -> Numbers:
    return [x for at, x in enumerate(xs) if at % 2 == start]


def _without_repeats(xs: Numbers) -> Numbers:
    seen: Numbers = []
    for x in xs:
        if x not in seen:
            seen.append(x)
    return seen


_ALL = (
    Operation(
        name="add",
        phrases=("add {k} to each", "increase all by {k}"),
        code="[x + {k} for x in xs]",
        apply=lambda xs, k: list(map(k.__add__, xs)),
        parameters=(1, 2, 3, 4, 5, 6, 7, 8, 9),
        confused_with=("subtract", "multiply"),
    ),
    Operation(
        name="subtract",
        phrases=("subtract {k} from each", "decrease all by {k}"),
        code="[x - {k} for x in xs]",
        apply=lambda xs, k: list(map((-k).__add__, xs)),
        parameters=(1, 2, 3, 4, 5, 6, 7, 8, 9),
        confused_with=("add",),
    ),
    Operation(
        name="multiply",
        phrases=("multiply each by {k}", "scale all by {k}"),
        code="[x * {k} for x in xs]",
        apply=lambda xs, k: list(map(k.__mul__, xs)),
        parameters=(2, 3, 4, 5),
        confused_with=("add", "remainder"),
    ),
    Operation(
        name="remainder",
        phrases=("take each modulo {k}", "take remainders by {k}"),
        code="[x % {k} for x in xs]",
        apply=lambda xs, k: [divmod(x, k)[1] for x in xs],
        parameters=(2, 3, 4, 5, 6, 7),
        confused_with=("multiply", "keep_multiples"),
    ),
    Operation(
        name="square",
        phrases=("square each", "multiply each by itself"),
        code="[x * x for x in xs]",
        apply=lambda xs, _: [x**2 for x in xs],
        confused_with=("negate", "absolute"),
    ),
    Operation(
        name="negate",
        phrases=("negate each", "flip all signs"),
        code="[-x for x in xs]",
        apply=lambda xs, _: [0 - x for x in xs],
        confused_with=("absolute", "reverse"),
    ),
    Operation(
        name="absolute",
        phrases=("take absolute values", "drop all signs"),
        code="[abs(x) for x in xs]",
        apply=lambda xs, _: [max(x, -x) for x in xs],
        confused_with=("negate", "square"),
    ),
    Operation(
        name="keep_even",
        phrases=("keep the even numbers", "drop the odd numbers"),
        code="[x for x in xs if x % 2 == 0]",
        apply=lambda xs, _: [x for x in xs if not x & 1],
        confused_with=("keep_odd", "even_places"),
    ),
    Operation(
        name="keep_odd",
        phrases=("keep the odd numbers", "drop the even numbers"),
        code="[x for x in xs if x % 2 == 1]",
        apply=lambda xs, _: [x for x in xs if x & 1],
        confused_with=("keep_even", "odd_places"),
    ),
    Operation(
        name="keep_above",
        phrases=("keep numbers above {k}", "keep numbers greater than {k}"),
        code="[x for x in xs if x > {k}]",
        apply=lambda xs, k: list(filter(k.__lt__, xs)),
        parameters=(0, 1, 2, 3, 4, 5),
        confused_with=("keep_below",),
    ),
    Operation(
        name="keep_below",
        phrases=("keep numbers below {k}", "keep numbers less than {k}"),
        code="[x for x in xs if x < {k}]",
        apply=lambda xs, k: list(filter(k.__gt__, xs)),
        parameters=(2, 3, 4, 5, 6, 7, 8),
        confused_with=("keep_above",),
    ),
    Operation(
        name="keep_multiples",
        phrases=("keep multiples of {k}", "keep numbers divisible by {k}"),
        code="[x for x in xs if x % {k} == 0]",
        apply=lambda xs, k: [x for x in xs if x // k * k == x],
        parameters=(3, 4, 5),
        confused_with=("remainder", "keep_above"),
    ),
    Operation(
        name="sort_ascending",
        phrases=("sort ascending", "sort from low to high"),
        code="sorted(xs)",
        apply=lambda xs, _: sorted(xs),
        confused_with=("sort_descending", "reverse"),
    ),
    Operation(
        name="sort_descending",
        phrases=("sort descending", "sort from high to low"),
        code="sorted(xs)[::-1]",
        apply=lambda xs, _: [-x for x in sorted(-x for x in xs)],
        confused_with=("sort_ascending", "reverse"),
    ),
    Operation(
        name="reverse",
        phrases=("reverse the list", "turn the list around"),
        code="xs[::-1]",
        apply=lambda xs, _: list(reversed(xs)),
        confused_with=("sort_descending", "negate"),
    ),
    Operation(
        name="take_first",
        phrases=("take the first {k}", "keep only the first {k}"),
        code="xs[:{k}]",
        apply=lambda xs, k: [x for at, x in enumerate(xs) if at < k],
        parameters=(2, 3, 4),
        confused_with=("drop_first", "take_last"),
    ),
    Operation(
        name="take_last",
        phrases=("take the last {k}", "keep only the last {k}"),
        code="xs[-{k}:]",
        apply=lambda xs, k: [x for at, x in enumerate(xs) if at >= len(xs) - k],
        parameters=(2, 3, 4),
        confused_with=("drop_last", "take_first"),
    ),
    Operation(
        name="drop_first",
        phrases=("drop the first {k}", "skip {k} at the start"),
        code="xs[{k}:]",
        apply=lambda xs, k: [x for at, x in enumerate(xs) if at >= k],
        parameters=(1, 2),
        confused_with=("take_first", "drop_last"),
    ),
    Operation(
        name="drop_last",
        phrases=("drop the last {k}", "skip {k} at the end"),
        code="xs[:-{k}]",
        apply=lambda xs, k: [x for at, x in enumerate(xs) if at < len(xs) - k],
        parameters=(1, 2),
        confused_with=("take_last", "drop_first"),
    ),
    Operation(
        name="unique",
        phrases=("remove repeats", "keep each number once"),
        code="list(dict.fromkeys(xs))",
        apply=lambda xs, _: _without_repeats(xs),
        confused_with=("sort_ascending",),
    ),
    Operation(
        name="even_places",
        phrases=("take every second number", "keep every other number"),
        code="xs[::2]",
        apply=lambda xs, _: _every_other(xs, 0),
        confused_with=("odd_places", "keep_even"),
    ),
    Operation(
        name="odd_places",
        phrases=("take every second number after the first", "skip every other number"),
        code="xs[1::2]",
        apply=lambda xs, _: _every_other(xs, 1),
        confused_with=("even_places", "keep_odd"),
    ),
    Operation(
        name="append",
        phrases=("append {k}", "put {k} at the end"),
        code="xs + [{k}]",
        apply=lambda xs, k: [*xs, k],
        parameters=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
        confused_with=("prepend", "add"),
    ),
    Operation(
        name="prepend",
        phrases=("prepend {k}", "put {k} at the start"),
        code="[{k}] + xs",
        apply=lambda xs, k: [k, *xs],
        parameters=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
        confused_with=("append", "add"),
    ),
    Operation(
        name="append_sum",
        phrases=("append the sum", "put the total at the end"),
        code="xs + [sum(xs)]",
        apply=lambda xs, _: [*xs, sum(xs)],
        confused_with=("append_count",),
    ),
    Operation(
        name="append_count",
        phrases=("append the length", "put the count at the end"),
        code="xs + [len(xs)]",
        apply=lambda xs, _: [*xs, len(list(xs))],
        confused_with=("append_sum",),
    ),
)

OPERATIONS: Mapping[str, Operation] = {operation.name: operation for operation in _ALL}
