"""An episode that an agent's program plays: its turns, limits and outcomes, and whose fault it is when it fails."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from agentgym.agents import Agent, AgentFailed
from agentgym.env import Environment, Reply
from agentgym.errors import InfraError
from agentgym.policies.by_agent import AgentPlayer
from agentgym.policies.conversation import CallRefused, CallRequest
from agentgym.rewards import Reward
from agentgym.rl.ending import nothing_left
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.group import InfraMonitor
from agentgym.rollout.scoring import Scorer
from agentgym.run.metrics import rollout_metrics
from agentgym.testing import run_fast
from agentgym.text.chat import ChatRenderer
from agentgym.types import Group, Outcome, Stop, Task

TASK = Task(task_id="t", prompt=({"role": "user", "content": "count to two, then say yes"},))


class Counter:
    """Counts."""

    def __init__(self, hangs: bool) -> None:
        self.number, self._hangs = 0, hangs

    async def add(self, by: int) -> int:
        """Add to the number."""
        if self._hangs:
            await asyncio.Event().wait()
        self.number += by
        return self.number


class CountThenYes(Environment[Counter]):
    name = "count"
    rewards = {"right": 1.0}
    max_turns = 3
    tools = Counter

    def __init__(self, hangs=False) -> None:
        self.hangs, self.finished, self.turns = hangs, 0, []

    def tasks(self, split, seed=0):
        yield TASK

    async def start(self, context):
        return Counter(self.hangs)

    async def after_calls(self, context):
        self.turns.append(context.turn)
        return Reply(done=context.state.number >= 100)

    async def reply(self, context):
        said = context.messages[-1]["content"]
        if said == "crash":
            raise ZeroDivisionError
        context.info["success"] = said == "yes" and context.state.number == 2
        again = ({"role": "user", "content": "again"},)
        return Reply(messages=() if said == "yes" else again, done=said == "yes", invalid=said == "bad")

    async def finish(self, context):
        self.finished += 1


@dataclass
class Hall:
    """An endpoint without a server: the agents of these tests call their handlers directly."""

    url: str = "http://nowhere"
    model: str = "policy"
    handlers: dict = field(default_factory=dict)
    concluded: list = field(default_factory=list)

    def admit(self, handler):
        key = f"key{len(self.handlers)}"
        self.handlers[key] = handler
        return key

    def conclude(self, key):
        if key not in self.concluded:
            self.concluded.append(key)

    async def ask(self, context):
        """One call of the policy, as a program makes it."""
        if context.key in self.concluded:
            raise CallRefused("ended", "over")
        return (await self.handlers[context.key].call(CallRequest(messages=context.messages))).content


@pytest.fixture
def play(tokenizer, speaking):
    """play(program, *says): the episode that an async function of (context, hall) plays."""

    def run(program, *says, hangs=False, **config):
        class Program(Agent):
            async def play(self, context):
                await program(context, run.hall)

        run.hall, run.environment = Hall(), CountThenYes(hangs)
        run.generator = speaking(*(says or ("yes",)))

        async def main():
            limits = RolloutConfig(**{"max_retries": 1, **config})
            shared = {"renderer": ChatRenderer(tokenizer), "generator": run.generator, "config": limits}
            shared["activity"] = Activity()
            right = Reward(name="right", function=lambda episode: float(episode.success), low=-1.0, inline=True)
            player = AgentPlayer(
                environment=run.environment,
                scorer=Scorer([right], {"right": 1.0}),
                sandbox=None,
                agent=Program(),
                name="program",
                endpoint=run.hall,
                **shared,
            )
            episode = await player.play(TASK, episode_id="e", seed=7)
            assert not player.activity.in_flight()
            return episode

        episode = run_fast(main())
        assert run.environment.finished == episode.retries + 1
        assert sorted(run.hall.concluded) == sorted(run.hall.handlers)  # no key outlives its episode
        return episode

    return run


def failure(episode):
    return episode.info["agent"]["failure"]


def test_a_program_plays_with_the_policys_words_and_the_environments_tools(play):
    async def program(context, hall):
        assert [tool["function"]["name"] for tool in context.tools] == ["add"]
        assert await context.call_tool("add", {"by": 2}) == "2"
        reply = await context.answer(await hall.ask(context))
        assert reply.done
        context.note("exit", 0)

    episode = play(program, "yes")
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.DONE, Outcome.SCORED, 1.0)
    assert [trace.name for trace in episode.tool_calls] == ["add"] and episode.info["agent"] == {"exit": 0}
    assert [message["role"] for message in episode.messages] == ["user", "assistant", "tool", "assistant"]
    [turn] = episode.turns
    assert turn.completion_ids == play.generator.tokenizer.encode("yes<|im_end|>")


def test_the_calls_of_one_of_the_policys_turns_are_one_turn_of_the_environment(play):
    async def program(context, hall):
        for _ in range(2):
            await hall.ask(context)
            await context.call_tool("add", {"by": 1})
            await context.call_tool("add", {"by": 0})
        await context.answer("yes")

    assert play(program).stop is Stop.DONE
    assert play.environment.turns == [1, 1, 2, 2]


def test_a_wrong_call_is_told_to_the_program(play):
    async def program(context, hall):
        assert "no tool 'ad'" in await context.call_tool("ad", {})
        assert "by" in await context.call_tool("add", {})
        await context.answer("yes")

    assert [trace.error for trace in play(program).tool_calls] == ["unknown_tool", "arguments"]


def test_the_environments_turns_end_the_episode_of_a_program_that_goes_on(play):
    async def program(context, hall):
        while True:
            await hall.ask(context)
            await context.call_tool("add", {"by": 1})

    episode = play(program)
    assert (episode.stop, episode.outcome, len(episode.tool_calls)) == (Stop.MAX_TURNS, Outcome.SCORED, 3)


def test_answers_use_up_the_environments_turns_too(play):
    async def program(context, hall):
        while not (await context.answer("no")).done:
            pass
        await context.answer("no more is taken")

    episode = play(program)
    assert (episode.stop, len(episode.messages)) == (Stop.MAX_TURNS, 7)


def test_a_call_that_ends_the_episode_ends_it_for_the_program(play):
    async def program(context, hall):
        await context.call_tool("add", {"by": 100})
        await context.call_tool("add", {"by": 1})
        raise AssertionError("unreachable")

    episode = play(program)
    assert (episode.stop, len(episode.tool_calls)) == (Stop.DONE, 1)


def test_an_invalid_answer_earns_the_floor(play):
    async def program(context, hall):
        assert (await context.answer("bad")).invalid

    episode = play(program)
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.DONE, Outcome.INVALID, -1.0)


def test_a_program_that_ends_first_abandons_the_episode_which_is_scored_as_it_is(play):
    async def program(context, hall):
        await hall.ask(context)

    episode = play(program)
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.ABANDONED, Outcome.SCORED, 0.0)


@pytest.mark.parametrize("error", [AgentFailed("exit", "it exited with 3"), KeyError("a bug of the program")])
def test_a_program_that_fails_is_its_episodes_own_outcome(play, error):
    async def program(context, hall):
        context.note("output", "its last words")
        await hall.ask(context)
        raise error

    episode = play(program)
    assert (episode.stop, episode.outcome, episode.reward, episode.retries) == (Stop.AGENT, Outcome.INVALID, -1.0, 0)
    assert episode.info["agent"]["output"] == "its last words" and len(episode.turns) == 1
    assert failure(episode)["kind"] == getattr(error, "kind", "KeyError")


def test_a_program_that_fails_after_the_end_changes_nothing(play):
    async def program(context, hall):
        await context.call_tool("add", {"by": 2})
        await context.answer("yes")
        raise KeyError("late")

    episode = play(program)
    assert (episode.stop, episode.reward, failure(episode)["kind"]) == (Stop.DONE, 1.0, "KeyError")


def test_a_program_that_hangs_is_cancelled_when_the_episodes_time_is_over(play):
    ended = []

    async def program(context, hall):
        assert context.time_s == pytest.approx(9)
        await hall.ask(context)
        try:
            await asyncio.Event().wait()
        finally:
            context.note("output", "killed")
            ended.append(True)

    episode = play(program, episode_time_s=9)
    assert (episode.stop, episode.outcome, ended) == (Stop.TIME, Outcome.INVALID, [True])
    assert episode.time_limit == "", "it hung by itself, so an evaluation counts it too"
    assert episode.info["agent"]["output"] == "killed"


@pytest.mark.parametrize(("delay_s", "limit"), [(4.0, "rollout.episode_time_s = 9"), (7.0, "")])
def test_a_program_that_waited_for_a_slow_engine_reached_a_limit_of_the_machine(play, delay_s, limit):
    """Half of the time is the measure: 8 of 9 s are the engine's, or 7 of 20."""

    async def program(context, hall):
        play.generator.delay_s = delay_s
        for _ in range(2 if delay_s < 5 else 1):
            await hall.ask(context)
        await asyncio.Event().wait()

    episode = play(program, episode_time_s=9 if delay_s < 5 else 20)
    assert (episode.stop, episode.outcome, episode.time_limit) == (Stop.TIME, Outcome.INVALID, limit)


