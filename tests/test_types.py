"""The data refuses what can't be: tokens without a log-probability or a version, masks that don't fit."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.rollout.token_prefix import TokenPrefix
from agentgym.types import (
    Completion,
    Episode,
    ErrorRecord,
    FinishReason,
    Group,
    Outcome,
    Sample,
    SamplingParams,
    Stop,
    Task,
    Turn,
    VersionSpan,
    check_sampled,
)

TASK = Task(task_id="t", prompt=({"role": "user", "content": "hi"},))


def spans(*borders: int, first_version: int = 0) -> tuple[VersionSpan, ...]:
    return tuple(
        VersionSpan(version=first_version + i, start=start, end=end) for i, (start, end) in enumerate(pairwise(borders))
    )


def completion(**changes: Any) -> Completion:
    fields: dict[str, Any] = {
        "completion_ids": (5, 6, 7),
        "logprobs": (-0.1, 0.0, -9.0),
        "versions": spans(0, 3),
        "finish_reason": FinishReason.STOP,
    }
    return Completion(**{**fields, **changes})


def turn(*, version: int = 0, num_tokens: int = 2) -> Turn:
    return Turn(
        prompt_ids=(1, 2),
        completion_ids=(3,) * num_tokens,
        logprobs=(-1.0,) * num_tokens,
        versions=spans(0, num_tokens, first_version=version),
        finish_reason=FinishReason.STOP,
    )


def sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "sample_id": "s",
        "token_ids": (1, 2, 3),
        "loss_mask": (0.0, 1.0, 1.0),
        "logprobs": (0.0, -1.0, -2.0),
        "advantages": (0.0, 0.5, 0.5),
        "versions": (-1, 4, 4),
    }
    return Sample(**{**fields, **changes})


def test_a_completion_has_one_logprob_and_one_version_for_each_token() -> None:
    assert completion().completion_ids == (5, 6, 7)
    assert completion(completion_ids=(), logprobs=(), versions=()).logprobs == ()
    with pytest.raises(ValueError, match="3 sampled tokens but 2 logprobs"):
        completion(logprobs=(-0.1, -0.2))


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf, 0.5])
def test_a_logprob_is_finite_and_at_most_zero(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and at most 0"):
        completion(logprobs=(-0.1, bad, -0.2))


@pytest.mark.parametrize(
    "versions",
    [
        (),
        spans(0, 2),
        spans(0, 4),
        spans(1, 3),
        spans(0, 1) + spans(2, 3),
        spans(0, 2) + spans(1, 3),
        spans(0, 0, 3),
        spans(1, 3) + spans(0, 1),
    ],
)
def test_version_spans_without_cover_are_refused(versions: tuple[VersionSpan, ...]) -> None:
    with pytest.raises(ValueError, match="version spans"):
        completion(versions=versions)


@given(st.lists(st.integers(1, 5), max_size=6))
def test_spans_that_follow_each_other_cover_and_losing_any_one_does_not(lengths: list[int]) -> None:
    borders = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    tokens = [0] * borders[-1]
    versions = spans(*borders)
    check_sampled(tokens, [-1.0] * len(tokens), versions)
    for left_out in range(len(versions)):
        with pytest.raises(ValueError, match="version spans"):
            check_sampled(tokens, [-1.0] * len(tokens), versions[:left_out] + versions[left_out + 1 :])


def test_a_turn_is_checked_as_its_completion_is() -> None:
    with pytest.raises(ValueError, match="1 sampled tokens but 0 logprobs"):
        Turn(
            prompt_ids=(1,), completion_ids=(2,), logprobs=(), versions=spans(0, 1),
            finish_reason=FinishReason.STOP,
        )  # fmt: skip


@pytest.mark.parametrize("column", ["loss_mask", "logprobs", "advantages", "versions", "ref_logprobs"])
def test_every_column_of_a_sample_has_its_length(column: str) -> None:
    with pytest.raises(ValueError, match="sample s: 3 tokens"):
        sample(**{column: (0.0, 0.0)})


def test_a_sample_counts_its_trained_tokens_and_never_trains_the_first() -> None:
    assert sample().num_trained_tokens == 2
    assert sample(ref_logprobs=(0.0, -1.0, -1.0)).ref_logprobs
    with pytest.raises(ValueError, match="first token has no context"):
        sample(loss_mask=(1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": math.nan},
    ],
)
def test_sampling_parameters_that_mean_nothing_are_refused(changes: dict[str, Any]) -> None:
    assert SamplingParams(max_tokens=1, temperature=0.0).top_k == 0
    with pytest.raises(ValueError, match=r"allowed are|give at least"):
        SamplingParams(**{"max_tokens": 1, **changes})


def test_an_episode_counts_tokens_and_knows_its_oldest_weights() -> None:
    episode = Episode(episode_id="e", task=TASK, seed=0, turns=[turn(version=5, num_tokens=3), turn(version=4)])
    assert episode.num_sampled_tokens == 5 and episode.min_version == 4


@pytest.mark.parametrize(("said", "success"), [(True, True), (False, False), (None, False), (1, False), ("yes", False)])
def test_success_is_only_what_the_environment_calls_true(said: Any, success: bool) -> None:
    assert Episode(episode_id="e", task=TASK, seed=0, info={"success": said}).success is success
    assert Episode(episode_id="e", task=TASK, seed=0).success is False


def test_a_new_episode_is_not_scored_and_shares_nothing_with_others() -> None:
    one, other = (Episode(episode_id="e", task=TASK, seed=0) for _ in range(2))
    one.messages.append({"role": "user", "content": "x"})
    one.info["a"] = one.rewards["r"] = 1.0
    assert (other.messages, other.info, other.rewards, other.turns) == ([], {}, {}, [])
    assert other.reward is None and other.outcome is None and other.stop is None


@pytest.mark.parametrize(
    ("advantages", "has_signal"),
    [([], False), ([0.0, 0.0], False), ([None, 0.0], False), ([None, None], False), ([0.0, -0.5], True)],
)
def test_a_group_has_signal_when_an_advantage_differs_from_zero(
    advantages: list[float | None], has_signal: bool
) -> None:
    assert Group(group_id=0, task=TASK, start_version=0, advantages=advantages).has_signal is has_signal


def test_what_was_sampled_can_not_be_changed_afterwards() -> None:
    for thing, name in ((completion(), "logprobs"), (turn(), "prompt_ids"), (sample(), "loss_mask"), (TASK, "answer")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, ())


def test_data_crosses_processes_unchanged() -> None:
    episode = Episode(
        episode_id="e",
        task=TASK,
        seed=1,
        turns=[turn()],
        stop=Stop.DONE,
        outcome=Outcome.SCORED,
        error=ErrorRecord(source="sandbox", kind="SandboxLost", message="gone"),
    )
    for thing in (episode, sample(), completion(), Group(group_id=1, task=TASK, start_version=2)):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_enums_are_saved_as_the_words_they_are() -> None:
    assert json.dumps([Stop.MAX_TURNS, Outcome.INFRA_ERROR, FinishReason.ABORT]) == (
        '["max_turns", "infra_error", "abort"]'
    )


token_ids = st.integers(0, 2**32 - 1)


@given(st.lists(token_ids, max_size=6), st.lists(token_ids, max_size=4), st.integers(-8, 8), st.integers(-8, 8))
def test_a_prefix_of_growing_ids_is_the_tuple_that_it_was(ids: list[int], more: list[int], a: int, b: int) -> None:
    then, growing = tuple(ids), array("I", ids)
    prefix = TokenPrefix(growing)
    growing.extend(more)
    assert prefix == then and then == prefix and [*prefix] == [*then] and len(prefix) == len(then)
    assert prefix[a:b] == then[a:b] and prefix + then == then + then and repr(prefix) == repr(then)
    assert hash(prefix) == hash(then) and pickle.loads(pickle.dumps(prefix)) == then
    assert (prefix[a] == then[a]) if -len(then) <= a < len(then) else a not in range(-len(then), len(then))
    assert (prefix == (*then, 1)) is False
