"""The suite of rewards."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from dataclasses import replace

from agentgym.rewards import Reward, RewardFunction, marked_reward
from agentgym.rollout.scoring import Scorer
from agentgym.testing.suite import Suite, promise, skip
from agentgym.types import Episode, Json, Message, Stop, Task

REWARD = "agentgym.rewards:Reward"
SAID = ("", " \n", "\x00", "4", "The answer is 4.", "é 世界 🙂 \u2028", "a" * 200_000, "a " * 100_000, '{"a": [1]}')


class RewardConformance(Suite):
    """Subclass it in a test file, `class TestMine(RewardConformance)`, and define `make`.

    Where the reward reads a task's answer or `info`, override `task` and `info` with what its environment gives.
    """

    def make(self) -> Reward | RewardFunction:
        """The reward; a function or an environment's method, marked or not."""
        raise NotImplementedError("define `make`, which returns the reward under test")

    def task(self) -> Task:
        """The task of the episodes that are scored."""
        return Task(task_id="task", prompt=({"role": "user", "content": "2 + 2?"},), answer="4")

    def info(self) -> dict[str, Json]:
        """What the environment recorded in them."""
        return {"success": False}

    @promise(REWARD, "its range, and how long it may take.")
    async def test_whatever_was_said_is_scored_in_its_range_and_in_time(self) -> None:
        reward = self._reward()
        if reward.scope == "group":
            skip("a group is scored by its run")
        async with Scorer([reward], {reward.name: 0.0 if reward.weight == 0 else 1.0}) as scorer:
            for episode in self._episodes():
                await scorer.score(episode)
                assert episode.error is None, f"{episode.episode_id}: {episode.error}"

    @promise(REWARD, "inline: a plain function that runs on the event loop, not in a process.")
    def test_a_plain_function_can_be_imported_by_its_process(self) -> None:
        reward = self._reward()
        if reward.inline or inspect.iscoroutinefunction(reward.function):
            skip("it runs on the event loop")
        try:
            pickle.loads(pickle.dumps(reward.function))
        except Exception as error:  # whatever the function holds
            raise AssertionError(f"it runs in a process of its own, which cannot import it: {error}") from error

    @promise(REWARD, "such a reward must be inline or `async def`")
    def test_a_reward_of_groups_runs_on_the_event_loop(self) -> None:
        reward = self._reward()
        if reward.scope != "group":
            skip("it does not score groups")
        assert reward.inline or inspect.iscoroutinefunction(reward.function), "it is neither"

    def _reward(self) -> Reward:
        made = self.make()
        if isinstance(made, Reward):
            return made
        marked = marked_reward(made)
        if marked is None:
            return Reward(name=getattr(made, "__name__", "reward"), function=made)
        return replace(marked, function=made)  # of a method, with its environment

    def _episodes(self) -> Iterator[Episode]:
        task = self.task()
        for number, said in enumerate(SAID):
            turn: Message = {"role": "assistant", "content": said}
            episode = Episode(episode_id=f"an episode that said {said[:40]!r}", task=task, seed=number, stop=Stop.DONE)
            episode.messages, episode.info = [*task.prompt, turn], self.info()
            yield episode
        yield Episode(
            episode_id="an episode without a turn", task=task, seed=0, messages=[*task.prompt], stop=Stop.TIME
        )
