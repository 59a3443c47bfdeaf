"""Imperfect demonstrations of short plain instructions: with slips, and in several manners of answering."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentgym.rl.demonstrations import Demonstration
from agentgym.types import Message
from apps.sft.instructions import KINDS, WORDS, Instruction, instruction

SYSTEM = ("You are a helpful assistant.", "Answer briefly.", "Follow the instruction.")
MANNERS: Mapping[str, tuple[str, ...]] = {
    "plain": ("{}",),
    "stopped": ("{}.",),
    "introduced": ("The answer is {}.", "It is {}.", "Sure: {}", "Here it is: {}"),
    "explained": (
        "You asked: {request}\n{}",
        "{}\nThat is my answer, and I hope that it helps.",
        "Let me think about it first. I am done now, and the answer is: {}",
    ),
}
_ADJECTIVES = ("small", "large", "old", "young", "quiet", "slow", "bright", "wet", "cold", "warm", "green", "strange")
_PLACES = ("the house", "a lake", "the old bridge", "the garden", "a wide field", "the north", "the sea")
_VERBS = ("stands near", "waits behind", "comes from", "belongs to", "was seen at", "looks like part of")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionDemonstrationConfig:
    """right_share: answers without a slip. manners: share of each manner. system_share: with a system message first.

    talk_share: requests for a sentence or more about something, which have no one answer.
    """

    right_share: float = 0.65
    manners: Mapping[str, float] = field(
        default_factory=lambda: {"plain": 0.65, "stopped": 0.1, "introduced": 0.15, "explained": 0.1}
    )
    system_share: float = 0.2
    talk_share: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if unknown := set(self.manners) - set(MANNERS):
            raise ValueError(f"manners has {sorted(unknown)}; there are {list(MANNERS)}")


def instruction_demonstrations(config: InstructionDemonstrationConfig) -> Iterator[Demonstration]:
    """Endless; instructions are those of the train split."""
    index = 0
    while True:
        name = f"instruction/{config.seed}/{index}"
        rng = random.Random(name)
        talk = rng.random() < config.talk_share
        request, answer = _talk(rng) if talk else _answered(instruction("train", rng, list(KINDS)), rng, config)
        messages: list[Message] = []
        if rng.random() < config.system_share:
            messages.append({"role": "system", "content": rng.choice(SYSTEM)})
        messages += [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
        yield Demonstration(name=name, messages=tuple(messages))
        index += 1


def _answered(asked: Instruction, rng: random.Random, config: InstructionDemonstrationConfig) -> tuple[str, str]:
    right = rng.random() < config.right_share
    said = asked.answer if right else rng.choice(asked.slips)
    manner = rng.choices(list(config.manners), list(config.manners.values()))[0]
    return asked.request, rng.choice(MANNERS[manner]).format(said, request=asked.request)


def _talk(rng: random.Random) -> tuple[str, str]:
    """A request for some text about a thing: a sentence where one is asked for, else one to four."""
    word = rng.choice(WORDS)
    request, longest = rng.choice(
        ((f"Write a sentence about a {word}.", 1), (f"Tell me about the {word}.", 4), (f"What is a {word}?", 2))
    )
    sentences = [
        f"{'The' if n == 0 else 'A'} {rng.choice(_ADJECTIVES)} {word if n == 0 else rng.choice(WORDS)} "
        f"{rng.choice(_VERBS)} {rng.choice(_PLACES)}."
        for n in range(rng.randint(1, longest))
    ]
    return request, " ".join(sentences)
