"""Short plain instructions with one right answer, and the environment that asks for them: `instructions.py:Obey`."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym import Environment, EpisodeContext, Reply, Split, Task

TEST_SHARE = 8  # one request in this many belongs to the test split
_TEXT = (
    "apple bird boat book bread brick bridge cake camp candle car castle cat chair clock cloud coat corn "
    "cup day deer desk dog door dream drum duck dust earth egg farm field fire fish flag floor flower fog "
    "fox frog game garden gate glass goat gold grass hand hat hill home honey horse house ice ink island "
    "jam key king kite lake lamp leaf lemon light lion map milk mill moon mouse night nut oak ocean orange owl "
    "page paint paper park path pear pen pig plant plum pond queen rain ring river road rock roof root rope rose "
    "sail salt sand school sea seed sheep ship shoe silver sky snow soap song spoon spring star stone storm "
    "sugar sun table tea tent tiger toy train tree valley wall water wheel wind window winter wolf wood"
)
WORDS = _TEXT.split()
_SYLLABLES = [onset + vowel for onset in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A request with its one right answer. slips: wrong answers that a careless person gives, never the right one."""

    kind: str
    request: str
    answer: str
    slips: tuple[str, ...]

    @property
    def split(self) -> Split:
        digest = hashlib.sha256(f"{self.kind}/{self.answer}/{self.request}".encode()).digest()
        return "test" if digest[0] % TEST_SHARE == 0 else "train"


Draw = Callable[[random.Random], tuple[str, str, Sequence[str]]]
"""A request, its answer, and wrong answers; among these may be the right one, which is then left out."""


def instruction(split: Split, rng: random.Random, kinds: Sequence[str]) -> Instruction:
    while True:  # a draw may be of the other split
        kind = rng.choice(kinds)
        request, answer, slips = KINDS[kind](rng)
        drawn = Instruction(
            kind=kind, request=request, answer=answer, slips=tuple(slip for slip in slips if slip and slip != answer)
        )
        if drawn.split == split and drawn.slips:
            return drawn


class Obey(Environment):
    """Do what a short instruction says, and nothing else: the reply has to be the answer alone."""

    name: ClassVar[str] = "obey"
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}

    def __init__(self, *, kinds: Sequence[str] = (), test_tasks: int = 512) -> None:
        """kinds: names of KINDS; empty is all of them."""
        self._kinds = list(kinds or KINDS)
        self._test_tasks = test_tasks

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        rng = random.Random(f"{split}/{seed}")
        number = 0
        while split == "train" or number < self._test_tasks:
            one = instruction(split, rng, self._kinds)
            prompt = ({"role": "user", "content": one.request},)
            yield Task(task_id=f"{one.kind}/{split}/{seed}/{number}", prompt=prompt, answer=one.answer, split=split)
            number += 1

    async def reply(self, context: EpisodeContext) -> Reply:
        context.info["success"] = context.messages[-1]["content"].strip() == context.task.answer
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[dict[str, str]]:
        yield {"role": "assistant", "content": str(task.answer)}


def _word(rng: random.Random) -> str:
    """A common one, or one that is made up."""
    return rng.choice(WORDS) if rng.random() < 0.6 else "".join(rng.choices(_SYLLABLES, k=rng.choice((2, 2, 3))))


def _say(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    word, count = _word(rng), rng.randint(2, 6)
    times = f"{count} times"
    request = rng.choice((f"Say the word {word} {times}.", f"Say {word} {times}.", f"Write {word} {times}."))
    return request, " ".join([word] * count), [" ".join([word] * n) for n in (count - 1, count + 1, 1)]


def _capitals(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    word = _word(rng)
    request = rng.choice((f"Write {word} in capitals.", f"Write the word {word} in capitals.", f"Say {word} loudly."))
    return request, word.upper(), (word, word.capitalize())


def _backwards(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    word = _word(rng)
    right = word[::-1]
    request = rng.choice((f"Write {word} backwards.", f"Reverse the word {word}.", f"Spell {word} in reverse."))
    return request, right, (right[:-1], right[0] + right[2:], word)


def _letter(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    word = _word(rng)
    place, at = rng.choice((("first", 0), ("second", 1), ("last", -1)))
    request = rng.choice((f"Give the {place} letter of {word}.", f"What is the {place} letter of {word}?"))
    return request, word[at], (word[0], word[-1], word[1])


def _length(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    word = _word(rng)
    request = rng.choice((f"How many letters are in {word}?", f"Count the letters of {word}."))
    return request, str(len(word)), (str(len(word) - 1), str(len(word) + 1))


def _compare(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    first, second = rng.sample(range(100), 2)
    what, choose = rng.choice((("larger", max), ("smaller", min)))
    other = min(first, second) if choose is max else max(first, second)
    request = rng.choice((f"Answer with the {what} of {first} and {second}.", f"Which is {what}, {first} or {second}?"))
    return request, str(choose(first, second)), (str(other),)


def _yes_or_no(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    first, second = rng.sample(range(100), 2)
    what, is_so = rng.choice((("larger", first > second), ("smaller", first < second)))
    answers = ("yes", "no") if is_so else ("no", "yes")
    return f"Is {first} {what} than {second}? Answer yes or no.", answers[0], answers[1:]


def _repeat(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    words = [_word(rng) for _ in range(rng.randint(2, 5))]
    text = " ".join(words)
    request = rng.choice((f"Repeat: {text}", f"Repeat {text}, then stop.", f"Copy this: {text}"))
    return request, text, (" ".join(words[:-1]), f"{text} {words[-1]}", " ".join(words[1:]))


def _sort(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    digits = [rng.randrange(10) for _ in range(rng.randint(3, 6))]
    given, right = " ".join(map(str, digits)), sorted(digits)
    swapped = [*right[:1], *right[2:3], *right[1:2], *right[3:]]
    request = rng.choice((f"Sort: {given}", f"Sort the numbers {given}.", f"Put in order: {given}"))
    slips = [swapped, right[:-1], right[1:], digits, right[::-1]]
    return request, " ".join(map(str, right)), [" ".join(map(str, slip)) for slip in slips]


def _pick(rng: random.Random) -> tuple[str, str, Sequence[str]]:
    words = [_word(rng) for _ in range(rng.randint(3, 4))]
    place, at = rng.choice((("first", 0), ("second", 1), ("last", -1)))
    request = rng.choice((f"Give the {place} word: {' '.join(words)}", f"What is the {place} of {', '.join(words)}?"))
    return request, words[at], words


KINDS: Mapping[str, Draw] = {
    "say": _say,
    "capitals": _capitals,
    "backwards": _backwards,
    "letter": _letter,
    "length": _length,
    "compare": _compare,
    "yes_or_no": _yes_or_no,
    "repeat": _repeat,
    "sort": _sort,
    "pick": _pick,
}
