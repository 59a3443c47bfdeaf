"""Advantages against numbers worked by hand, and which episodes they count."""

import dataclasses
import math
import random

import numpy as np
import pytest
from sampled import sampled_turn

from agentgym.rl.advantages import Advantage, MeanOnly, Opo, PerTurn, Rloo, StdNormalized, assign_advantages
from agentgym.types import Episode, Group, Outcome, Task

TASK = Task(task_id="t", prompt=())


def episode(outcome, reward):
    return Episode(episode_id="e", task=TASK, seed=0, outcome=outcome, reward=reward)


def rewarded(*rewards):
    return [episode(Outcome.SCORED, reward) for reward in rewards]


def group_of(*episodes):
    return Group(group_id=0, task=TASK, start_version=0, episodes=list(episodes))


def test_names_against_numbers_worked_by_hand():
    episodes = rewarded(1.0, 0.0, 0.0, 1.0)
    assert MeanOnly()(episodes) == [0.5, -0.5, -0.5, 0.5]
    assert StdNormalized()(episodes) == pytest.approx([1, -1, -1, 1], abs=1e-5)
    # leave-one-out: 1 - 1/3 and 0 - 2/3
    assert Rloo()(episodes) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


@pytest.mark.parametrize("rewards", [[0.3] * 5, [0.1 + 0.2, 0.3], [1.0], []])
@pytest.mark.parametrize("advantage", [MeanOnly(), StdNormalized(), Rloo()])
def test_equal_rewards_give_exactly_zero(rewards, advantage):
    assert advantage(rewarded(*rewards)) == [0.0] * len(rewards)


@pytest.mark.parametrize("advantage", [MeanOnly(), StdNormalized(), Rloo()])
def test_an_episode_that_earned_the_mean_gets_exactly_zero(advantage):
    """The mean of .1, .2 and .3 is .20000000000000001 in floats."""
    low, middle, high = advantage(rewarded(0.1, 0.2, 0.3))
    assert (middle, low) == (0.0, pytest.approx(-high)) and high > 0


@pytest.mark.parametrize("advantage", [MeanOnly(), StdNormalized(), Rloo()])
def test_rewards_that_differ_have_signal_however_little(advantage):
    group = group_of(*rewarded(0.5, 0.5 + 1e-7))
    assign_advantages(group, advantage)
    assert group.has_signal


def test_a_broken_episode_is_left_out_and_an_invalid_one_counts():
    group = group_of(episode(Outcome.SCORED, 1.0), episode(Outcome.INFRA_ERROR, None), episode(Outcome.INVALID, 0.0))
    assign_advantages(group, MeanOnly())
    assert group.advantages == [0.5, None, -0.5]
    assert group.has_signal


def test_a_group_of_broken_episodes_has_no_signal():
    group = group_of(episode(Outcome.INFRA_ERROR, None), episode(Outcome.SCORED, 1.0))
    assign_advantages(group, StdNormalized())
    assert group.advantages == [None, 0.0]
    assert not group.has_signal


@pytest.mark.parametrize("values", [[1.0], [1.0, float("nan")]])
def test_an_advantage_that_misses_an_episode_or_is_not_finite_is_refused(values):
    @dataclasses.dataclass(frozen=True)
    class Broken(Advantage):
        def __call__(self, episodes_G):
            return values

    with pytest.raises(ValueError, match=r"Broken gave the advantages .* for 2 episodes"):
        assign_advantages(group_of(*rewarded(0.0, 1.0)), Broken())


def answer(reward, length, *, masked=False):
    turn = sampled_turn((1,), (2,) * length, masked=masked)
    return dataclasses.replace(episode(Outcome.SCORED, reward), turns=[turn])


def test_opo_against_a_float64_computation_and_its_baseline_has_the_least_variance():
    """The variance of the gradient's estimate is sum l (r - b)^2, less what does not depend on b."""
    rng = random.Random(0)
    rewards, lengths = np.array([rng.random() for _ in range(8)]), np.array([rng.randrange(1, 200) for _ in range(8)])
    found = Opo()([answer(r, n) for r, n in zip(rewards.tolist(), lengths.tolist(), strict=True)])
    baselines = np.linspace(0, 1, 100_001, dtype=np.float64)
    variances = (lengths * (rewards - baselines[:, None]) ** 2).sum(axis=1)
    assert rewards - np.array(found) == pytest.approx(baselines[variances.argmin()], abs=1e-5)
    assert found == pytest.approx(rewards - np.average(rewards, weights=lengths), abs=1e-12)


def test_opo_is_the_mean_where_lengths_are_equal_and_tokens_that_are_not_trained_have_no_weight():
    even = [answer(1.0, 7), answer(0.0, 7), answer(0.5, 7)]
    assert Opo()(even) == MeanOnly()(even) == [0.5, -0.5, 0.0]
    assert Opo()([answer(1.0, 30), answer(0.0, 10), answer(0.0, 500, masked=True)]) == [0.25, -0.75, -0.75]
    assert Opo()([answer(0.1 + 0.2, 3), answer(0.3, 8)]) == [0.0, 0.0]
    assert Opo()(rewarded(1.0, 0.0)) == [0.0, 0.0], "without a trained token there is nothing to weight"


