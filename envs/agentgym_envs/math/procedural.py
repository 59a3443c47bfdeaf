"""Makes arithmetic problems from a seed: five levels, split into train and test by a hash of what is computed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeVar

from agentgym.types import Split

Choice = TypeVar("Choice")

TEST_ONE_IN: Final = 5  # computations that belong to the test split
MAX_FRUITLESS_DRAWS: Final = 2000  # in a row; after that a small level has no new question left


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question and its exact answer. kind: which of the makers below it is from."""

    question: str
    answer: Fraction
    level: int
    kind: str

    @property
    def computation(self) -> str:
        """The same for questions that differ in names or in the order of operands only.

        That is the kind, the numbers in any order, and the answer.
        """
        numbers = sorted(
            Fraction(found.replace(",", "")) for found in re.findall(r"\d+(?:,\d+)*(?:\.\d+)?", self.question)
        )
        return f"{self.kind} {' '.join(map(str, numbers))} = {self.answer}"

    @property
    def split(self) -> Split:
        """Which split it belongs to, whatever the seed."""
        digest = hashlib.sha256(self.computation.encode()).digest()
        return "test" if int.from_bytes(digest[:8], "big") % TEST_ONE_IN == 0 else "train"


class Draws:
    """Random choices by hashing, so that they are the same on every machine and Python."""

    def __init__(self, *seed: int | str) -> None:
        self._seed = "/".join(map(str, seed)).encode()
        self._count = 0

    def integer(self, low: int, high: int) -> int:
        """Draws an integer between low and high, both included."""
        self._count += 1
        digest = hashlib.sha256(self._seed + b"#%d" % self._count).digest()
        return low + int.from_bytes(digest[:8], "big") % (high - low + 1)

    def one_of(self, choices: tuple[Choice, ...]) -> Choice:
        return choices[self.integer(0, len(choices) - 1)]


def problems(split: Split, seed: int, levels: tuple[int, ...], limit: int | None = None) -> Iterator[Problem]:
    """Problems of these levels in equal shares; the test split has no computation twice.

    limit: how many; None is endless. Fewer come when the levels hold fewer questions.
    """
    seen: set[str] = set()
    made = fruitless = index = 0
    while (limit is None or made < limit) and fruitless < MAX_FRUITLESS_DRAWS:
        draws = Draws(seed, index)
        index += 1
        fruitless += 1
        problem = make_problem(draws.one_of(levels), draws)
        if problem.split != split or (split == "test" and problem.computation in seen):
            continue
        if split == "test":
            seen.add(problem.computation)
        fruitless = 0
        made += 1
        yield problem


def make_problem(level: int, draws: Draws) -> Problem:
    """One problem of a level in 1 to 5."""
    maker = draws.one_of(_MAKERS[level])
    question, answer = maker(draws)
    return Problem(question=question, answer=Fraction(answer), level=level, kind=maker.__name__)


Maker = Callable[[Draws], tuple[str, Fraction | int]]


def _sum(draws: Draws) -> tuple[str, int]:
    a, b = draws.integer(0, 99), draws.integer(0, 99)
    return f"What is {a} + {b}?", a + b


def _difference(draws: Draws) -> tuple[str, int]:
    a, b = draws.integer(0, 99), draws.integer(0, 99)
    return f"What is {a} - {b}?", a - b


def _product(draws: Draws) -> tuple[str, int]:
    a, b = draws.integer(2, 99), draws.integer(2, 12)
    return f"What is {a} * {b}?", a * b


def _quotient(draws: Draws) -> tuple[str, int]:
    a, b = draws.integer(2, 99), draws.integer(2, 12)
    return f"What is {a * b} / {b}?", a


def _big_sum(draws: Draws) -> tuple[str, int]:
    a, b = draws.integer(100, 99_999), draws.integer(100, 99_999)
    return f"What is {a:,} + {b:,}?", a + b


def _brackets(draws: Draws) -> tuple[str, int]:
    a, b, c, d = (draws.integer(2, 30) for _ in range(4))
    return f"What is ({a} + {b}) * {c} - {d}?", (a + b) * c - d


