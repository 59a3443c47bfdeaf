"""How fast the parts of a run are, each alone: measured on a machine, or given in a file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from agentgym.config import build
from agentgym.yaml import read_yaml

TRAIN_SCALING = 0.96
CHANCE = 0.05  # of a rate that was measured; what differs by more is doubted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds and tokens a second of one replica and one trainer process, each alone on its device.

    decode: [sequences at a time, tokens a second of all of them together], in ascending order. context: tokens that
    each of these sequences had in the mean; 0 is not known. prefill: tokens of prompts a second. join_s: for which
    requests that join others in their batch hold them up, besides their prompts' tokens. train: tokens a second;
    train_fixed_s: of each step besides. train_scaling: what is left of a process's rate for each doubling of the
    processes. publish_s: the trainer's part of a weight update, update_s: the generators'. host_s: of the controller's
    core, for each turn; env_s: for which a turn waits on the environment. turns: of episodes, each a list of turns,
    [tokens of new context, sampled tokens]. signal: the share of groups that are trained on. cores: of the host, which
    processes without a GPU share; 0 is this machine's. cores_scaling: what is left of a core's speed while others
    compute beside it. policy: with which it was measured, as `policy_of` says it; empty is not known.
    """

    decode: tuple[tuple[int, float], ...]
    prefill: float
    train: float
    turns: tuple[tuple[tuple[int, int], ...], ...]
    join_s: float = 0.0
    train_fixed_s: float = 0.0
    train_scaling: float = TRAIN_SCALING
    publish_s: float = 0.0
    update_s: float = 0.0
    host_s: float = 0.0
    env_s: float = 0.0
    signal: float = 1.0
    cores: int = 0
    cores_scaling: float = 1.0
    context: int = 0
    policy: str = ""

    def __post_init__(self) -> None:
        if not self.decode or not self.turns or not all(self.turns):
            raise ValueError("rates: decode has no entry, or turns no episode, or an episode no turn")
        for name, value in self._numbers():
            if not math.isfinite(value):
                raise ValueError(f"rates: {name} is {value}; give a finite number")
        if any(a >= b for a, b in itertools.pairwise(at for at, _ in self.decode)):
            raise ValueError(f"rates: decode {[at for at, _ in self.decode]} must ascend in sequences at a time")
        rates = [self.prefill, self.train, self.train_scaling, self.cores_scaling, *(rate for _, rate in self.decode)]
        if min(rates) <= 0 or not 0 < self.signal <= 1 or min(self.decode)[0] < 1:
            raise ValueError("rates: decode, prefill, train and both scalings are above 0, signal a share above 0")
        times = (self.join_s, self.train_fixed_s, self.publish_s, self.update_s, self.host_s, self.env_s)
        if min(*times, self.cores, self.context) < 0 or any(
            min(turn) < 0 for episode in self.turns for turn in episode
        ):
            raise ValueError("rates: no time, no number of tokens and no number of cores can be negative")

    def _numbers(self) -> Iterator[tuple[str, float]]:
        for at, rate in self.decode:
            yield f"decode with {at} sequences", rate
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float):
                yield each.name, value

    def doubts(self) -> Iterator[str]:
        """A sentence for each point of decode that no replica is likely to have: a forecast by it is wrong too."""
        for (few, low), (many, high) in itertools.pairwise(self.decode):
            of_each, before = high / many, low / few
            if of_each > before * (1 + CHANCE):
                yield (
                    f"decode with {many} sequences is {high:,.0f} tokens/s, {of_each:,.0f} of each, and with {few} "
                    f"each has {before:,.0f}: a sequence is not sampled faster beside more others; give at most "
                    f"{before * many:,.0f}, or measure both again"
                )
            elif high < low * (1 - CHANCE):
                yield (
                    f"decode with {many} sequences is {high:,.0f} tokens/s in all, and with {few} it is {low:,.0f}: "
                    "more at a time are not slower together, unless they do not fit into the memory; measure both "
                    f"again, or set generator.max_batch to {few}"
                )

    def decode_rate(self, sequences: int) -> float:
        """Tokens a second of all together; between two measurements on the line through them."""
        first, last = self.decode[0], self.decode[-1]
        if sequences <= first[0]:
            return first[1] * sequences / first[0]
        if sequences >= last[0]:
            return last[1]
        after = next(index for index, (at, _) in enumerate(self.decode) if at >= sequences)
        (left, low), (right, high) = self.decode[after - 1], self.decode[after]
        return low + (high - low) * (sequences - left) / (right - left)


def policy_of(model: str, lora_rank: int) -> str:
    """Describes what is trained: with LoRA a step and a weight update take another time than with all weights."""
    return f"{model}, LoRA of rank {lora_rank}" if lora_rank else model


def constant_lengths(prompt: int, completion: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Episodes of one turn that are all alike."""
    return (((prompt, completion),),)


def read_rates(path: str) -> Rates:
    """Raises UserError for a file that is missing, or in which something is wrong."""
    return build(Rates, read_yaml(path), path)


def tokens_of(episode: Sequence[tuple[int, int]]) -> int:
    """The tokens of a whole episode, context included: what the trainer computes."""
    return sum(new + sampled for new, sampled in episode)
