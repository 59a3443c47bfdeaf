"""Text in, text out: the same turns, limits and retries as in training, a call at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import InfraError
from agentgym.hooks import PluginRegistry
from agentgym.rewards import reward
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.text_episode import TextEpisode, TextGame, TextGameConfig
from agentgym.types import Episode, Task

CONFIG = TextGameConfig(name="echo")
log: list[str] = []
failures: list[Exception] = []


class Echo(Environment[list[str]]):
    """Ends at `end`, breaks the rules at `bad`; raises the failures that a test lists, one a call."""

    name = "echo"
    max_turns = 3

    def tasks(self, split: Any, seed: int = 0) -> Iterator[Task]:
        for number in range(3):
            yield Task(task_id=f"echo/{number}", prompt=({"role": "user", "content": f"task {number}"},))

    async def start(self, context: EpisodeContext[list[str]]) -> list[str]:
        log.append(f"start with seed {context.seed}")
        if failures and isinstance(failures[0], ConnectionError):
            raise InfraError(str(failures.pop(0)))
        return []

    async def reply(self, context: EpisodeContext[list[str]]) -> Reply:
        said = context.messages[-1]["content"]
        if failures:
            raise failures.pop(0)
        context.state.append(said)
        context.info["said"] = list(context.state)
        answer = ({"role": "user", "content": f"heard {said}"},)
        return Reply(messages=answer, done=said == "end", invalid=said == "bad")  # type: ignore[arg-type]

    async def finish(self, context: EpisodeContext[list[str]]) -> None:
        log.append(f"finish {context.state}")

    @reward(low=-1, inline=True)
    def turns(self, episode: Episode) -> float:
        return len(episode.info["said"]) / 10  # type: ignore[arg-type]


@pytest.fixture
async def play() -> Any:
    log.clear()
    failures.clear()
    games: list[TextGame] = []

    def begin(**changes: Any) -> TextEpisode:
        environment, config = Echo(), replace(CONFIG, **changes)
        scorer = Scorer.of(environment, PluginRegistry([]))
        game = TextGame(environment, list(environment.tasks("train")), scorer, None, config)
        games.append(game)
        return TextEpisode(game)

    yield begin
    for game in games:
        await game.close()


async def test_an_episode_starts_finishes_and_is_scored_once(play: Any) -> None:
    episode = play()
    assert await episode.reset(4) == ("task 1", {"task_id": "echo/1", "difficulty": 0})
    first, last = await episode.step("one"), await episode.step("end")
    assert (first.text, first.reward, first.terminated, first.truncated) == ("heard one", 0.0, False, False)
    assert (last.reward, last.terminated, last.truncated) == (0.2, True, False)
    assert last.info["rewards"] == {"turns": 0.2}
    assert log == ["start with seed 4", "finish ['one', 'end']"]
    with pytest.raises(RuntimeError, match="call reset"):
        await episode.step("more")


async def test_breaking_the_rules_earns_the_floor_and_the_turn_limit_truncates(play: Any) -> None:
    episode = play()
    await episode.reset(0)
    bad = await episode.step("bad")
    assert (bad.reward, bad.terminated, bad.info["invalid"]) == (-1.0, True, True)
    await episode.reset(0)
    *_, last = [await episode.step("a"), await episode.step("b"), await episode.step("c")]
    assert (last.reward, last.terminated, last.truncated) == (0.3, False, True)


@pytest.mark.parametrize(("cut_turns", "earned", "said"), [("floor", -1.0, None), ("score", 0.1, ["abcd"])])
async def test_an_action_over_the_limit_is_a_cut_turn(
    play: Any, cut_turns: str, earned: float, said: list[str] | None
) -> None:
    episode = play(max_turn_chars=4, cut_turns=cut_turns)
    await episode.reset(0)
    step = await episode.step("abcdef")
    assert (step.reward, step.truncated, step.info.get("said")) == (earned, True, said)


async def test_lost_infrastructure_begins_the_episode_again_with_its_seed_and_actions(play: Any) -> None:
    episode = play()
    failures.append(ConnectionError("at the start"))
    await episode.reset(7)
    await episode.step("one")
    failures.append(InfraError("the sandbox is gone"))
    assert (await episode.step("end")).info["said"] == ["one", "end"]
    assert log == ["start with seed 7", "finish None", "start with seed 7", "finish ['one']",
                   "start with seed 7", "finish ['one', 'end']"]  # fmt: skip


async def test_infrastructure_that_stays_lost_is_an_error_and_so_is_a_bug_of_the_environment(play: Any) -> None:
    episode = play(max_retries=1)
    await episode.reset(0)
    failures.extend([InfraError("gone"), InfraError("gone again")])
    with pytest.raises(InfraError, match=r"echo/0: environment:echo\.reply: InfraError: gone again"):
        await episode.step("one")
    await episode.reset(0)
    failures.append(bug := KeyError("typo"))
    with pytest.raises(InfraError, match=r"environment:echo.reply: KeyError: 'typo'") as raised:
        await episode.step("one")
    assert raised.value.__cause__ is bug and log.count("finish []") == 3


async def test_what_was_begun_is_finished_when_it_is_closed_or_reset(play: Any) -> None:
    episode = play()
    await episode.reset(0)
    await episode.reset(1)
    await episode.close()
    await episode.close()
    assert log == ["start with seed 0", "finish []", "start with seed 1", "finish []"]


class Till(Environment["Till.Open"]):
    """Tools as text."""

    class Open:
        def __init__(self) -> None:
            self.sum = 0

        def add(self, cents: int) -> int:
            """Add a price."""
            self.sum += cents
            return self.sum

    rewards = {"success": 1.0}
    tools = Open
    max_turns = 3

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        yield Task(task_id="till", prompt=({"role": "user", "content": "Add 3 and 4."},))

    async def start(self, context: Any) -> Till.Open:
        return self.Open()

    async def reply(self, context: Any) -> Reply:
        context.info["success"] = context.state.sum == 7
        return Reply(done=True)

    @reward(inline=True)
    def success(self, episode: Episode) -> float:
        return float(episode.success)


async def test_an_environment_with_tools_is_played_with_calls_as_text() -> None:
    till = Till()
    scorer = Scorer.of(till, PluginRegistry([]))
    game = TextGame(till, list(till.tasks("train")), scorer, None, replace(CONFIG, name="till", max_turns=None))
    episode = TextEpisode(game)
    prompt, _ = await episode.reset(0)
    assert "add(cents: integer): Add a price." in prompt and prompt.endswith("Add 3 and 4.")
    three = await episode.step('<tool_call>{"name": "add", "arguments": {"cents": 3}}</tool_call>')
    four = await episode.step('<tool_call>{"name": "add", "arguments": {"cents": 4}}</tool_call><tool_call>{')
    assert three.text == "3" and four.text.startswith("7\n\nError: ")
    assert (await episode.step("Done.")).reward == 1.0
    await game.close()
