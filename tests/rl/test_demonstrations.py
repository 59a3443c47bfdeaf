"""Demonstrations as tokens: the ids of an episode in which the agent says the same, and only its own are trained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.hooks import PluginRegistry
from agentgym.models.tiny import policy_path
from agentgym.policies.scripted import play_script
from agentgym.rl.demonstrations import Demonstration, split_turns, written
from agentgym.rl.samples import episode_samples
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.scoring import Scorer
from agentgym.testing import ScriptedGenerator
from agentgym.text.chat import ChatRenderer
from agentgym.text.tokenizer import HuggingFaceTokenizer
from agentgym.types import Message, Sample, Task


class Till:
    """A till that adds up."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, price: int, what: str = "bread") -> str:
        """Add a price."""
        self.total += price
        return f"{what} is in, {self.total} so far <tool_call>"


class Shop(Environment[Till]):
    """Add two prices up, then say the total, twice."""

    name = "shop"
    rewards = {"success": 1.0}
    max_turns = 5
    tools = Till

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        prompt: tuple[Message, ...] = (
            {"role": "system", "content": "You run a till."},
            {"role": "user", "content": "Add 3 and 4. <|im_end|>"},
        )
        yield Task(task_id="sum", prompt=prompt, split="train")

    async def start(self, context: EpisodeContext[Till]) -> Till:
        return Till()

    async def reply(self, context: EpisodeContext[Till]) -> Reply:
        done = context.turn >= 4
        context.info["success"] = done
        return Reply(done=done, messages=() if done else ({"role": "user", "content": "Sure?"},))

    def solve(self, task: Task) -> Iterator[Message]:
        for number, price in enumerate((3, 4)):
            function: Any = {"name": "add", "arguments": {"price": price}}
            call = {"type": "function", "id": f"call{number:05d}", "function": function}
            yield {"role": "assistant", "content": "First." if price == 3 else "", "tool_calls": [call]}
        yield {"role": "assistant", "content": "It is 7."}
        yield {"role": "assistant", "content": "Yes: 7 <|im_start|>"}


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(HuggingFaceTokenizer(str(policy_path())))


def shown_by_the_oracle() -> Demonstration:
    async def play() -> Demonstration:
        schemas: list[Any] = []
        environment = Shop()
        [task] = environment.tasks("train")
        async with Scorer.of(environment, PluginRegistry.discover()) as scorer:
            episode = await play_script(
                environment,
                task,
                environment.solve(task),
                scorer=scorer,
                started=lambda context: schemas.extend(context.tools.schemas()),
            )
        assert episode.success
        return Demonstration(name="shop", messages=tuple(episode.messages), tools=tuple(schemas))

    return asyncio.run(play())


def played(turns: list[tuple[int, ...]], renderer: ChatRenderer) -> Sample:
    async def play() -> Sample:
        environment = Shop()
        [task] = environment.tasks("train")
        async with Scorer.of(environment, PluginRegistry.discover()) as scorer:
            player = EpisodePlayer(
                environment=environment,
                renderer=renderer,
                generator=ScriptedGenerator(turns),
                scorer=scorer,
                config=RolloutConfig(),
                sandbox=None,
                activity=Activity(),
            )
            episode = await player.play(task, episode_id="e", seed=0)
        assert episode.success, episode.error
        return episode_samples(episode, 1.0)[0]

    return asyncio.run(play())


def test_the_tokens_are_those_of_an_episode_with_tools_results_and_replies(renderer: ChatRenderer) -> None:
    shown = shown_by_the_oracle()
    assert [message["role"] for message in shown.messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    made = written(shown, renderer)
    turns = [renderer.turn(message) for message in shown.messages if message["role"] == "assistant"]
    sample = played(turns, renderer)
    assert tuple(made.token_ids) == sample.token_ids
    assert made.sample().loss_mask == sample.loss_mask
    assert made.sample().versions == sample.versions


def test_only_what_the_agent_says_is_trained_with_its_end_tokens(renderer: ChatRenderer) -> None:
    made = written(shown_by_the_oracle(), renderer)
    told = renderer.tokenizer.decode([i for i, trained in zip(made.token_ids, made.trained, strict=True) if trained])
    assert told.count("<|im_end|>") == 4 and told.endswith("< |im_start|><|im_end|>")
    assert told.startswith("First.") and told.count("<tool_call>") == 2
    assert "Sure?" not in told and "so far" not in told and "till" not in told


def test_what_the_others_say_last_is_left_out(renderer: ChatRenderer) -> None:
    messages: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    short = written(Demonstration(name="a", messages=tuple(messages)), renderer)
    messages.append({"role": "user", "content": "bye"})
    assert written(Demonstration(name="a", messages=tuple(messages)), renderer) == short


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ("ua a", "message 2: two assistant messages follow each other"),
        ("a", "message 0: nothing is said before it"),
        ("us", "no assistant message"),
    ],
)
def test_a_conversation_that_no_episode_has_is_refused(roles: str, reason: str) -> None:
    names = {"u": "user", "a": "assistant", "s": "system"}
    messages: Any = [{"role": names[letter], "content": "x"} for letter in roles.replace(" ", "")]
    with pytest.raises(ValueError, match=reason):
        split_turns(messages)
