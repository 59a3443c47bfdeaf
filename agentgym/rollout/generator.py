"""What a rollout needs from a generator, and one group's view of it: its weights, and what was sampled so far."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from agentgym.runs.in_flight import KeptTurn
from agentgym.types import Completion, GenerateRequest


class Generator(Protocol):
    """Replicas of a generator engine behind one interface."""

    @property
    def version(self) -> int:
        """The newest version of the weights that every answering replica holds."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Raises InfraError when no replica could answer, ValueError for a request that cannot be served.

        A completion that takes longer than request.time_s ends there.
        """

    async def update_weights(self, version: int) -> None:
        """Returns when every answering replica samples from `version`."""


class GroupGenerator:
    """A `Generator` for one group.

    version: of the weights when it began. pinned: they sample all of it; otherwise it follows the updates. kept: turns
    of an earlier process. An episode that is played again gets them as long as its requests are the same, and goes on
    from there.
    """

    def __init__(
        self, generator: Generator, *, version: int, pinned: bool = False, kept: Iterable[KeptTurn] = ()
    ) -> None:
        self.version = version
        self.turns: list[KeptTurn] = []
        self._generator = generator
        self._asked = version if pinned else None
        self._kept = {turn.seed: turn for turn in kept}

    @property
    def kept(self) -> list[KeptTurn]:
        """All turns that are known, also those that were not asked for yet."""
        return [*self.turns, *self._kept.values()]

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `Generator`."""
        seed, prompt = request.sampling.seed, digest(request.prompt_ids)
        turn = None if seed is None else self._kept.pop(seed, None)
        if turn is not None and turn.prompt == prompt:
            completion = turn.completion
        else:
            completion = await self._generator.generate(replace(request, version=self._asked))
        if seed is not None:
            self.turns.append(KeptTurn(seed=seed, prompt=prompt, completion=completion))
        return completion

    async def update_weights(self, version: int) -> None:
        raise AssertionError("a group does not update the generators")


def digest(ids: Sequence[int]) -> str:
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=8).hexdigest()
