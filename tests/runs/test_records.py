"""Episodes and groups survive JSON."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.runs.records import SavedEpisode, decode_saved, encode_saved, pack, unpack
from agentgym.types import (
    Episode,
    ErrorRecord,
    FinishReason,
    Outcome,
    SandboxSpec,
    Stop,
    Task,
    ToolTrace,
    Turn,
    VersionSpan,
)

number = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(alphabet=st.characters(exclude_categories=[]), max_size=8)  # half characters too
scalar = st.none() | st.booleans() | st.integers() | number | text
value = st.recursive(
    scalar,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text | st.sampled_from(["$tuple", "$repr", "$dict"]), inner, max_size=3)
    ),
    max_leaves=6,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": text}), max_size=3
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    lengths = draw(st.lists(st.integers(1, 3), max_size=3))
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    count = sum(lengths)
    ids = st.integers(0, 200_000)
    return Turn(
        prompt_ids=tuple(draw(st.lists(ids, max_size=5))),
        completion_ids=tuple(draw(st.lists(ids, min_size=count, max_size=count))),
        logprobs=tuple(draw(st.lists(st.floats(max_value=0, min_value=-1e30), min_size=count, max_size=count))),
        versions=tuple(
            VersionSpan(version=draw(st.integers(0, 9)), start=end - length, end=end)
            for end, length in zip(ends, lengths, strict=True)
        ),
        finish_reason=draw(st.sampled_from(FinishReason)),
        masked=draw(st.booleans()),
    )


tasks = st.builds(
    Task,
    task_id=text,
    prompt=messages.map(tuple),
    answer=value,
    sandbox=st.none()
    | st.builds(SandboxSpec, image=st.none() | text, allow_interpreters=st.lists(text, max_size=2).map(tuple)),
    split=st.sampled_from(["train", "test"]),
    difficulty=st.integers(0, 5),
)
episodes = st.builds(
    Episode,
    episode_id=text,
    task=tasks,
    seed=st.integers(),
    messages=messages,
    turns=st.lists(turns(), max_size=3),
    tool_calls=st.lists(
        st.builds(ToolTrace, turn=st.integers(1, 9), name=text, arguments=value, result=text, seconds=number),
        max_size=2,
    ),
    info=st.dictionaries(text, value, max_size=3),
    stop=st.none() | st.sampled_from(Stop),
    rewards=st.dictionaries(text, st.none() | number, max_size=2),
    reward=st.none() | number,
    outcome=st.none() | st.sampled_from(Outcome),
    error=st.none() | st.builds(ErrorRecord, source=text, kind=text, message=text),
    retries=st.integers(0, 3),
    timing_s=st.dictionaries(text, number, max_size=2),
    branches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), max_size=3),
    branch_reasons=st.lists(text, max_size=2),
)


@settings(max_examples=60)
@given(episodes, st.none() | number, st.booleans())
def test_an_episode_comes_back_equal(episode: Episode, advantage: float | None, trained: bool) -> None:
    saved = SavedEpisode(
        step=3, group_id=7, index=1, start_version=2, advantage=advantage, trained=trained, episode=episode
    )
    back = decode_saved(json.loads(json.dumps(encode_saved(saved))))
    assert back == saved
    assert repr(back) == repr(saved)  # equal types too: (1,) is not [1], True is not 1


def test_an_episode_that_was_saved_before_there_were_tools_and_branches_is_read() -> None:
    episode = Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0)
    saved = SavedEpisode(step=1, group_id=1, index=0, start_version=0, advantage=None, trained=False, episode=episode)
    record = encode_saved(saved)
    for field in ("tool_calls", "branches", "branch_reasons"):
        del record["episode"][field]
    assert decode_saved(record) == saved


@given(value)
def test_values_come_back_as_they_were(given_value: object) -> None:
    assert repr(unpack(json.loads(json.dumps(pack(given_value))))) == repr(given_value)


def test_a_value_that_is_no_json_becomes_its_repr_and_does_not_raise() -> None:
    assert unpack(pack({"odd": {1, 2}})) == {"odd": "{1, 2}"}
    assert unpack(pack({1: "key"})) == "{1: 'key'}"
