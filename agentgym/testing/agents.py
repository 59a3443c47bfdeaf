"""The suite of agents, which play episodes with a scripted policy behind a real endpoint."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from agentgym.agents import Agent
from agentgym.components import find
from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.import_path import import_path_of
from agentgym.rewards import reward
from agentgym.testing.policy import Said, ScriptedGenerator, play_agent
from agentgym.testing.suite import Suite, children, expect, promise
from agentgym.types import Episode, Message, Outcome, Split, Task

AGENT = "agentgym.agents:Agent"
WORDS = ["apple", "boat", "cloud", "deer", "fire", "gold", "hat", "ice"]


class SayWords(Environment):
    """Say a word, and say it again: two answers that hold the word are a success."""

    max_turns = 2

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for word in WORDS:
            prompt: Message = {"role": "user", "content": f"Say the word {word}."}
            yield Task(task_id=word, prompt=(prompt,), answer=word, split=split)

    async def start(self, context: EpisodeContext) -> None:
        context.info.update(success=True, said=[])

    async def reply(self, context: EpisodeContext) -> Reply:
        word, answer = str(context.task.answer), context.messages[-1]["content"]
        context.info["success"] = bool(context.info["success"]) and word in answer
        again: Message = {"role": "user", "content": f"Again, say the word {word}."}
        return Reply(done=True) if context.turn == 2 else Reply(messages=(again,))

    @reward(inline=True)
    def right(self, episode: Episode) -> float:
        return float(episode.success)


class AgentConformance(Suite):
    """Subclass it in a test file, `class TestMine(AgentConformance)`, and define `make`.

    The agent has to pass the policy's answers on in the environment `SayWords`. Where its prompts or its policy's
    answers have a form of their own, override `reply`. It needs the packages of the extra `serve`.
    """

    def make(self) -> Agent:
        """A new agent. Several are made, one after another."""
        raise NotImplementedError("define `make`, which returns a new agent")

    def environment(self) -> Environment:
        """What is played; each of its tasks has to succeed."""
        return SayWords()

    def reply(self, prompt: str) -> Said:
        """What the policy answers to the text of a prompt."""
        words: list[str] = re.findall(r"the word (\w+)", prompt)
        return words[-1]

    @promise(AGENT, "Its fields are its settings.")
    def test_a_recipe_can_choose_it_by_its_import_path(self) -> None:
        kind = type(self.make())
        expect("the class at its import path", find("agents", import_path_of(kind)), kind)

    @promise(f"{AGENT}.check", "Called once before a run.")
    async def test_check_passes_where_it_can_play(self) -> None:
        agent = self.make()
        await agent.check()
        await agent.close()

    @promise(f"{AGENT}.play", "Play one episode to its end.")
    async def test_an_episode_is_played_to_its_end(self) -> None:
        [episode] = await self._play(1)
        assert episode.turns, "it did not ask the policy"

    @promise(AGENT, "Plays episodes, many at a time, each on a context of its own.")
    async def test_episodes_at_the_same_time_do_not_disturb_each_other(self) -> None:
        await self._play(4)

    @promise("agentgym.agents:AgentContext.seed", "equal seeds are to lead to equal choices")
    async def test_equal_seeds_lead_to_the_same_conversation(self) -> None:
        first, again = [*await self._play(1), *await self._play(1)]
        expect("what is said with an equal seed", again.messages, first.messages)

    @promise(f"{AGENT}.play", "When it is cancelled, nothing that it started may be left running.")
    async def test_nothing_is_left_of_an_episode_that_is_cancelled(self) -> None:
        processes, tasks, agent = children(), asyncio.all_tasks(), self.make()
        waiting = ScriptedGenerator(self.reply, delay_s=1e6)
        playing = asyncio.create_task(play_agent(agent, self.environment(), waiting))
        asked = asyncio.create_task(waiting.asked.wait())
        await asyncio.wait([playing, asked], return_when=asyncio.FIRST_COMPLETED)
        assert asked.done(), "the episode ended before the policy was asked"
        playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing
        await agent.close()
        _none_left(processes, tasks)

    @promise(f"{AGENT}.close", "end what episodes shared. Safe to call twice.")
    async def test_close_leaves_nothing_and_is_safe_to_call_twice(self) -> None:
        processes, tasks, agent = children(), asyncio.all_tasks(), self.make()
        await self.make().close()
        await play_agent(agent, self.environment(), self.reply)
        await agent.close()
        await agent.close()
        _none_left(processes, tasks)

    async def _play(self, num_episodes: int) -> list[Episode]:
        """So many tasks at the same time, all of which have to succeed."""
        agent, environment = self.make(), self.environment()
        tasks = list(islice(environment.tasks("test"), num_episodes))
        try:
            plays = (play_agent(agent, environment, self.reply, task=task, seed=7) for task in tasks)
            episodes = await asyncio.gather(*plays)
        finally:
            await agent.close()
        for episode in episodes:
            told = f"task {episode.task.task_id}: stop {episode.stop}, error {episode.error}, info {episode.info}"
            assert episode.outcome is Outcome.SCORED and episode.success, told
        return list(episodes)


def _none_left(processes: set[str], tasks: set[asyncio.Task[object]]) -> None:
    assert not (alive := children() - processes), f"processes are left: {alive}"
    left = {task for task in asyncio.all_tasks() - tasks if not task.done()}
    assert not left, f"tasks are left: {left}"