def test_a_program_that_does_not_end_with_its_episode_is_given_a_moment_and_cancelled(play):
    async def program(context, hall):
        await context.answer("yes")
        await asyncio.Event().wait()

    episode = play(program)
    assert (episode.stop, episode.outcome) == (Stop.DONE, Outcome.SCORED)


def test_an_environment_that_hangs_is_not_the_programs_fault(play):
    async def program(context, hall):
        await context.call_tool("add", {"by": 2})

    episode = play(program, hangs=True, episode_time_s=9)
    assert (episode.outcome, episode.stop, episode.error.source) == (Outcome.INFRA_ERROR, Stop.TIME, "episode")
    assert episode.time_limit == "rollout.episode_time_s = 9"


def test_an_environment_that_breaks_is_not_the_programs_fault_even_if_that_would_go_on(play):
    async def program(context, hall):
        try:
            await context.answer("crash")
        except Exception:
            pytest.fail("the program must not see it")

    episode = play(program)
    assert (episode.outcome, episode.error.kind) == (Outcome.INFRA_ERROR, "ZeroDivisionError")


def test_a_generator_that_breaks_is_not_the_programs_fault_though_it_dies_of_it(play):
    async def program(context, hall):
        await hall.ask(context)

    episode = play(program, InfraError("no replica"), "yes")
    assert (episode.retries, episode.stop, episode.error) == (1, Stop.ABANDONED, None)
    episode = play(program, InfraError("no replica"))
    assert (episode.outcome, episode.error.source) == (Outcome.INFRA_ERROR, "generator")


