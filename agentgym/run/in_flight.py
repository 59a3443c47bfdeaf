"""The groups that a run has begun and not trained yet: how they are played, kept with checkpoints, and gone on with."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentgym.loops.async_rl import Position
from agentgym.rollout.playing import GroupOrder, Rollouts
from agentgym.runs.folder import RunFolder
from agentgym.runs.in_flight import Begun, InFlightGroups, load_in_flight, save_in_flight, weight_files
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.types import Group, Task
from agentgym.weights.store import WeightStore


@dataclass(slots=True, kw_only=True)
class InFlight:
    """rollouts: plays the groups. pinned: the weights that a group began with sample all of it, whatever is published
    meanwhile.
    """

    folder: RunFolder
    rollouts: Rollouts
    pinned: bool
    _ended: dict[int, Group] = field(default_factory=dict)
    _playing: dict[int, GroupOrder] = field(default_factory=dict)
    _restored: InFlightGroups = field(default_factory=InFlightGroups)  # what the loop has not come to yet

    async def restore(self, position: Position, begin: int, trainer: TrainerClient) -> int:
        """Take over what the checkpoint of a position keeps, from group `begin` on; returns how many had ended."""
        found = load_in_flight(self.folder, position.step, position.next_group)
        self._restored = InFlightGroups(
            ended={group_id: group for group_id, group in found.ended.items() if group_id >= begin},
            begun={group_id: group for group_id, group in found.begun.items() if group_id >= begin},
        )
        older = weight_files(self.folder, position.step)
        if self.pinned and older.is_dir():
            versions = sorted({*position.versions} - {position.step})
            await trainer.call(TrainerActor.restore_versions, str(older), versions)
        return len(self._restored.ended)

    async def play(self, task: Task, group_id: int, *, version: int, newest: int, size: int, run_seed: int) -> Group:
        """A group: as it was kept, or played, from the turns on that were kept.

        version: of the weights when the loop gave it its slot. newest: of the weights now. size: of a group.
        """
        kept = self._restored.ended.pop(group_id, None)
        if kept is not None and kept.task == task and len(kept.episodes) == size:
            self._ended[group_id] = kept
            return kept
        begun = self._restored.begun.pop(group_id, Begun(version=newest, turns=()))
        order = GroupOrder(
            task=task,
            group_id=group_id,
            version=version if self.pinned else begun.version,
            size=size,
            run_seed=run_seed,
            pinned=self.pinned,
            kept=begun.turns,
        )
        self._playing[group_id] = order
        try:
            group = self._ended[group_id] = await self.rollouts.play(order)
        finally:
            del self._playing[group_id]
        return group

    async def save(self, position: Position, trainer: TrainerClient) -> None:
        """What a loop that continues at this position goes on with; before the position is written."""
        turns = await self.rollouts.turns()
        begun = {
            number: Begun(version=order.version, turns=tuple(turns.get(number, order.kept)))
            for number, order in self._playing.items()
        }
        kept = InFlightGroups(ended={**self._restored.ended, **self._ended}, begun={**self._restored.begun, **begun})
        for groups in (kept.ended, kept.begun):
            for number in [number for number in groups if number < position.next_group]:
                del groups[number]
        save_in_flight(self.folder, position.step, position.next_group, kept)
        older = sorted({*position.versions} - {position.step})
        if older:
            await trainer.call(TrainerActor.keep_versions, str(weight_files(self.folder, position.step)), older)

    async def forget(self, position: Position, store: WeightStore) -> None:
        """Forgets, after a step, the groups before this position and the weights that no later group needs."""
        for number in [number for number in self._ended if number < position.next_group]:
            del self._ended[number]
        if self.pinned:
            needed = min((*position.versions, position.step))
            for version in await store.versions():
                if version < needed:
                    await store.delete(version)
