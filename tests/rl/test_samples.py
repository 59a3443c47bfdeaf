import dataclasses
from dataclasses import replace

import pytest

from agentgym.rl.samples import episode_samples, group_samples
from agentgym.types import Episode, FinishReason, Group, Task, Turn, VersionSpan

TASK = Task(task_id="t", prompt=())


def turn(prompt, completion, *spans):
    return Turn(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        logprobs=tuple(-0.1 * (i + 1) for i in range(len(completion))),
        versions=tuple(VersionSpan(version=v, start=a, end=b) for v, a, b in spans),
        finish_reason=FinishReason.STOP,
    )


def two_turns():
    return Episode(
        episode_id="e",
        task=TASK,
        seed=0,
        turns=[turn([1, 2], [3, 4], (5, 0, 1), (6, 1, 2)), turn([1, 2, 3, 4, 9], [8], (6, 0, 1))],
    )


def test_every_token_appears_once_with_its_own_mask_logprob_and_version():
    sample = episode_samples(two_turns(), 0.5)[0]
    assert sample.token_ids == (1, 2, 3, 4, 9, 8)
    assert sample.loss_mask == (0, 0, 1, 1, 0, 1)
    assert sample.logprobs == (0, 0, -0.1, -0.2, 0, -0.1)
    assert sample.advantages == (0, 0, 0.5, 0.5, 0, 0.5)
    assert sample.versions == (-1, -1, 5, 6, -1, 6)


def test_a_masked_turn_is_context_and_is_not_trained():
    episode = two_turns()
    episode.turns[0] = replace(episode.turns[0], masked=True)
    sample = episode_samples(episode, 0.5)[0]
    assert sample.token_ids == (1, 2, 3, 4, 9, 8)
    assert sample.loss_mask == (0, 0, 0, 0, 0, 1)
    assert sample.logprobs == (0, 0, 0, 0, 0, -0.1)
    assert sample.versions == (-1, -1, -1, -1, -1, 6)
    assert sample.advantages == (0, 0, 0, 0, 0, 0.5)
    episode.turns[1] = replace(episode.turns[1], masked=True)
    group = Group(group_id=0, task=TASK, start_version=0, episodes=[episode], advantages=[1.0])
    assert group_samples([group]) == [], "nothing is left to train"


def test_a_turns_own_advantage_is_on_its_tokens_alone():
    episode = two_turns()
    episode.turn_advantages = [0.25, -2.0]
    assert episode_samples(episode, 0.5)[0].advantages == (0, 0, 0.25, 0.25, 0, -2.0)


@pytest.mark.parametrize(
    ("prompt", "words"), [([1, 2, 3, 7, 9], "rewrote its history"), ([1, 2, 3, 4], "with nothing between")]
)
def test_a_turn_that_does_not_follow_the_one_before_is_caught(prompt, words):
    episode = two_turns()
    episode.turns[1] = turn(prompt, [8], (6, 0, 1))
    with pytest.raises(AssertionError, match=words):
        episode_samples(episode, 1.0)


def test_every_scored_episode_is_a_sample_whatever_its_advantage():
    """Without those of advantage 0 the others would weigh more, and the KL term would not see them."""
    group = Group(group_id=0, task=TASK, start_version=0, episodes=[two_turns() for _ in range(4)])
    group.episodes[3].turns = []  # it ended before its first turn
    group.advantages = [1.0, 0.0, None, -1.0]
    samples = group_samples([group])
    assert [set(sample.advantages) for sample in samples] == [{0.0, 1.0}, {0.0}]
    assert [sample.num_trained_tokens for sample in samples] == [3, 3]


def test_a_group_whose_turns_are_all_masked_has_no_signal():
    """A step without a trained token would end the run."""
    group = Group(group_id=0, task=TASK, start_version=0, episodes=[two_turns() for _ in range(3)])
    group.advantages = [1.0, -1.0, None]
    for episode in group.episodes[:2]:
        episode.turns = [dataclasses.replace(turn, masked=True) for turn in episode.turns]
    assert group_samples([group]) == [] and not group.has_signal
    group.episodes[0] = two_turns()
    assert group.has_signal


def branched():
    """A conversation of three turns whose second was taken back, and a sub-agent's own."""
    return Episode(
        episode_id="e",
        task=TASK,
        seed=0,
        turns=[
            turn([1, 2], [3, 4], (5, 0, 2)),
            turn([1, 2, 3, 4, 9], [8], (5, 0, 1)),
            turn([7, 7], [6, 6, 6], (6, 0, 3)),
            turn([1, 2, 3, 4, 5], [8, 8], (7, 0, 2)),
        ],
        branches=[(0, 1), (0, 3), (2,)],
        branch_reasons=["message altered", "system changed"],
    )


def test_each_branch_is_a_sample_and_a_shared_turn_is_trained_in_the_first():
    first, second, third = episode_samples(branched(), 0.5)
    assert [s.sample_id for s in (first, second, third)] == ["e", "e-b1", "e-b2"]
    assert (first.token_ids, first.loss_mask) == ((1, 2, 3, 4, 9, 8), (0, 0, 1, 1, 0, 1))
    assert (second.token_ids, second.loss_mask) == ((1, 2, 3, 4, 5, 8, 8), (0, 0, 0, 0, 0, 1, 1))
    assert second.versions == (-1, -1, -1, -1, -1, 7, 7) and second.logprobs[:5] == (0,) * 5
    assert second.advantages == (0, 0, 0, 0, 0, 0.5, 0.5)
    assert third.token_ids == (7, 7, 6, 6, 6)


@pytest.mark.parametrize(
    ("weights", "of_turns"), [("tokens", (1, 1, 1, 1)), ("equal", (8 / 9, 8 / 9, 8 / 9, 4 / 3)), ("last", (1, 0, 0, 1))]
)
def test_the_advantage_is_shared_by_branches_as_the_recipe_says(weights, of_turns):
    """Eight tokens in three branches: 3 (the shared turn included), 2 and 3."""
    first, second, third = episode_samples(branched(), 1.0, weights)
    found = (first.advantages[2], first.advantages[5], third.advantages[2], second.advantages[5])
    assert found == pytest.approx(of_turns)
    if weights == "equal":
        totals = [sum(sample.advantages) for sample in (first, second, third)]
        assert totals == pytest.approx([8 / 3] * 3)


def test_a_branch_whose_own_turns_are_masked_is_no_sample():
    episode = branched()
    episode.turns[3] = replace(episode.turns[3], masked=True)
    assert [s.sample_id for s in episode_samples(episode, 1.0)] == ["e", "e-b2"]


def test_a_turn_that_is_in_no_branch_is_caught():
    episode = branched()
    episode.branches.pop()
    with pytest.raises(AssertionError, match="in no branch"):
        episode_samples(episode, 1.0)