def _precedence(draws: Draws) -> tuple[str, int]:
    a, b, c, d = (draws.integer(2, 30) for _ in range(4))
    return f"What is {a} - {b} * {c} + {d}?", a - b * c + d


def _fractions(draws: Draws) -> tuple[str, Fraction]:
    a, b, c, d = (draws.integer(1, 12) for _ in range(4))
    answer = Fraction(a, b + 1) + Fraction(c, d + 1)
    return f"What is {a}/{b + 1} + {c}/{d + 1}? Give a fraction.", answer


def _percentage(draws: Draws) -> tuple[str, Fraction]:
    share, whole = 5 * draws.integer(1, 30), draws.integer(2, 400)
    return f"What is {share}% of {whole}?", Fraction(share * whole, 100)


def _decimals(draws: Draws) -> tuple[str, Fraction]:
    a, b = draws.integer(1, 999), draws.integer(1, 99)
    return f"What is {a / 100:.2f} * {b / 10:.1f}?", Fraction(a * b, 1000)


_NAMES: Final = ("Ada", "Bo", "Chidi", "Dana", "Emil", "Fatou", "Goro", "Hana")
_THINGS: Final = ("apples", "pens", "stamps", "marbles", "tickets", "shells")


def _shopping(draws: Draws) -> tuple[str, int]:
    name, thing = draws.one_of(_NAMES), draws.one_of(_THINGS)
    packs, size, price, change = (draws.integer(*bounds) for bounds in ((2, 9), (3, 12), (2, 9), (1, 50)))
    paid = packs * size * price + change
    question = (
        f"{name} buys {packs} packs of {size} {thing}. Each of the {thing} costs {price} dollars. "
        f"{name} pays with {paid} dollars. How many dollars does {name} get back?"
    )
    return question, change


def _sharing(draws: Draws) -> tuple[str, int]:
    name, thing, friends = draws.one_of(_NAMES), draws.one_of(_THINGS), draws.integer(2, 9)
    each, kept = draws.integer(3, 20), draws.integer(1, 15)
    found = draws.integer(1, 30)
    had = friends * each + kept - found
    if had < 1:
        found, had = 0, friends * each + kept
    question = (
        f"{name} has {had} {thing} and finds {found} more. After keeping {kept} of them, {name} shares the "
        f"rest equally among {friends} friends. How many {thing} does each friend get?"
    )
    return question, each


def _journey(draws: Draws) -> tuple[str, Fraction]:
    name, speed, slow = draws.one_of(_NAMES), draws.integer(20, 90), draws.integer(4, 18)
    hours, minutes = draws.integer(1, 5), 15 * draws.integer(1, 3)
    question = (
        f"{name} drives {hours} hours at {speed} km per hour and then cycles {minutes} minutes at {slow} km "
        "per hour. How many km does the journey have?"
    )
    return question, hours * speed + Fraction(slow * minutes, 60)


def working(question: str) -> str:
    """The expression whose value is the answer of a question that was made here."""
    asked = re.fullmatch(r"What is (.+?)\?(?: Give a fraction\.)?", question)
    if asked:
        return re.sub(r"(\d+)% of (\d+)", r"\1 / 100 * \2", asked[1].replace(",", ""))
    n = re.findall(r"\d+", question)
    if "buys" in question:
        return f"{n[3]} - {n[0]} * {n[1]} * {n[2]}"
    if "finds" in question:
        return f"({n[0]} + {n[1]} - {n[2]}) / {n[3]}"
    assert "cycles" in question, question
    return f"{n[0]} * {n[1]} + {n[2]} * {n[3]} / 60"


_MAKERS: Final[dict[int, tuple[Maker, ...]]] = {
    1: (_sum, _difference),
    2: (_product, _quotient, _big_sum),
    3: (_brackets, _precedence),
    4: (_fractions, _percentage, _decimals),
    5: (_shopping, _sharing, _journey),
}
LEVELS: Final = tuple(_MAKERS)
