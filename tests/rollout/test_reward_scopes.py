"""Rewards of turns and of groups, and metrics: what they add to an episode, and what is refused."""

import asyncio

import pytest
from sampled import sampled_turn

from agentgym.env import Environment, default_weights
from agentgym.errors import UserError
from agentgym.rewards import UNBOUNDED, Reward, metric, reward
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Outcome, Task

TURN = sampled_turn((1,), (2,))


def played(num_turns=2, **info):
    return Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0, turns=[TURN] * num_turns, info=dict(info))


def words(episode):
    """In a process of its own, which sees no turns: of the texts that were recorded."""
    return [float(word == "right") for word in episode.info["said"]]


def solved(episode):
    return float(episode.info["solved"])


def of_turns(function=words, **settings):
    return Reward(name="words", function=function, scope="turn", **settings)


async def scored(episode, *rewards, **weights):
    async with Scorer(rewards, weights, num_workers=1) as scorer:
        await scorer.score(episode)
        if episode.outcome is None:
            episode.outcome = Outcome.SCORED
        await scorer.score_group([episode])
    return episode


@pytest.mark.parametrize("inline", [True, False])
async def test_the_scores_of_turns_count_with_their_mean(inline):
    success = Reward(name="solved", function=solved, inline=True)
    episode = await scored(
        played(said=["right", "wrong"], solved=True), of_turns(inline=inline), success, words=0.5, solved=1.0
    )
    assert episode.error is None
    assert episode.rewards == {"words": 0.5, "solved": 1.0}
    assert episode.turn_rewards == [0.25, 0.0]
    assert episode.reward == 1.25


@pytest.mark.parametrize(
    ("given", "scope", "what"),
    [
        ([1.0], "turn", "1 scores for 2 turns"),
        (1.0, "turn", "gives a list"),
        ([1.0, 2.0], "turn", "its range is 0 to 1"),
        ([1.0, 1.0], "episode", "otherwise a number"),
    ],
)
async def test_a_score_that_does_not_fit_its_scope_is_the_rewards_error(given, scope, what):
    one = Reward(name="words", function=lambda episode: given, scope=scope, inline=True)
    episode = await scored(played(), one, words=1.0)
    assert episode.outcome is Outcome.INFRA_ERROR
    assert episode.error.source == "reward:words" and what in episode.error.message


def group_of(*lengths):
    episodes = [played(length=length) for length in lengths]
    for episode in episodes:
        episode.outcome = Outcome.SCORED
    return episodes


def shortest(episodes):
    least = min(episode.info["length"] for episode in episodes)
    return [float(episode.info["length"] == least) for episode in episodes]


async def score_group(episodes, function, **settings):
    one = Reward(name="shortest", function=function, scope="group", inline=True, **settings)
    success = Reward(name="one", function=lambda episode: 1.0, inline=True)
    async with Scorer([one, success], {"shortest": 0.5, "one": 1.0}) as scorer:
        for episode in episodes:
            await scorer.score(episode)
        await scorer.score_group(episodes)


async def test_a_reward_of_the_group_is_added_to_its_scored_episodes():
    episodes = group_of(3, 5, 1, 9)
    episodes[2].outcome, episodes[3].outcome = Outcome.INFRA_ERROR, Outcome.INVALID
    await score_group(episodes, shortest)
    assert [episode.reward for episode in episodes[:2]] == [1.5, 1.0]
    assert episodes[0].rewards == {"shortest": 1.0, "one": 1.0}
    assert episodes[2].rewards["shortest"] is episodes[3].rewards["shortest"] is None


async def later(episodes):
    return shortest(episodes)


async def test_a_reward_of_the_group_may_be_async():
    episodes = group_of(3, 5)
    await score_group(episodes, later)
    assert [episode.reward for episode in episodes] == [1.5, 1.0]


def raises(episodes):
    raise KeyError("length")


@pytest.mark.parametrize("function", [raises, lambda episodes: [1.0], lambda episodes: [9.0] * 2])
async def test_a_reward_of_the_group_that_fails_is_each_episodes_error(function):
    episodes = group_of(3, 5)
    await score_group(episodes, function)
    assert {(episode.outcome, episode.error.source) for episode in episodes} == {
        (Outcome.INFRA_ERROR, "reward:shortest")
    }
    assert [episode.reward for episode in episodes] == [None, None]  # no part of a sum


async def forever(episodes):
    await asyncio.Event().wait()


async def test_a_reward_of_the_group_that_takes_too_long_says_so():
    episodes = group_of(3, 5)
    await score_group(episodes, forever, timeout_s=0.01)
    assert {episode.error.message for episode in episodes} == {"it took longer than 0.01 s"}


async def test_an_episode_that_the_group_gives_no_score_is_unscored():
    episodes = group_of(3, 5)
    await score_group(episodes, lambda episodes: [1.0, None])
    assert [episode.reward for episode in episodes] == [1.5, None]
    assert episodes[1].error.kind == "unscored"


def test_a_plain_reward_of_a_group_is_refused_at_the_start():
    with pytest.raises(UserError, match="compares the episodes of a group"):
        Scorer([Reward(name="shortest", function=shortest, scope="group")], {"shortest": 1.0})


def test_an_unknown_scope_is_refused():
    with pytest.raises(ValueError, match="scope 'token'"):
        Reward(name="words", function=words, scope="token")


class Counted(Environment):
    """With a metric beside its reward."""

    name = "counted"

    def tasks(self, split, seed=0):
        yield Task(task_id="t", prompt=())

    @reward(inline=True)
    def fine(self, episode):
        return 1.0

    @metric
    async def num_letters(self, episode):
        return 12_000.0


async def test_a_metric_is_recorded_without_a_range_and_counts_nothing():
    environment = Counted()
    assert default_weights(environment) == {"fine": 1.0, "num_letters": 0.0}
    async with Scorer.of(environment, None) as scorer:
        assert scorer.floor == 0.0
        episode = played()
        await scorer.score(episode)
    assert episode.rewards == {"fine": 1.0, "num_letters": 12_000.0}
    assert episode.reward == 1.0


def test_a_metric_cannot_be_weighed():
    counted = Reward(name="length", function=len, low=-UNBOUNDED, high=UNBOUNDED, inline=True)
    Scorer([counted], {"length": 0.0})
    with pytest.raises(UserError, match=r"rewards\.length is 0\.1, but 'length' is a metric, which has no range"):
        Scorer([counted], {"length": 0.1})