def test_what_broke_around_a_program_is_retried(play):
    async def program(context, hall):
        if len(hall.handlers) == 1:
            raise InfraError("no process could be started")
        await context.answer("yes")

    episode = play(program)
    assert (episode.retries, episode.stop) == (1, Stop.DONE)


def test_a_turn_that_is_cut_ends_the_episode_as_in_the_built_in_loop(play):
    async def program(context, hall):
        await hall.ask(context)
        await context.answer("yes")

    episode = play(program, "a word that is too long", max_turn_tokens=4)
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TURN_TOKENS, Outcome.INVALID, -1.0)


def test_what_is_answered_when_the_policys_tokens_are_used_up_still_counts(play):
    async def program(context, hall):
        await context.call_tool("add", {"by": 2})
        await hall.ask(context)
        await context.answer("yes")

    episode = play(program, "a word that is too long", max_turn_tokens=4, cut_turns="score")
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.TURN_TOKENS, Outcome.SCORED, 1.0)


def test_a_note_is_json(play):
    async def program(context, hall):
        with pytest.raises(TypeError):
            context.note("files", {1, 2})
        await context.answer("yes")

    assert "agent" not in play(program).info


def test_a_program_that_never_asks_the_policy_ends_the_run(play):
    async def program(context, hall):
        raise AgentFailed("exit", "no module named agents")

    episode, monitor = play(program), InfraMonitor(0.25, at_least=3)
    monitor.add(episode)
    monitor.add(episode)
    with pytest.raises(InfraError, match=r"never asked: .* failed in 3 of 3 episodes; 3 x exit: no module"):
        monitor.add(episode)


def test_a_program_that_always_fails_leaves_nothing_to_learn_which_is_no_good_end(play):
    async def program(context, hall):
        await hall.ask(context)
        raise AgentFailed("exit", "why")

    group = Group(group_id=0, task=TASK, start_version=0, episodes=[play(program)])
    with pytest.raises(InfraError, match="failed in 1 of 1 episodes; 1 x exit: why"):
        nothing_left([group])
    assert rollout_metrics(group.episodes)["rollout/agent_failed_share"] == 1
