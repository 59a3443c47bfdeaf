"""Requests that name the weights which sample them, beside those that follow every update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from agentgym.generators.metrics import summed
from agentgym.generators.native.scheduler import Scheduler
from agentgym.generators.native.weights import DecoderWeights
from agentgym.types import Completion, GenerateRequest


class VersionedScheduler:
    """A `StepScheduler` of several: one follows the updates, and each version that requests name has its own.

    Each has a cache of its own, whose memory is taken as it is written.
    """

    def __init__(self, make: Callable[[DecoderWeights], Scheduler], weights: DecoderWeights) -> None:
        """make: a scheduler for these weights."""
        self._make = make
        self._weights = weights
        self._following = make(weights)
        self._pinned: dict[int, Scheduler] = {}
        self._running: dict[int, Scheduler] = {}  # by ticket
        self._gone: Counter[str] = Counter()  # figures of those that were dropped

    @property
    def version(self) -> int:
        return self._following.version

    @property
    def idle(self) -> bool:
        return all(scheduler.idle for scheduler in self._all)

    def submit(self, ticket: int, request: GenerateRequest) -> None:
        """The version that it names must be held."""
        chosen = self._following if request.version is None else self._pinned[request.version]
        self._running[ticket] = chosen
        chosen.submit(ticket, request)

    def cancel(self, ticket: int) -> None:
        if (scheduler := self._running.pop(ticket, None)) is not None:
            scheduler.cancel(ticket)

    def set_weights(self, version: int, weights: DecoderWeights) -> None:
        """See `StepScheduler`; requests that name a version keep theirs."""
        self._weights = weights
        self._following.set_weights(version, weights)

    def hold(self, version: int, weights: DecoderWeights | None) -> None:
        """Holds this version: requests may name it from now on. weights: None for those of the last update."""
        if version not in self._pinned:
            scheduler = self._pinned[version] = self._make(self._weights if weights is None else weights)
            scheduler.version = version

    def retain(self, versions: Collection[int]) -> None:
        """Requests will name no other version; one that still samples is kept until the next call."""
        for version in [v for v, scheduler in self._pinned.items() if v not in versions and scheduler.idle]:
            self._gone.update(self._pinned.pop(version).metrics())

    def step(self) -> list[tuple[int, Completion]]:
        ended = [one for scheduler in self._all if not scheduler.idle for one in scheduler.step()]
        for ticket, _ in ended:
            del self._running[ticket]
        return ended

    def metrics(self) -> dict[str, float]:
        live = {str(number): scheduler.metrics() for number, scheduler in enumerate(self._all)}
        return summed({"gone": self._gone, **live}, live.keys())

    @property
    def _all(self) -> list[Scheduler]:
        return [self._following, *self._pinned.values()]
