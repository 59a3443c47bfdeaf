"""The calls of a loop that samples tasks and plays them: which task is next, and what became of each."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from agentgym.errors import UserError
from agentgym.recipe import Recipe
from agentgym.rl.advantages import assign_advantages
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.group import InfraMonitor, play_group
from agentgym.rollout.tasks import TaskStream
from agentgym.run.calls import Call
from agentgym.run.gym import Gym
from agentgym.types import Episode, Group, Json, Task

MakeStream = Callable[[int, Json], TaskStream]
"""The recipe's tasks from a number on, given what an earlier stream had learned until there."""


class DatasetCalls:
    """The training tasks, endless. num_sampled: how many were drawn, which is the number of the next one.

    A sampler that learns is told what became of each task by `play_group`, or by `observe` for groups from elsewhere.
    """

    def __init__(self, make_stream: MakeStream, in_flight: int) -> None:
        """in_flight: how many tasks a sampler that learns draws ahead of what was played."""
        self._make_stream, self._in_flight = make_stream, in_flight
        self.sample = Call(self._sample)
        self._begin_at(0, None)

    def _begin_at(self, number: int, state: Json) -> None:
        self.stream = self._make_stream(number, state)
        self.num_sampled = number
        self._waiting: defaultdict[str, deque[int]] = defaultdict(deque)  # numbers of tasks that nobody plays yet

    async def _sample(self) -> Task:
        """Raises UserError where it could only wait for tasks that were sampled and never played."""
        unplayed = sum(map(len, self._waiting.values()))
        learns = type(self.stream).observe is not TaskStream.observe
        if learns and unplayed > self._in_flight:
            raise UserError(
                f"{unplayed} tasks were sampled and not played, and the task sampler waits for what becomes of them: "
                f"play them first (it draws {self._in_flight} ahead), raise loop.max_staleness, or set another "
                "task_sampler"
            )
        number, self.num_sampled = self.num_sampled, self.num_sampled + 1
        task = await self.stream.draw()
        if learns:
            self._waiting[task.task_id].append(number)
        return task

    def begin(self, task: Task) -> int | None:
        """A task is played now. Returns its number; None for one that was not sampled here."""
        numbers = self._waiting.get(task.task_id)
        number = numbers.popleft() if numbers else None
        if numbers is not None and not numbers:
            del self._waiting[task.task_id]
        return number

    def end(self, number: int | None, group: Group) -> None:
        """What became of it."""
        if number is not None:
            self.stream.observe(replace(group, group_id=number))

    def observe(self, group: Group) -> None:
        """A group of a sampled task that `play_group` did not play."""
        self.end(self.begin(group.task), group)

    def state_dict(self, next_task: int | None = None) -> dict[str, Json]:
        """next_task: the first that no step has taken; by default all that were sampled are done."""
        number = self.num_sampled if next_task is None else next_task
        if not 0 <= number <= self.num_sampled:
            raise UserError(f"next_task is {number}, and {self.num_sampled} tasks were sampled: give one of 0 to that")
        try:
            return {"next_task": number, "sampler": self.stream.state(number)}
        except KeyError as unknown:
            raise UserError(
                f"the task sampler learns from what was played, and task {unknown} before next_task {number} was not; "
                "give save the first task that no step has taken, as next_task"
            ) from None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next task is `next_task` of the state."""
        self._begin_at(state["next_task"], state["sampler"])


class EnvironmentCalls:
    """Plays the environment's tasks with the generators, and scores what was played."""

    def __init__(self, gym: Gym, player: EpisodePlayer, recipe: Recipe, dataset: DatasetCalls) -> None:
        self._player, self._recipe, self._dataset = player, recipe, dataset
        self._monitor = InfraMonitor(recipe.rollout.max_infra_error_share)
        self.environment = gym.environment
        self.play_episode = Call(self._play_episode)
        self.play_group = Call(self._play_group)

    async def _play_episode(self, task: Task, *, seed: int = 0, episode_id: str = "episode") -> Episode:
        """Raises nothing for what breaks: the episode's outcome and error say it."""
        episode = await self._player.play(task, episode_id=episode_id, seed=seed)
        self._monitor.add(episode)
        return episode

    async def _play_group(self, task: Task, group_id: int, *, size: int | None = None) -> Group:
        """`size` episodes of one task, with their advantages; by default loop.group_size of them.

        Raises InfraError when too large a share of the last episodes was lost to broken infrastructure.
        """
        loop, number = self._recipe.loop, self._dataset.begin(task)
        group = await play_group(
            self._player, task, group_id=group_id, size=size or loop.group_size, run_seed=loop.seed
        )
        for episode in group.episodes:
            self._monitor.add(episode)
        assign_advantages(group, self._recipe.advantage)
        self._dataset.end(number, group)
        return group
