"""Groups as they are ordered and played: in the controller, or by a rollout worker in another process."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import IO, Any, Protocol, cast

from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.generator import GroupGenerator
from agentgym.rollout.group import play_group
from agentgym.rollout.token_prefix import TokenPrefix
from agentgym.runs.in_flight import KeptTurn
from agentgym.types import FinishReason, Group, Task, Turn, VersionSpan

Turns = Mapping[int, Sequence[KeptTurn]]
"""Sampled turns by group id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrder:
    """A group to play: all that its episodes depend on, besides the recipe and the weights.

    version: of the weights when it began. pinned: they sample all of it. kept: turns that were sampled already, which
    the same requests get again.
    """

    task: Task
    group_id: int
    version: int
    size: int
    run_seed: int
    pinned: bool = False
    kept: tuple[KeptTurn, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Figures of what other processes play, by name; empty where the groups are played in this one.

    times_s: of activity, by kind, since they were read last: of the process with the most. sandbox: as of a sandbox.
    generator: of the requests to the generators, with their `demand`. workers: of the processes.
    """

    times_s: Mapping[str, float] = field(default_factory=dict)
    sandbox: Mapping[str, float] = field(default_factory=dict)
    generator: Mapping[str, float] = field(default_factory=dict)
    workers: Mapping[str, float] = field(default_factory=dict)


HERE = Elsewhere()
"""All groups are played in this process."""


class Rollouts(Protocol):
    """Plays the groups of a run; `GroupPlayer` does it in this process."""

    async def play(self, order: GroupOrder) -> Group:
        """The finished group, scored. What breaks in an episode is on the episode."""

    async def turns(self) -> Turns:
        """What was sampled so far of the groups that are being played."""

    async def elsewhere(self) -> Elsewhere:
        """Figures of other processes."""


@dataclass(slots=True, kw_only=True)
class GroupPlayer:
    """Plays groups here, with the player's generator, environment and rewards."""

    player: EpisodePlayer
    _playing: dict[int, GroupGenerator] = field(default_factory=dict)

    async def play(self, order: GroupOrder) -> Group:
        """See `Rollouts`."""
        view = GroupGenerator(self.player.generator, version=order.version, pinned=order.pinned, kept=order.kept)
        self._playing[order.group_id] = view
        try:
            return await self._play(replace(self.player, generator=view), order)
        finally:
            self._playing.pop(order.group_id, None)  # a loop of one's own may play a number twice

    async def turns(self) -> Turns:
        """See `Rollouts`."""
        return {group_id: tuple(view.kept) for group_id, view in self._playing.items()}

    async def elsewhere(self) -> Elsewhere:
        """See `Rollouts`."""
        return HERE

    async def _play(self, player: EpisodePlayer, order: GroupOrder) -> Group:
        return await play_group(player, order.task, group_id=order.group_id, size=order.size, run_seed=order.run_seed)


def _setters(of: type) -> list[Callable[[object, Any], None]]:
    """Of the fields of a frozen dataclass with slots, in order."""
    return [getattr(of, one.name).__set__ for one in fields(cast("Any", of))]


_SET_VERSION, _SET_START, _SET_END = _setters(VersionSpan)
_SET_PROMPT, _SET_IDS, _SET_LOGPROBS, _SET_VERSIONS, _SET_FINISH, _SET_MASKED, _SET_ROUTES = _setters(Turn)


def sent_span(version: int, start: int, end: int) -> VersionSpan:
    """A span that was checked where it was made: a fifth of the time that the pickle of a dataclass takes."""
    span: VersionSpan = object.__new__(VersionSpan)
    _SET_VERSION(span, version)
    _SET_START(span, start)
    _SET_END(span, end)
    return span


def sent_turn(
    prompt: Any, length: int, ids: Any, logprobs: Any, versions: Any, finish: FinishReason, masked: bool, routes: Any
) -> Turn:
    """The same of a turn. prompt: an array, of which `length` are its own, or ids of its own where that is below 0."""
    turn: Turn = object.__new__(Turn)
    _SET_PROMPT(turn, prompt if length < 0 else TokenPrefix.first(prompt, length))
    _SET_IDS(turn, ids)
    _SET_LOGPROBS(turn, logprobs)
    _SET_VERSIONS(turn, versions)
    _SET_FINISH(turn, finish)
    _SET_MASKED(turn, masked)
    _SET_ROUTES(turn, routes)
    return turn


class _Pickler(pickle.Pickler):
    """Writes the ids of an episode's contexts once, of which each turn's are a beginning, and equal spans once."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._versions: dict[tuple[VersionSpan, ...], tuple[VersionSpan, ...]] = {}

    def reducer_override(self, thing: object) -> Any:
        if type(thing) is Turn:
            prompt: Any = thing.prompt_ids
            ids, length = (prompt.shared()[1]) if type(prompt) is TokenPrefix else (prompt, -1)
            versions = self._versions.setdefault(thing.versions, thing.versions)
            sampled = (thing.completion_ids, thing.logprobs, versions, thing.finish_reason, thing.masked, thing.routes)
            return sent_turn, (ids, length, *sampled)
        if type(thing) is VersionSpan:
            return sent_span, (thing.version, thing.start, thing.end)
        return NotImplemented


def pack(group: Group) -> bytes:
    """A group for another process of this run, linear in its tokens; `pickle.loads` reads it."""
    written = io.BytesIO()
    _Pickler(written).dump(group)
    return written.getvalue()