def test_a_group_that_trains_only_advantages_of_zero_has_no_signal():
    """What a masked turn or an episode without a turn has does not count, whoever gave it."""
    group = group_of(answer(1.0, 5), answer(1.0, 9), answer(0.0, 500, masked=True))
    assign_advantages(group, Opo())
    assert group.advantages == [0.0, 0.0, -1.0] and not group.has_signal
    group.episodes[0].turn_advantages = [0.5]
    assert group.has_signal
    group.episodes[0].turn_advantages = [0.0]
    group.episodes[2].token_advantages = [[0.5] * 500]
    assert not group.has_signal
    group = group_of(answer(1.0, 5), episode(Outcome.INVALID, 0.0))
    group.advantages = [0.0, -1.0]
    assert not group.has_signal


@pytest.mark.parametrize("advantage", [MeanOnly(), StdNormalized(), Rloo(), Opo(), PerTurn()])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(advantage, value):
    broken, of_turn = answer(value, 3), answer(1.0, 3)
    of_turn.turn_rewards = [value]
    for one in (broken, of_turn):
        with pytest.raises(ValueError, match=r"episode e has the reward .*(nan|inf).* give finite numbers"):
            assign_advantages(group_of(answer(1.0, 3), one), advantage)


def with_turns(reward, *turn_rewards):
    played = episode(Outcome.SCORED, reward)
    played.turns, played.turn_rewards = [sampled_turn((1,), (2,))] * len(turn_rewards), list(turn_rewards)
    return played


def test_a_turn_gets_what_was_earned_from_it_on_against_the_group_at_that_turn():
    # rewards to go, with what is left at the end: [1.0, 0.5, 0.5] and [0.5, 0.5, 0.0]; the means are 0.75, 0.5, 0.25
    group = group_of(with_turns(1.0, 0.5, 0.0), with_turns(0.5, 0.0, 0.5))
    assign_advantages(group, PerTurn())
    std = 0.25  # of the rewards 1.0 and 0.5
    assert group.episodes[0].turn_advantages == pytest.approx([0.25 / std, 0.0], abs=1e-4)
    assert group.episodes[1].turn_advantages == pytest.approx([-0.25 / std, 0.0], abs=1e-4)
    assert group.advantages == pytest.approx([1, -1], abs=1e-4)


def test_turns_that_differ_have_signal_where_the_rewards_are_equal():
    early, late = with_turns(0.5, 0.5, 0.0), with_turns(0.5, 0.0, 0.5)
    group = group_of(early, late)
    assign_advantages(group, PerTurn())
    assert group.advantages == [0.0, 0.0] and group.has_signal
    assert early.turn_advantages[0] == late.turn_advantages[0] == 0.0
    assert early.turn_advantages[1] == -late.turn_advantages[1] < 0  # it had earned all before
    assign_advantages(group, StdNormalized())
    assert not group.has_signal


def test_rewards_that_differ_by_next_to_nothing_do_not_blow_up_the_turns():
    group = group_of(with_turns(0.5, 0.5, 0.0), with_turns(0.5001, 0.0, 0.5001))
    assign_advantages(group, PerTurn())
    assert max(abs(value) for one in group.episodes for value in one.turn_advantages) < 3


@pytest.mark.parametrize("values", [[1.0], [1.0, float("nan")]])
def test_advantages_of_turns_that_miss_one_or_are_not_finite_are_refused(values):
    @dataclasses.dataclass(frozen=True)
    class Broken(StdNormalized):
        def of_turns(self, episodes_G):
            return [values, [0.0, 0.0]]

    with pytest.raises(ValueError, match=r"Broken gave the advantages .* for 2 turns"):
        assign_advantages(group_of(with_turns(0.5, 0.5, 0.0), with_turns(0.5, 0.0, 0.5)), Broken())


def test_an_episode_that_ended_earlier_enters_a_later_turns_mean_with_what_was_left():
    group = group_of(with_turns(1.0, 1.0), with_turns(1.0, 0.0, 1.0), episode(Outcome.INVALID, 0.0))
    assign_advantages(group, PerTurn())
    std = (2 / 9) ** 0.5
    assert group.episodes[0].turn_advantages == pytest.approx([1 / 3 / std], abs=1e-4)
    # at the second turn: what was left is 0.0, 1.0 and 0.0
    assert group.episodes[1].turn_advantages == pytest.approx([1 / 3 / std, 2 / 3 / std], abs=1e-4)
    assert group.episodes[2].turn_advantages == []


def test_without_rewards_of_turns_they_share_the_episodes_advantage():
    group = group_of(*rewarded(1.0, 0.0))
    assign_advantages(group, PerTurn())
    assert group.advantages == StdNormalized()(group.episodes)
    assert not any(played.turn_advantages for played in group.episodes)
