"""The built-in rewards read the environment's record, and odd records are not scored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.hooks import PluginRegistry
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Json, Message, Outcome, Task

ALL = {
    name: PluginRegistry.discover().reward(name)
    for name in ("success", "tests_passed", "exact_match", "numeric_match", "format", "length_penalty")
}


def score(name: str, info: dict[str, Json], answer: Json = None, said: str = "") -> object:
    messages: list[Message] = [{"role": "user", "content": "?" * 9000}, {"role": "assistant", "content": said}]
    episode = Episode(
        episode_id="e", task=Task(task_id="t", prompt=(), answer=answer), seed=0, info=info, messages=messages
    )
    return ALL[name].function(episode)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"success": True}, 1.0),
        ({"success": False}, 0.0),
        ({}, 0.0),
        ({"success": "yes"}, 0.0),
        ({"success": 1}, 0.0),
        ({"success": None}, None),
        ({"success": True, "unsupported": True}, None),
    ],
)
def test_success_is_what_the_environment_says(info: dict[str, Json], expected: float | None) -> None:
    assert score("success", info) == expected


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"tests_passed": 1.0}, 1.0),
        ({"tests_passed": 0.25}, 0.25),
        ({"tests_passed": 0}, 0.0),
        ({"tests_passed": None}, None),
        ({"tests_passed": "all"}, None),
        ({"tests_passed": True}, None),
        ({}, None),
        ({"tests_passed": 0.5, "unsupported": True}, None),
    ],
)
def test_tests_passed_is_a_share_or_not_scored(info: dict[str, Json], expected: float | None) -> None:
    assert score("tests_passed", info) == expected


@pytest.mark.parametrize("share", [1.5, -0.5, float("nan"), float("inf")])
async def test_a_share_out_of_range_is_an_error_and_not_clamped(share: float) -> None:
    episode = Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0, info={"tests_passed": share})
    async with Scorer([ALL["tests_passed"]], {"tests_passed": 1.0}) as scorer:
        await scorer.score(episode)
    assert episode.outcome is Outcome.INFRA_ERROR
    assert episode.error is not None and episode.error.source == "reward:tests_passed"


@pytest.mark.parametrize(
    ("given", "answer", "expected"),
    [
        ("Paris", "Paris", 1.0),
        (" Paris\n", "Paris", 1.0),
        ("paris", "Paris", 0.0),
        ("42", 42, 1.0),
        ("42.0", 42, 0.0),
        (None, "Paris", 0.0),
        (["Paris"], "Paris", 0.0),
        ("Paris", None, None),
        ("Paris", ["Paris"], None),
        ("True", True, None),
    ],
)
def test_exact_match_compares_characters(given: Json, answer: Json, expected: float | None) -> None:
    assert score("exact_match", {"answer": given}, answer) == expected


@pytest.mark.parametrize(
    ("given", "answer", "expected"),
    [
        ("42", "42", 1.0),
        (42, "42.0", 1.0),
        (0.1, "1/10", 1.0),
        (1e-7, "1/10000000", 1.0),
        ("1,234", 1234, 1.0),
        ("$5", "5", 1.0),
        ("50%", "50", 1.0),
        ("50%", "1/2", 1.0),
        ("1/2", "50%", 1.0),
        ("50%", "50%", 1.0),
        ("50%", "5", 0.0),
        ("0.333", "1/3", 0.0),
        ("41", "42", 0.0),
        (None, "42", 0.0),
        (True, "1", 0.0),
        ("1/0", "42", 0.0),
        ("nan", "42", 0.0),
        (float("inf"), "42", 0.0),
        ("1e999999999", "42", 0.0),
        ("9" * 100_000, "42", 0.0),
        ("42", "Paris", None),
        ("42", None, None),
    ],
)
def test_numeric_match_compares_exact_numbers(given: Json, answer: Json, expected: float | None) -> None:
    assert score("numeric_match", {"answer": given}, answer) == expected


@pytest.mark.parametrize("name", ["exact_match", "numeric_match"])
def test_an_environment_that_records_no_answers_is_not_scored_by_them(name: str) -> None:
    assert score(name, {}, "42") is None


def test_format_is_what_the_environment_says_or_not_scored() -> None:
    assert [score("format", {"format_ok": said}) for said in (True, False, None, "yes")] == [1, 0, None, None]
    assert score("format", {}) is None


def test_the_length_penalty_counts_only_what_the_agent_wrote() -> None:
    lengths = (0, 2000, 3000, 4000, 10_000)
    assert [score("length_penalty", {}, said="x" * n) for n in lengths] == [0.0, 0.0, 0.5, 1.0, 1.0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(["success", "tests_passed", "answer", "format_ok", "unsupported"])


@given(st.dictionaries(keys, json_values), json_values)
def test_no_record_makes_a_reward_raise(info: dict[str, Json], answer: Json) -> None:
    for name in ALL:
        result = score(name, info, answer)
        assert result is None or isinstance(result, float)


def test_every_built_in_reward_says_what_it_is_and_runs_inline() -> None:
    for name, reward in ALL.items():
        assert reward.name == name and reward.inline
        assert reward.function.__doc__
