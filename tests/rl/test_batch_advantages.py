"""Advantages of turns, tokens and whole steps: against slow float64 sums, and by the property that defines each."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from sampled import sampled_turn

from agentgym.rl.advantages import (
    Advantage,
    BatchStd,
    Distillation,
    GaeTokens,
    GaeTurns,
    PerTurn,
    ReinforcePlusPlus,
    StepBatch,
    assign_advantages,
)
from agentgym.rl.advantages.assign import assign_batch
from agentgym.rl.advantages.estimation import gae
from agentgym.rl.samples import group_samples
from agentgym.rl.trained import columns_of, exact_by_turn, of_trained
from agentgym.types import Episode, Group, Outcome, Task

TASK = Task(task_id="t", prompt=())


def played(name, reward, lengths, turn_rewards=(), masked=(), seed=0):
    rng, prompt, turns = random.Random(f"{name}/{seed}"), (1,), []
    for number, length in enumerate(lengths):
        ids = tuple(rng.randrange(5, 90) for _ in range(length))
        turns.append(sampled_turn(prompt, ids, [-rng.random() * 3 for _ in ids], masked=number in masked))
        prompt = (*prompt, *ids, 2, 3)
    episode = Episode(episode_id=name, task=TASK, seed=0, turns=turns, outcome=Outcome.SCORED, reward=reward)
    episode.turn_rewards = [*turn_rewards]
    return episode


def two_groups(advantage):
    """Of the second all episodes earned the same."""
    first = [played("a", 1.0, (2, 3, 1), (0.2, 0.0, 0.3)), played("b", 0.25, (4, 2)), played("c", 0.0, (1,))]
    second = [played("d", 0.5, (3, 3)), played("e", 0.5, (2,), (0.5,)), played("f", 0.5, (1, 2, 2), masked=(1,))]
    groups = [Group(group_id=n, task=TASK, start_version=0, episodes=e) for n, e in enumerate((first, second))]
    for group in groups:
        assign_advantages(group, advantage)
    return groups


def numbers(groups, seed):
    """A number for each trained token."""
    rng = np.random.default_rng(seed)
    samples = group_samples(groups)
    return exact_by_turn(groups, [*rng.normal(size=sum(s.num_trained_tokens for s in samples)).tolist()])


def trained_column(groups, column="advantages"):
    samples = group_samples(groups)
    return np.array(of_trained(samples, [getattr(s, column) for s in samples]))


def slow_gae(rewards, values, discount, lam):
    """By the definition: a sum over all later errors, each with its power."""
    values = np.array([*values, 0.0])
    errors = np.array(rewards) + discount * values[1:] - values[:-1]
    return [sum((discount * lam) ** (s - t) * errors[s] for s in range(t, len(errors))) for t in range(len(errors))]


@pytest.mark.parametrize(("discount", "lam"), [(1.0, 0.95), (0.9, 1.0), (0.7, 0.3), (1.0, 0.0), (0.0, 0.5)])
def test_gae_is_the_sum_of_its_definition(discount, lam):
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=9).tolist(), rng.normal(size=9).tolist()
    assert gae(rewards, values, discount, lam) == pytest.approx(slow_gae(rewards, values, discount, lam), abs=1e-12)


def test_gae_with_lambda_one_is_the_return_minus_the_value_and_with_zero_one_step():
    rewards, values = [0.0, 1.0, 2.0], [0.5, 0.25, -1.0]
    assert gae(rewards, values, 0.5, 1.0) == [0.0 + 0.5 + 0.5 - 0.5, 1.0 + 1.0 - 0.25, 2.0 + 1.0]
    assert gae(rewards, values, 0.5, 0.0) == [0.125 - 0.5, 1.0 - 0.5 - 0.25, 3.0]


def test_a_discount_weighs_what_a_turn_earns_later():
    """Worked by hand; what was said of the whole episode, 0.5, is earned at the last turn."""
    early = played("a", 1.0, (1, 1, 1), (0.0, 0.0, 0.5))
    nothing = played("b", 0.0, (1, 1, 1), (0.0, 0.0, 0.0))
    group = Group(group_id=0, task=TASK, start_version=0, episodes=[early, nothing])
    assign_advantages(group, PerTurn(discount=0.5))
    to_go = [0.25, 0.5, 1.0]
    assert np.array(early.turn_advantages) * 0.5 == pytest.approx([g / 2 for g in to_go], abs=1e-5)
    assert nothing.turn_advantages == pytest.approx([-value for value in early.turn_advantages])


def test_gae_over_turns_without_a_critic_is_per_turn_when_lambda_is_one():
    groups = two_groups(GaeTurns(gae_lambda=1.0, discount=0.8, whiten=False))
    found = [episode.turn_advantages for episode in groups[0].episodes]
    scaled = two_groups(PerTurn(discount=0.8))
    expected = [episode.turn_advantages for episode in scaled[0].episodes]
    scale = found[0][0] / expected[0][0]
    for mine, other in zip(found, expected, strict=True):
        assert mine == pytest.approx([value * scale for value in other], abs=1e-9)


def test_gae_over_turns_takes_the_critics_value_before_a_turns_first_token():
    advantage = GaeTurns(gae_lambda=0.6, discount=0.9, critic=True, whiten=False)
    groups = two_groups(advantage)
    values = numbers(groups, 5)
    returns = assign_batch(StepBatch(groups=groups, values=values), advantage)
    a, f = groups[0].episodes[0], groups[1].episodes[2]
    before = [row[0] for row in values["a"]]
    expected = slow_gae([0.2, 0.0, 0.8], before, 0.9, 0.6)
    assert a.turn_advantages == pytest.approx(expected, abs=1e-12)
    assert [row[0] for row in returns["a"]] == pytest.approx(np.add(expected, before), abs=1e-12)
    before = [row[0] for row in values["f"] if row]
    first, last = slow_gae([0.0, 0.5], before, 0.9, 0.6)
    assert f.turn_advantages == pytest.approx([first, 0.0, last], abs=1e-12)  # the masked turn is no action


def test_gae_over_tokens_earns_a_turns_reward_with_its_last_token():
    advantage = GaeTokens(gae_lambda=0.9, discount=0.99, whiten=False)
    groups = two_groups(advantage)
    values = numbers(groups, 6)
    returns = assign_batch(StepBatch(groups=groups, values=values), advantage)
    flat = [value for row in values["a"] for value in row]
    expected = slow_gae([0, 0.2, 0, 0, 0, 0.8], flat, 0.99, 0.9)
    [sample] = [s for s in group_samples(groups) if s.sample_id == "a"]
    assert of_trained([sample], [sample.advantages]) == pytest.approx(expected, abs=1e-12)
    column = columns_of(group_samples(groups), groups, returns)[0]
    assert of_trained([sample], [column]) == pytest.approx(np.add(expected, flat), abs=1e-12)


def test_a_critic_that_is_right_leaves_nothing_to_learn():
    """With V the discounted reward to go of a certain world, no action was better than expected."""
    groups = two_groups(GaeTokens())
    [*episodes] = StepBatch(groups=groups).trained()
    values = {
        e.episode_id: [[e.reward] * len(t.completion_ids) if not t.masked else [] for t in e.turns] for e in episodes
    }
    for episode in episodes:
        episode.turn_rewards = []
    assign_batch(StepBatch(groups=groups, values=values), GaeTokens(discount=1.0, gae_lambda=0.7, whiten=False))
    assert trained_column(groups) == pytest.approx(0.0, abs=1e-12)


def test_reinforce_plus_plus_is_normalised_over_the_tokens_of_all_groups():
    advantage = ReinforcePlusPlus()
    groups = two_groups(advantage)
    assert [group.has_signal for group in groups] == [True, True]  # also the group of equal rewards
    assign_batch(StepBatch(groups=groups), advantage)
    found = trained_column(groups)
    assert found.mean() == pytest.approx(0, abs=1e-9) and found.std() == pytest.approx(1, abs=1e-4)
    rewards = {"a": 1.0, "b": 0.25, "c": 0.0, "d": 0.5, "e": 0.5, "f": 0.5}
    raw = np.concatenate([[rewards[s.sample_id]] * s.num_trained_tokens for s in group_samples(groups)])
    assert found == pytest.approx((raw - raw.mean()) / raw.std(), abs=1e-4)
    assert len({a for a in groups[1].advantages}) == 1 and groups[1].advantages[0] != 0


def test_reinforce_plus_plus_charges_each_token_for_the_divergence_from_there_on():
    advantage = ReinforcePlusPlus(kl_coef=0.1)
    groups = two_groups(advantage)
    reference = numbers(groups, 7)
    assign_batch(StepBatch(groups=groups, reference=reference), advantage)
    raw = []
    for episode in StepBatch(groups=groups).trained():
        sampler = [p for turn in episode.turns if not turn.masked for p in turn.logprobs]
        ref = [value for row in reference[episode.episode_id] for value in row]
        kl = np.subtract(sampler, ref)
        raw += [episode.reward - 0.1 * kl[t:].sum() for t in range(len(kl))]
    assert trained_column(groups) == pytest.approx((raw - np.mean(raw)) / np.std(raw), abs=1e-5)


def test_reinforce_plus_plus_with_a_groups_baseline_skips_equal_groups():
    groups = two_groups(ReinforcePlusPlus(group_baseline=True))
    assert [group.has_signal for group in groups] == [True, False]


def test_batch_std_is_trls_group_mean_and_batch_std_with_n_for_n_minus_1():
    """As TRL computes `scale_rewards: batch`: advantages = (rewards - mean of the group) / rewards.std()."""
    rewards = np.array([[1.0, 0.25, 0.0], [0.5, 0.0, 1.0]])
    groups = []
    for n, row in enumerate(rewards.tolist()):
        episodes = [played(f"{n}{at}", reward, (3, 2)) for at, reward in enumerate(row)]
        groups.append(Group(group_id=n, task=TASK, start_version=0, episodes=episodes))
    broken = Episode(episode_id="x", task=TASK, seed=0, outcome=Outcome.INFRA_ERROR)
    untrained = played("y", 0.5, (4,), masked=(0,))
    groups[1].episodes[1:1] = [broken, untrained]  # the second counts as a reward of the group and of the batch
    advantage = BatchStd()
    for group in groups:
        assign_advantages(group, advantage)
    assign_batch(StepBatch(groups=groups), advantage)
    flat = np.array([1.0, 0.25, 0.0, 0.5, 0.5, 0.0, 1.0])
    trl = (np.array([1.0, 0.25, 0.0, 0.5, 0.0, 1.0]) - np.repeat([1.25 / 3, 0.5], 3)) / (flat.std(ddof=1) + 1e-4)
    found = [group.advantages[at] for group, ats in zip(groups, ((0, 1, 2), (0, 3, 4)), strict=True) for at in ats]
    assert found == pytest.approx(trl * math.sqrt(7 / 6), abs=1e-3)
    assert trained_column(groups) == pytest.approx(np.repeat(found, 5), abs=1e-12)
    assert groups[1].advantages[1] is None
    equal = two_groups(advantage)
    assert [group.has_signal for group in equal] == [True, False]


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_distillation_is_the_teachers_log_ratio_to_go(discount):
    advantage = Distillation(teacher="t", coef=0.3, discount=discount, reward_coef=0.0)
    groups = two_groups(advantage)
    assert all(group.has_signal for group in groups)
    teacher = numbers(groups, 8)
    assign_batch(StepBatch(groups=groups, teacher=teacher), advantage)
    expected = []
    for episode in StepBatch(groups=groups).trained():
        sampler = [p for turn in episode.turns if not turn.masked for p in turn.logprobs]
        ratio = np.subtract([value for row in teacher[episode.episode_id] for value in row], sampler)
        expected += [0.3 * sum(discount ** (i - t) * ratio[i] for i in range(t, len(ratio))) for t in range(len(ratio))]
    assert trained_column(groups) == pytest.approx(expected, abs=1e-12)


def test_a_teacher_that_is_the_sampler_teaches_nothing_but_the_reward():
    advantage = Distillation(teacher="t", reward_coef=2.0)
    groups = two_groups(advantage)
    before = [[*group.advantages] for group in groups]
    same = {e.episode_id: [[*t.logprobs] for t in e.turns] for e in StepBatch(groups=groups).trained()}
    assign_batch(StepBatch(groups=groups, teacher=same), advantage)
    assert [a for g in groups for a in g.advantages] == pytest.approx([a for row in before for a in row])


def test_a_reward_of_the_group_reaches_every_turn():
    """It is in the episode's reward and in no turn's: what is left at the end."""
    with_bonus, without = played("a", 0.5 + 0.25, (1, 1), (0.0, 0.5)), played("b", 0.5, (1, 1), (0.0, 0.5))
    group = Group(group_id=0, task=TASK, start_version=0, episodes=[with_bonus, without])
    for advantage in (PerTurn(), PerTurn(discount=0.9), GaeTurns(whiten=False)):
        assign_advantages(group, advantage)
        assert min(with_bonus.turn_advantages) > 0 > max(without.turn_advantages)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastToken(Advantage):
    """A plugin's: the last token of each turn answers for it."""

    value: float = 1.0

    def __call__(self, episodes_G):
        return [0.0] * len(episodes_G)

    def of_tokens(self, episodes_G):
        return [[[0.0] * (len(t.completion_ids) - 1) + [self.value] for t in e.turns] for e in episodes_G]


