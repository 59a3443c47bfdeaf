"""The shipped agents, which are other people's programs, unchanged: whole episodes, trained as they were sampled."""

from __future__ import annotations

from functools import partial
from itertools import chain, repeat

import pytest
from odd_tokens import OddTokenizer, ScriptedEngine, calling, prove

from agentgym.env import Environment, Reply
from agentgym.policies.by_agent import AgentPlayer
from agentgym.rewards import Reward
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.scoring import Scorer
from agentgym.serve.endpoint import Endpoint
from agentgym.testing import play_agent
from agentgym.text.chat import ChatRenderer
from agentgym.types import Outcome, Stop, Task
from agentgym_plugins.agents.mini_swe import MiniSwe
from agentgym_plugins.agents.openai_agents import OpenaiAgents
from agentgym_plugins.agents.smol import Smolagents

pytestmark = pytest.mark.agents


class Till:
    """Keeps a sum."""

    def __init__(self) -> None:
        self.sum = 0

    def add(self, by: int) -> int:
        """Add to the sum.

        by: how much.
        """
        self.sum += by
        return self.sum


class SumUp(Environment[Till]):
    """The agent adds 3 and says so; the first other answer is answered back."""

    name = "sum_up"
    rewards = {"right": 1.0}
    max_turns = 6
    tools = Till

    def tasks(self, split, seed=0):
        yield Task(task_id="t", prompt=({"role": "system", "content": "Add."}, {"role": "user", "content": "Add 3."}))

    async def start(self, context):
        return Till()

    async def reply(self, context):
        said = context.messages[-1]["content"]
        context.info["success"] = "3" in said and context.state.sum == 3
        if "3" in said or context.turn >= 6:
            return Reply(done=True)
        return Reply(messages=({"role": "user", "content": "How much is it?"},))


class Words(SumUp):
    """The same without tools."""

    tools = None

    async def reply(self, context):
        context.state.sum = 3
        return await super().reply(context)


@pytest.fixture
async def play():
    """play(agent, *says): the episode in which the policy says these texts, proved to be trained as sampled."""
    agents = []

    async def run(agent, *says, environment=SumUp):
        agents.append(agent)
        await agent.check()
        tokenizer = OddTokenizer()
        engine = ScriptedEngine(tokenizer, chain(says, repeat("More than the script.")))
        right = Reward(name="right", function=lambda episode: float(episode.success), inline=True)
        limits = RolloutConfig(max_turn_tokens=4000, max_episode_tokens=100_000, max_retries=0)
        shared = {"renderer": ChatRenderer(tokenizer), "generator": engine, "config": limits, "activity": Activity()}
        async with Endpoint() as endpoint:
            player = AgentPlayer(
                environment=environment(), scorer=Scorer([right], {"right": 1.0}), sandbox=None,
                agent=agent, name="agent", endpoint=endpoint, **shared,
            )  # fmt: skip
            [task] = player.environment.tasks("train")
            episode = await player.play(task, episode_id="e", seed=1)
        prove(episode, engine)
        assert (episode.stop, episode.outcome, episode.reward) == (Stop.DONE, Outcome.SCORED, 1.0), episode.info
        return episode, engine

    yield run
    for agent in agents:
        await agent.close()


ADD = calling("add", '{ "by":3}')


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_openai_agents_calls_the_environments_tools_and_goes_on_when_it_answers_back(play, api):
    episode, engine = await play(OpenaiAgents(api=api, processes=1), ADD, "Done.", "It is 3.")
    assert [(call.name, call.result) for call in episode.tool_calls] == [("add", "3")]
    assert len(episode.turns) == 3 and len(episode.branches) <= 1
    assert engine.tokenizer.decode(engine.requests[0].prompt_ids).startswith("<|im_start|>system\nAdd.")


async def test_openai_agents_is_told_what_is_wrong_with_a_call(play):
    episode, _ = await play(OpenaiAgents(processes=1), calling("add", '{"of":3}'), ADD, "It is 3.")
    assert [call.error for call in episode.tool_calls] == ["arguments", ""]


async def test_smolagents_calls_the_environments_tools_and_goes_on_when_it_answers_back(play):
    final = calling("final_answer", '{"answer" : "Done."}')
    last = calling("final_answer", '{"answer" : "It is 3."}')
    episode, _ = await play(Smolagents(processes=1), ADD, final, last)
    assert [(call.name, call.result) for call in episode.tool_calls] == [("add", "3")] and len(episode.turns) == 3


async def test_mini_swe_submits_what_the_policy_wrote_and_goes_on_when_the_environment_answers_back(play):
    agent = MiniSwe(templates="tiny", where="folder", processes=1)
    episode, _ = await play(agent, "It is $(rm -r /) `odd` 'quoted'", "It is 3.", environment=Words)
    assert [message["content"] for message in episode.messages[2:]] == [
        "It is $(rm -r /) `odd` 'quoted'\n", "How much is it?", "It is 3.\n",
    ]  # fmt: skip
    assert episode.info["agent"] == {"steps": 2, "exit_status": "Submitted"} and len(episode.branches) <= 1


async def test_mini_swe_runs_its_commands_with_its_own_templates(play):
    agent = MiniSwe(where="folder", allow_unsafe=True, processes=1)
    works = "THOUGHT: add.\n\n```mswea_bash_command\nexpr 1 + 2 > sum.txt; cat sum.txt\n```"
    submits = "```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat sum.txt\n```"
    episode, engine = await play(agent, works, "no action", submits, environment=Words)
    assert "<output>\n3\n</output>" in engine.tokenizer.decode(engine.requests[1].prompt_ids)
    assert episode.messages[-1]["content"] == "3\n" and len(episode.turns) == 3


@pytest.mark.parametrize("kind", [OpenaiAgents, Smolagents, partial(MiniSwe, where="folder", allow_unsafe=True)])
async def test_a_script_has_the_program_answer_a_text(kind):
    agent = kind(processes=1)
    episode = await play_agent(agent, Words(), [agent.turn_saying("It is 3.")], rewards={"success": 1.0})
    await agent.close()
    assert (episode.stop, episode.messages[-1]["content"].strip()) == (Stop.DONE, "It is 3."), episode.info
