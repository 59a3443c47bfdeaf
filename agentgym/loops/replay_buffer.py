"""A replay buffer: what was sampled waits here until a step takes it, for loops that want more than slots.

The built-in loop has none: there slots bound the age of what is trained, and nothing is thrown away. A buffer drops
what is too old or too much, so it says at once when that leaves the trainer nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from agentgym.errors import UserError, nearest
from agentgym.import_path import import_object

T = TypeVar("T")
STARVING = 4  # batches' worth of items that were dropped for their age while none was filled


@dataclass(slots=True, kw_only=True)
class Entry(Generic[T]):
    """number: in the order of arrival. policy_version: of the weights that sampled it. num_sampled: how often."""

    item: T
    policy_version: int
    number: int
    num_sampled: int = 0

    def age(self, curr_policy_version: int) -> int:
        return curr_policy_version - self.policy_version


Eviction: TypeAlias = Callable[[Sequence[Entry[Any]], int, "int | None"], Sequence[int]]
"""From the entries in the order of arrival, the newest weights, and max_policy_age: the places of those that stay."""
Sampling: TypeAlias = Callable[[Sequence[Entry[Any]], int, int, random.Random], Sequence[int]]
"""From the entries in the order of arrival, how many are wanted, the newest weights, and the buffer's random numbers:
that many different places, or fewer where it can't or won't give a batch now."""


def evict_by_age(entries: Sequence[Entry[Any]], version: int, max_policy_age: int | None) -> list[int]:
    """What is older than max_policy_age goes."""
    return [at for at, one in enumerate(entries) if max_policy_age is None or one.age(version) <= max_policy_age]


def evict_nothing(entries: Sequence[Entry[Any]], version: int, max_policy_age: int | None) -> list[int]:
    """All stay, whatever their age; only `max_buffer_size` bounds the buffer."""
    return [*range(len(entries))]


def sample_uniformly(entries: Sequence[Entry[Any]], count: int, version: int, rng: random.Random) -> list[int]:
    return rng.sample(range(len(entries)), count)


def sample_oldest(entries: Sequence[Entry[Any]], count: int, version: int, rng: random.Random) -> list[int]:
    """Samples in the order of arrival, so that nothing waits forever."""
    return [*range(count)]


def sample_newest(entries: Sequence[Entry[Any]], count: int, version: int, rng: random.Random) -> list[int]:
    """Samples items of the newest weights first, and of those the latest."""
    order = sorted(range(len(entries)), key=lambda at: (entries[at].policy_version, entries[at].number), reverse=True)
    return order[:count]


EVICTIONS: Mapping[str, Eviction] = {"age": evict_by_age, "none": evict_nothing}
SAMPLINGS: Mapping[str, Sampling] = {"uniform": sample_uniformly, "oldest": sample_oldest, "newest": sample_newest}


@dataclass(slots=True, kw_only=True)
class ReplayBuffer(Generic[T]):
    """Items with the version of the weights that sampled them.

    batch_size: of each of dp_size data-parallel parts. max_policy_age: in versions; None: no bound. max_buffer_size:
    beyond it the oldest weights' first item goes. max_samples: how often an item may be sampled. eviction_policy,
    sample_policy: a name, a function, or its import path. seed: of the sampling. collate: makes what `sample` gives
    of `[dp_size][batch_size]` items, such as tensors.
    Raises UserError for a buffer that can never give a batch.
    """

    batch_size: int
    dp_size: int = 1
    max_policy_age: int | None = None
    max_buffer_size: int | None = None
    max_samples: int = 1
    eviction_policy: str | Eviction = "age"
    sample_policy: str | Sampling = "uniform"
    seed: int = 0
    collate: Callable[[list[list[Any]]], Any] | None = None
    _entries: list[Entry[T]] = field(init=False, default_factory=list)
    _version: int = field(init=False, default=0)
    _added: int = field(init=False, default=0)
    _too_old: Counter[int] = field(init=False, default_factory=Counter)  # ages of what went since the last batch
    _random: random.Random = field(init=False)
    _evict: Eviction = field(init=False)
    _sample: Sampling = field(init=False)

    def __post_init__(self) -> None:
        if min(self.batch_size, self.dp_size, self.max_samples) < 1:
            raise UserError(
                f"replay buffer: batch_size {self.batch_size}, dp_size {self.dp_size} and max_samples "
                f"{self.max_samples} must be at least 1"
            )
        if self.max_policy_age is not None and self.max_policy_age < 0:
            raise UserError(
                f"replay buffer: max_policy_age is {self.max_policy_age}, so everything is too old when it comes and "
                "the trainer would starve; give 0 for items of the newest weights alone, more, or None for no bound"
            )
        self._check_room(self.batch_size)
        self._random = random.Random(self.seed)
        self._evict = _policy("eviction_policy", self.eviction_policy, EVICTIONS)
        self._sample = _policy("sample_policy", self.sample_policy, SAMPLINGS)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, item: T, policy_version: int | None = None) -> None:
        """policy_version: the item's own attribute of that name unless it is given.

        Raises UserError for an item without one, and when the ages of what is added starve the trainer.
        """
        version = getattr(item, "policy_version", None) if policy_version is None else policy_version
        if not isinstance(version, int):
            raise UserError(f"replay buffer: {type(item).__name__} has no policy_version; pass add(item, version)")
        self._entries.append(Entry(item=item, policy_version=version, number=self._added))
        self._added += 1
        self._drop()

    def sample(self, curr_policy_version: int, batch_size: int | None = None) -> Any:
        """`[dp_size][batch_size]` items, or what `collate` makes of them, after dropping what is too old.

        None while there are too few.

        Raises UserError for a batch that the buffer can never hold, and when the ages of what is added starve the
        trainer.
        """
        size = self.batch_size if batch_size is None else batch_size
        self._check_room(size)
        self.evict(curr_policy_version)
        wanted = size * self.dp_size
        if len(self._entries) < wanted:
            return None
        indices = [*self._sample(tuple(self._entries), wanted, self._version, self._random)]
        if len(indices) < wanted:
            return None
        _check_indices("sample_policy", self.sample_policy, indices[:wanted], len(self._entries))
        chosen = [self._entries[at] for at in indices[:wanted]]
        for entry in chosen:
            entry.num_sampled += 1
        self._entries = [entry for entry in self._entries if entry.num_sampled < self.max_samples]
        self._too_old.clear()
        batch = [[entry.item for entry in chosen[part * size : (part + 1) * size]] for part in range(self.dp_size)]
        return batch if self.collate is None else self.collate(batch)

    def evict(self, curr_policy_version: int) -> None:
        """Drop what the eviction policy does not keep. Versions that go back are ignored."""
        self._version = max(self._version, curr_policy_version)
        self._drop()

    def clear(self) -> None:
        self._entries = []
        self._too_old.clear()

    def get_metrics(self) -> dict[str, float]:
        ages = [entry.age(self._version) for entry in self._entries]
        return {
            "replay_buffer/size": float(len(ages)),
            "replay_buffer/age_max": float(max(ages, default=0)),
            "replay_buffer/added_total": float(self._added),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batches depend on; to be pickled by the caller, items included."""
        return {
            "entries": [(one.item, one.policy_version, one.number, one.num_sampled) for one in self._entries],
            "version": self._version,
            "added": self._added,
            "random": self._random.getstate(),
            "too_old": dict(self._too_old),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next batches are those that would have followed `state_dict`."""
        self._entries = [
            Entry(item=item, policy_version=version, number=number, num_sampled=times)
            for item, version, number, times in state["entries"]
        ]
        self._version, self._added = state["version"], state["added"]
        self._too_old = Counter(state["too_old"])
        self._random.setstate(state["random"])

    def _drop(self) -> None:
        kept = [*self._evict(tuple(self._entries), self._version, self.max_policy_age)]
        _check_indices("eviction_policy", self.eviction_policy, kept, len(self._entries))
        stays = set(kept)
        self._too_old.update(e.age(self._version) for at, e in enumerate(self._entries) if at not in stays)
        self._entries = [self._entries[at] for at in sorted(kept)]
        if self.max_buffer_size is not None and len(self._entries) > self.max_buffer_size:
            oldest = min(self._entries, key=lambda entry: (entry.policy_version, entry.number))
            self._entries.remove(oldest)
        wanted = self.batch_size * self.dp_size
        if len(self._entries) < wanted and self._too_old.total() >= STARVING * wanted:
            raise UserError(
                f"replay buffer: the trainer starves: {self._too_old.total()} items of ages {min(self._too_old)} to "
                f"{max(self._too_old)} were dropped since the last batch of {self.batch_size} x {self.dp_size}, "
                f"{len(self._entries)} are left. Raise max_policy_age (it is {self.max_policy_age}), publish weights "
                "less often, or sample faster"
            )

    def _check_room(self, batch_size: int) -> None:
        wanted = batch_size * self.dp_size
        if self.max_buffer_size is not None and self.max_buffer_size < wanted:
            raise UserError(
                f"replay buffer: it holds at most {self.max_buffer_size} items and a batch takes {wanted} "
                f"(batch_size {batch_size} x dp_size {self.dp_size}), so it could never fill; raise max_buffer_size or "
                "lower batch_size"
            )


P = TypeVar("P", bound=Callable[..., Any])


def _policy(what: str, given: str | P, known: Mapping[str, P]) -> P:
    if callable(given):
        return given
    found: Any = known.get(given) or (import_object(given) if ":" in given else None)
    if not callable(found):
        raise UserError(f"replay buffer: no {what} {given!r}.{nearest(given, known)}")
    return found  # type: ignore[no-any-return]


def _check_indices(what: str, policy: object, indices: Sequence[int], size: int) -> None:
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", repr(policy))
    if len(set(indices)) < len(indices) or any(not 0 <= at < size for at in indices):
        raise UserError(
            f"replay buffer: the {what} {name} gave the places {[*indices][:8]} of {size} items; give each place once"
        )