def test_a_plugin_gives_each_token_its_own_and_a_branchs_weight_counts():
    episode = played("a", 1.0, (2, 3))
    group = Group(group_id=0, task=TASK, start_version=0, episodes=[episode])
    assign_advantages(group, LastToken())
    assert group.has_signal
    assert trained_column([group]).tolist() == [0, 1, 0, 0, 1]
    apart = dataclasses.replace(episode.turns[1], prompt_ids=(1, 9))
    episode.turns, episode.branches = [episode.turns[0], apart], [(0,), (1,)]
    weighted = group_samples([group], "last")
    assert [of_trained([s], [s.advantages]) for s in weighted] == [[0, 0], [0, 0, 1]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_of_tokens_that_are_not_finite_are_refused(value):
    group = Group(group_id=0, task=TASK, start_version=0, episodes=[played("a", 1.0, (2, 3))])
    with pytest.raises(ValueError, match=r"LastToken gave \[2, 3\], some not finite advantages .* of a"):
        assign_advantages(group, LastToken(value=value))


def test_an_advantage_that_misses_a_token_or_an_episode_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Short(LastToken):
        def of_batch(self, batch):
            from agentgym.rl.advantages import BatchAdvantages

            return BatchAdvantages(advantages={"a": [[1.0, 1.0], [1.0]]})

    group = Group(group_id=0, task=TASK, start_version=0, episodes=[played("a", 1.0, (2, 3))])
    assign_advantages(group, Short())
    with pytest.raises(ValueError, match=r"Short gave \[2, 1\] advantages for the turns of a, which sampled \[2, 3\]"):
        assign_batch(StepBatch(groups=[group]), Short())
    group.episodes = [played("b", 1.0, (2, 3))]
    with pytest.raises(ValueError, match=r"Short gave \[\] advantages for the turns of b"):
        assign_batch(StepBatch(groups=[group]), Short())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Distillation(coef=0), "coef 0 must be above 0"),
        (lambda: GaeTurns(gae_lambda=1.5), "gae_lambda is 1.5; allowed is 0 to 1"),
        (lambda: PerTurn(discount=-0.1), "discount is -0.1"),
        (lambda: ReinforcePlusPlus(kl_coef=-1), "kl_coef is -1"),
    ],
)
def test_settings_out_of_range_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
