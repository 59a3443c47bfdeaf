"""A turn's calls: who answers them and in which order, what ends the episode, and what is on its record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from sampled import sampled_turn

from agentgym.env import Environment, Reply
from agentgym.errors import InfraError
from agentgym.hooks import PluginRegistry
from agentgym.policies.scripted import play_script
from agentgym.rewards import Reward, reward
from agentgym.rollout.calls import MAX_DEPTH, AgentTurn
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.environments import build_environment
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner
from agentgym.rollout.scoring import Scorer
from agentgym.runs.records import decode_episode, encode_episode
from agentgym.testing import run_fast
from agentgym.tools import MalformedCall, Toolbox, ToolCall, ToolError, tool
from agentgym.types import Episode, Message, Outcome, Stop, Task

TASK = Task(task_id="t", prompt=({"role": "user", "content": "Count to three."},))


class Board:
    """A world that keeps what was done to it, with the moments."""

    def __init__(self) -> None:
        self.count = 0
        self.log: list[str] = []

    def add(self, number: int = 1) -> int:
        """Add to the count."""
        if number < 0:
            raise ToolError("it only grows")
        self.count += number
        self.log.append(f"add {number}")
        return self.count

    @tool(parallel_safe=True)
    async def look(self, after_s: float, fail: str = "") -> float:
        """Look after a while."""
        self.log.append(f"look {after_s:g}")
        await asyncio.sleep(after_s)
        self.log.append(f"seen {after_s:g}")
        if fail:
            raise {"bug": ZeroDivisionError("a bug"), "infra": InfraError("sandbox gone")}[fail]
        return after_s

    async def wait(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    def tell(self, size: int, character: str = "x") -> str:
        """Say much."""
        return character * size


class CountToThree(Environment[Board]):
    name = "count"
    tools = Board
    max_turns = 4

    def __init__(self) -> None:
        self.asked: list[str] = []

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        yield TASK

    async def start(self, context: Any) -> Board:
        return Board()

    async def reply(self, context: Any) -> Reply:
        self.asked.append(context.messages[-1]["content"])
        return Reply(messages=({"role": "user", "content": "Go on."},), done=context.messages[-1]["content"] == "done")

    async def after_calls(self, context: Any) -> Reply:
        context.info["success"] = context.state.count == 3
        self.asked.append("after calls")
        return Reply(done=context.state.count == 3)

    def solve(self, task: Task) -> Iterator[Message]:
        answer = yield {"role": "assistant", "content": "I add.", "tool_calls": [asked("add", number=2)]}
        left = 3 - int(answer[-1]["content"])
        yield {"role": "assistant", "content": "", "tool_calls": [asked("add", number=left)]}

    @reward(inline=True)
    def calls(self, episode: Episode) -> float:
        return float(any(call.name == "add" and not call.error for call in episode.tool_calls))


def asked(name: str, **arguments: Any) -> Any:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


BROKEN = MalformedCall('{"name": ', "a call must be one JSON object")


class Played:
    """Turns handed to a runner one by one."""

    def __init__(self, config: RolloutConfig | None = None, environment: CountToThree | None = None) -> None:
        self.environment = environment or CountToThree()
        self.episode = Episode(episode_id="e", task=TASK, seed=0)
        self.runner = EpisodeRunner(
            environment=self.environment,
            scorer=Scorer.of(self.environment, PluginRegistry([])),
            config=config or RolloutConfig(),
            sandbox=None,
            episode=self.episode,
        )

    def say(self, *turns: Any, cut: Stop | None = None, sampled: bool = False) -> list[Reply]:
        async def main() -> list[Reply]:
            replies = []
            async with AsyncExitStack() as stack:
                await self.runner.lease(stack)
                async with self.runner.started():
                    for said in turns:
                        calls = said if isinstance(said, tuple) else ()
                        if sampled:
                            self.episode.turns.append(TURN)
                        text = "calls" if calls else said
                        replies.append(await self.runner.reply(AgentTurn(text, "Well." if calls else text, calls), cut))
            await self.runner.score()
            return replies

        return run_fast(main())

    @property
    def board(self) -> Board:
        return self.runner.context.state


TURN = sampled_turn((1,), (2,))


def test_calls_are_answered_in_order_and_the_environment_is_asked_after_them() -> None:
    played = Played()
    [reply] = played.say((call("add", number=2), call("add"), call("add", number=-1)))
    assert [message["content"] for message in reply.messages] == ["2", "3", "Error: it only grows"]
    assert played.environment.asked == ["after calls"] and played.episode.stop is Stop.DONE


def test_a_turn_without_calls_is_the_environments_to_answer() -> None:
    played = Played()
    played.say("hello", (call("add"),), "done")
    assert played.environment.asked == ["hello", "after calls", "done"]
    assert (played.episode.stop, played.episode.reward) == (Stop.DONE, 1.0)


def test_the_conversation_and_the_trace_say_what_was_called_and_answered() -> None:
    played = Played()
    played.say((call("add", number="2"), BROKEN, call("bad")))
    first, _, third = played.episode.tool_calls
    assert [(t.turn, t.name, t.error) for t in played.episode.tool_calls] == [
        (1, "add", ""),
        (1, "", "malformed"),
        (1, "bad", "unknown_tool"),
    ]
    assert (
        first.arguments == {"number": "2"} and first.result == "2" and third.result.startswith("Error: no tool 'bad'")
    )
    said, *answers = played.episode.messages[1:]
    assert said["content"] == "Well." and [c["id"] for c in said["tool_calls"]] == ["call00000", "call00002"]
    assert said["tool_calls"][0]["function"] == {"name": "add", "arguments": {"number": "2"}}
    assert [(a["role"], a["tool_call_id"]) for a in answers] == [("tool", f"call0000{n}") for n in range(3)]
    assert answers[1]["content"] == "Error: a call must be one JSON object"


def test_calls_run_together_only_where_all_tools_are_safe_for_that() -> None:
    together, mixed = Played(), Played()
    together.say((call("look", after_s=2), BROKEN, call("look", after_s=1)))
    assert together.board.log == ["look 2", "look 1", "seen 1", "seen 2"]
    assert [t.result for t in together.episode.tool_calls] == ["2.0", "Error: a call must be one JSON object", "1.0"]
    mixed.say((call("look", after_s=2), call("add"), call("look", after_s=1)))
    assert mixed.board.log == ["look 2", "seen 2", "add 1", "look 1", "seen 1"]


@pytest.mark.parametrize("beside", [(), (call("look", after_s=9),)])
@pytest.mark.parametrize(("fail", "source"), [("bug", "environment:count.look"), ("infra", "environment:count.look")])
def test_what_a_tool_raises_ends_the_episode_and_is_no_zero(
    fail: str, source: str, beside: tuple[ToolCall, ...]
) -> None:
    played = Played()
    with pytest.raises(EpisodeBroken) as broken:
        played.say((call("look", after_s=1, fail=fail), *beside))
    assert broken.value.record.source == source and broken.value.retry == (fail == "infra")
    assert played.episode.reward is None
    assert {trace.error for trace in played.episode.tool_calls} == {"broken"}
    assert {"bug": "a bug", "infra": "sandbox gone"}[fail] in played.episode.tool_calls[0].result


def test_a_call_that_never_returns_is_the_environments_fault() -> None:
    played = Played(RolloutConfig(env_timeout_s=5))
    with pytest.raises(EpisodeBroken, match=r"environment:count\.wait: TimeoutError: it took longer"):
        played.say((call("wait"),))


def test_the_turn_limit_holds_for_turns_with_calls() -> None:
    played = Played(RolloutConfig(max_turns=2))
    played.say((call("tell", size=1),), (call("tell", size=2),))
    assert (played.episode.stop, played.episode.outcome) == (Stop.MAX_TURNS, Outcome.SCORED)


def test_long_results_are_cut_with_a_word_and_half_characters_replaced() -> None:
    played = Played(RolloutConfig(max_tool_chars=10))
    played.say((call("tell", size=11), call("tell", size=3, character="\ud800"), call("tell", size=10)))
    cut, replaced, whole = (trace.result for trace in played.episode.tool_calls)
    assert cut == "x" * 10 + "\n[cut: these are the first 10 of 11 characters]"
    assert replaced == "\ufffd\ufffd\ufffd" and whole == "x" * 10


def test_arguments_that_are_too_deep_to_be_saved_are_malformed() -> None:
    def nested(depth: int) -> Any:
        return [nested(depth - 1)] if depth else 1

    played = Played()
    played.say((call("add", number=nested(MAX_DEPTH - 2)), call("nothing", x={"y": nested(900)})))
    assert [trace.error for trace in played.episode.tool_calls] == ["arguments", "malformed"]
    record = json.loads(json.dumps(encode_episode(played.episode)))
    assert decode_episode(record).tool_calls == played.episode.tool_calls


def test_malformed_calls_are_told_masked_or_the_end() -> None:
    told, masked, ended = (Played(replace(RolloutConfig(), malformed_calls=how)) for how in ("tell", "mask", "end"))
    for played in (told, masked, ended):
        replies = played.say((call("add"), BROKEN), sampled=True)
        assert len(replies[0].messages) == (0 if played is ended else 2)
    assert [p.episode.turns[0].masked for p in (told, masked, ended)] == [False, True, False]
    assert [p.episode.stop for p in (told, masked, ended)] == [None, None, Stop.MALFORMED]
    assert (ended.episode.outcome, ended.board.count) == (Outcome.INVALID, 0)
    assert [t.error for t in ended.episode.tool_calls] == ["malformed"] and ended.environment.asked == []
    fine = Played(RolloutConfig(malformed_calls="end"))
    fine.say((call("bad"),))
    assert fine.episode.stop is None, "an unknown tool is no fault of form"


def test_a_turn_that_was_cut_inside_a_call_is_cut_and_not_malformed() -> None:
    floor, scored = Played(), Played(RolloutConfig(cut_turns="score", malformed_calls="end"))
    floor.say((call("add"), BROKEN), cut=Stop.TURN_TOKENS)
    assert (floor.episode.stop, floor.episode.outcome, floor.board.count) == (Stop.TURN_TOKENS, Outcome.INVALID, 0)
    scored.say((call("add"), BROKEN), cut=Stop.TURN_TOKENS)
    assert (scored.episode.stop, scored.episode.outcome) == (Stop.TURN_TOKENS, Outcome.SCORED)
    assert [t.error for t in (*floor.episode.tool_calls, *scored.episode.tool_calls)] == [""]


def test_an_environment_without_tools_has_no_calls() -> None:
    class Plain(CountToThree):
        tools = None

    played = Played(environment=Plain())
    played.say((call("add"),))
    assert played.environment.asked == ["calls"] and not played.episode.tool_calls


def test_tools_that_change_are_asked_for_again_and_others_are_not() -> None:
    class Growing(CountToThree):
        times = 0

        async def toolbox(self, context: Any) -> Any:
            self.times += 1
            return Toolbox.of(Board).bind(context.state) if self.times > 1 or not self.dynamic_tools else None

    still, growing = Growing(), Growing()
    growing.dynamic_tools = True
    for environment in (still, growing):
        Played(environment=environment).say((call("add"),), (call("add"),))
    assert (still.times, growing.times) == (1, 3)
    assert still.asked == ["after calls", "after calls"] and growing.asked == ["calls", "after calls"]


def test_a_world_that_start_forgot_is_the_environments_error() -> None:
    class Forgetful(CountToThree):
        async def start(self, context: Any) -> Any:
            return None

    with pytest.raises(
        EpisodeBroken, match=r"environment:Forgetful\.toolbox: TypeError: the tools are the methods of Bo"
    ):
        Played(environment=Forgetful()).say("hello")


def test_unfit_tools_are_refused_when_the_environment_is_built() -> None:
    class Unfit:
        def f(self, x: int) -> None: ...

    class Broken(CountToThree):
        tools = Unfit

    registry = PluginRegistry([])
    with pytest.raises(ValueError, match=r"Unfit\.f cannot be a tool: it has no docstring"):
        build_environment(registry_of(registry, Broken), "broken", {})


def registry_of(registry: PluginRegistry, factory: Any) -> Any:
    class One:
        def environment(self, name: str) -> Any:
            return factory

    return One()


async def play(says: Any, environment: CountToThree | None = None) -> Episode:
    environment = environment or CountToThree()
    async with Scorer.of(environment, PluginRegistry([])) as scorer:
        return await play_script(environment, TASK, says, scorer=scorer)


async def test_an_oracle_reads_the_answers_and_solves_the_task() -> None:
    environment = CountToThree()
    episode = await play(environment.solve(TASK), environment)
    assert (episode.stop, episode.outcome, episode.success, episode.reward) == (Stop.DONE, Outcome.SCORED, True, 1.0)
    assert [trace.arguments for trace in episode.tool_calls] == [{"number": 2}, {"number": 1}]
    assert not episode.turns and [m["role"] for m in episode.messages[1:]] == ["assistant", "tool"] * 2


async def test_a_script_that_ends_first_abandons_the_episode_and_is_scored() -> None:
    said: Message = {"role": "assistant", "content": "hm"}
    episode = await play([said, said])
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.ABANDONED, Outcome.SCORED, 0.0)


async def test_a_script_is_closed_when_the_episode_ends_before_it() -> None:
    closed = []

    def endless() -> Iterator[Message]:
        try:
            while True:
                yield {"role": "assistant", "content": "", "tool_calls": [asked("tell", size=1)]}
        finally:
            closed.append(True)

    script = endless()
    assert (await play(script)).stop is Stop.MAX_TURNS and closed


async def test_a_script_meets_the_environments_faults_as_a_model_does() -> None:
    calls: Message = {"role": "assistant", "content": "", "tool_calls": [asked("look", after_s=0, fail="bug")]}
    episode = await play([calls])
    assert episode.outcome is Outcome.INFRA_ERROR and episode.error is not None
    assert (episode.error.source, episode.stop) == ("environment:count.look", Stop.ERROR)
    with pytest.raises(ValueError, match="a tool call of a message has the shape"):
        await play([{"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}])


def test_rewards_see_the_calls_in_their_own_process() -> None:
    async def main() -> Episode:
        plain = Reward(name="num_calls", function=num_calls, high=9.0)
        async with Scorer([plain], {"num_calls": 1.0}) as scorer:
            return await play_script(CountToThree(), TASK, CountToThree().solve(TASK), scorer=scorer)

    assert asyncio.run(main()).reward == 2.0


def num_calls(episode: Episode) -> float:
    return float(len(episode.tool_calls))
