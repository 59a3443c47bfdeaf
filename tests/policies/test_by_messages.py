"""Episodes with a policy behind a server: what it is sent, what ends them, what is kept of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_servers import ScriptedServer, completion
from shopping import NONE_LEFT, TASK, Shopping

from agentgym.env import Environment, Reply
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.policies.by_messages import MessagePlayer
from agentgym.policies.outside.answers import ContextFull, Filtered, RequestRefused, ServerFault
from agentgym.policies.outside.cache import AnswerCache
from agentgym.policies.outside.config import PolicyConfig
from agentgym.policies.outside.policy import ServedPolicy, ServerGone
from agentgym.policies.outside.prices import Prices
from agentgym.rewards import reward
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.scoring import Scorer
from agentgym.runs.records import decode_episode, encode_episode
from agentgym.runs.usage import usage_of
from agentgym.sandbox import SandboxUnavailable
from agentgym.testing import run_fast
from agentgym.types import Episode, Outcome, Stop, Task

CONFIG = RolloutConfig(max_turn_tokens=400, max_episode_tokens=4000)


class Guessing(Environment[None]):
    """Without tools: two turns, unless the first is right."""

    max_turns = 2

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        yield TASK

    async def reply(self, context: Any) -> Reply:
        right = context.messages[-1]["content"] == "7"
        context.info["success"] = right
        return Reply(done=right, messages=() if right else ({"role": "user", "content": "no"},))

    @reward(inline=True)
    def right(self, episode: Episode) -> float:
        return float(episode.success)


def play(
    *says: Any,
    environment: Environment[Any] | None = None,
    config: RolloutConfig = CONFIG,
    policy: PolicyConfig | None = None,
    cache: Path | None = None,
    server: ScriptedServer | None = None,
) -> tuple[Episode, ScriptedServer]:
    server = server or ScriptedServer(list(says))
    environment = environment or Shopping()
    settings = policy or PolicyConfig(base_url="http://127.0.0.1:1")

    async def main() -> Episode:
        served = ServedPolicy(
            model="tester", config=settings, server=server, cache=AnswerCache(cache, settings.url, by="a")
        )
        async with Scorer.of(environment, PluginRegistry([])) as scorer:
            player = MessagePlayer(
                environment=environment, scorer=scorer, config=config, sandbox=None, activity=Activity(), policy=served
            )
            return await player.play(TASK, episode_id="e", seed=7)

    return run_fast(main()), server


def test_calls_are_made_and_answered_as_the_api_has_them() -> None:
    calls = completion(None, ("buy", '{"item": "apple", "count": 2}'), ("buy", '{"item": "pear"}'), finish="tool_calls")
    episode, server = play(calls, completion("Done."))
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.DONE, Outcome.SCORED, 1.0)
    assert episode.turns == [] and [m["role"] for m in episode.messages] == [
        "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    first, second = server.asked
    assert first["tools"][0]["function"]["name"] == "buy" and first["messages"] == [*TASK.prompt]
    _, said, left, refused = second["messages"]
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == [
        '{"item": "apple", "count": 2}', '{"item": "pear"}',
    ]  # fmt: skip
    ids = [call["id"] for call in said["tool_calls"]]
    assert len({*ids}) == 2 and [left["tool_call_id"], refused["tool_call_id"]] == ids
    assert left["content"] == '{"left": 1}' and refused["content"] == f"Error: {NONE_LEFT}"
    assert [trace.error for trace in episode.tool_calls] == ["", "tool"]
    assert decode_episode(json.loads(json.dumps(encode_episode(episode)))) == episode


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [('{"item": ', "are not JSON"), ("[1]", "are not a JSON object"), ('{"a": NaN}', "NaN"), ("{} {}", "follows")],
)
def test_arguments_that_cannot_be_read_are_told_and_sent_back_as_an_object(arguments: str, fault: str) -> None:
    episode, server = play(completion("", ("buy", arguments)), completion("Done."))
    [trace] = episode.tool_calls
    assert trace.error == "malformed" and fault in trace.result and trace.arguments == arguments
    _, said, told = server.asked[1]["messages"]
    [call] = said["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"unreadable": arguments}
    assert told["tool_call_id"] == call["id"] and fault in told["content"]


def test_seeds_and_limits_are_those_of_the_recipe() -> None:
    config = replace(CONFIG, max_turn_tokens=60, max_episode_tokens=100, temperature=0.7, top_p=0.9, top_k=5)
    says = (completion("1", usage=(40, 9)), completion("2", usage=(60, 9)))
    episode, server = play(*says, environment=Guessing(), config=config)
    first, second = server.asked
    assert (first["temperature"], first["top_p"], first["top_k"], first["max_tokens"]) == (0.7, 0.9, 5, 60)
    assert (first["seed"], second["seed"]) == (derive_seed(7, 0), derive_seed(7, 1))
    assert second["max_tokens"] == 51 and episode.stop is Stop.MAX_TURNS


@pytest.mark.parametrize(
    ("said", "stop", "outcome"),
    [
        (completion("par", finish="length"), Stop.TURN_TOKENS, Outcome.INVALID),
        (completion("", refusal="I won't"), Stop.REFUSED, Outcome.INVALID),
        (completion("par", finish="content_filter"), Stop.FILTERED, Outcome.INVALID),
        (Filtered("the prompt"), Stop.FILTERED, Outcome.INVALID),
        (ContextFull("too long"), Stop.EPISODE_TOKENS, Outcome.INFRA_ERROR),
        (RequestRefused("images only"), Stop.ERROR, Outcome.INFRA_ERROR),
    ],
)
def test_what_ends_an_episode_has_a_stop_of_its_own(said: Any, stop: Stop, outcome: Outcome) -> None:
    episode, _ = play(said, environment=Guessing())
    assert (episode.stop, episode.outcome) == (stop, outcome), episode.error
    if isinstance(said, ContextFull):
        assert episode.error is not None and episode.error.kind == "prompt_too_long"
    if stop is Stop.REFUSED:
        assert episode.messages[-1]["content"] == "I won't"


def test_a_conversation_that_outgrows_the_context_is_scored_as_it_is() -> None:
    episode, _ = play(completion("1"), ContextFull("too long"), environment=Guessing())
    assert (episode.stop, episode.outcome, episode.reward) == (Stop.EPISODE_TOKENS, Outcome.SCORED, 0.0)
    full = replace(CONFIG, max_episode_tokens=400)
    episode, server = play(completion("1", usage=(390, 10)), environment=Guessing(), config=full)
    assert (episode.stop, len(server.asked)) == (Stop.EPISODE_TOKENS, 1)


def test_reasoning_and_usage_are_kept_and_cost_what_the_prices_say() -> None:
    body = completion("7", usage=(1000, 500), reasoning_content="seven, I think")
    body["usage"] |= {
        "prompt_tokens_details": {"cached_tokens": 400},
        "completion_tokens_details": {"reasoning_tokens": 90},
    }
    episode, _ = play(body, environment=Guessing())
    [turn] = episode.info["policy"]["turns"]  # type: ignore[index, call-overload]
    assert (turn["reasoning"], turn["model"], turn["finish"]) == ("seven, I think", "tester-1", "stop")
    usage = usage_of(episode.info)
    assert (usage["prompt_tokens"], usage["reasoning_tokens"], usage["turns"]) == (1000, 90, 1)
    prices = Prices(prompt=2.0, cached=0.5, completion=10.0)
    assert prices.cost(usage) == pytest.approx((600 * 2 + 400 * 0.5 + 500 * 10) / 1e6)


def test_reasoning_is_sent_back_where_that_is_asked_for() -> None:
    says = (completion("1", reasoning="hm"), completion("7"))
    for wanted in (False, True):
        policy = PolicyConfig(base_url="http://127.0.0.1:1", return_reasoning=wanted)
        _, server = play(*says, environment=Guessing(), policy=policy)
        assert server.asked[1]["messages"][1].get("reasoning") == ("hm" if wanted else None)


def test_tokens_that_a_server_does_not_count_are_estimated() -> None:
    episode, _ = play(completion("7" * 40, usage=None), completion("7", usage=None), environment=Guessing())
    usage = usage_of(episode.info)
    assert usage["turns_estimated"] == 2 and usage["completion_tokens"] == 11 and usage["prompt_tokens"] > 0


class BreaksOnce(Guessing):
    """Its sandbox is lost in the second turn, once."""

    broke = False

    async def reply(self, context: Any) -> Reply:
        if context.turn == 2 and not self.broke:
            self.broke = True
            raise SandboxUnavailable("gone")
        return await super().reply(context)


@pytest.mark.parametrize("cached", [False, True])
def test_all_answers_that_were_paid_count_also_those_that_were_of_no_use(tmp_path: Path, cached: bool) -> None:
    """One answer without a choice, and an episode that is played again: what is found again is not paid again."""
    empty = {"choices": [], "usage": {"prompt_tokens": 300, "completion_tokens": 40}}
    says = (empty, *(completion(str(number), usage=(100, number)) for number in range(1, 7)))
    policy = PolicyConfig(base_url="http://127.0.0.1:1", max_wait_s=0.01)
    cache = tmp_path if cached else None
    episode, server = play(*says, environment=BreaksOnce(), policy=policy, cache=cache)
    assert (episode.retries, len(server.asked)) == (1, 3 if cached else 5)
    usage = usage_of(episode.info)
    found = (usage["turns"], usage["prompt_tokens"], usage["completion_tokens"])
    assert found == ((2, 500, 43) if cached else (2, 700, 50))
    assert usage["paid_prompt_tokens"] == usage["prompt_tokens"]
    read = decode_episode(json.loads(json.dumps(encode_episode(episode))))
    assert usage_of(read.info) == usage


def test_an_answer_that_is_known_is_not_paid_again(tmp_path: Path) -> None:
    says = (completion("1"), completion("7"))
    first, server = play(*says, environment=Guessing(), cache=tmp_path)
    again, silent = play(ServerFault("it must not be asked"), environment=Guessing(), cache=tmp_path)
    assert len(server.asked) == 2 and silent.asked == []
    assert again.messages == first.messages and usage_of(again.info)["paid_prompt_tokens"] == 20  # the same evaluation
    kept = tmp_path / "answers.jsonl"
    kept.write_bytes(kept.read_bytes().replace(b'{"digest', b'["digest'))
    _, server = play(*says, environment=Guessing(), cache=tmp_path)
    assert len(server.asked) == 2  # what cannot be read is asked again


def test_an_interrupted_evaluation_pays_only_for_what_it_has_not(tmp_path: Path) -> None:
    """Its second turn was never answered: of the first nothing is asked again."""
    with pytest.raises(ServerGone):
        play(completion("1"), ServerGone("gone"), environment=Guessing(), cache=tmp_path)
    episode, server = play(completion("7"), environment=Guessing(), cache=tmp_path)
    assert len(server.asked) == 1 and episode.success


def test_what_the_user_has_to_change_ends_the_evaluation() -> None:
    with pytest.raises(UserError, match="wrong key"):
        play(UserError("wrong key"))


def test_an_episode_whose_server_fails_is_left_out_and_not_a_zero() -> None:
    policy = PolicyConfig(base_url="http://127.0.0.1:1", max_retries=2)
    episode, server = play(ServerFault("status 500"), policy=policy)
    assert len(server.asked) == 3 and episode.outcome is Outcome.INFRA_ERROR and episode.reward is None
    assert episode.error is not None and "3 tries" in episode.error.message and episode.error.source == "policy"


def test_a_slow_server_ends_the_episode_and_waiting_for_retries_does_not() -> None:
    config = replace(CONFIG, episode_time_s=100.0)
    slow = ScriptedServer([completion("1")], takes_s=101.0)
    episode, _ = play(environment=Guessing(), config=config, server=slow)
    assert (episode.stop, episode.outcome) == (Stop.TIME, Outcome.SCORED)
    faults = [ServerFault("busy", retry_after_s=200.0, busy=True), completion("7")]
    episode, _ = play(*faults, environment=Guessing(), config=config)
    assert episode.success and episode.timing_s["queue_s"] >= 200
