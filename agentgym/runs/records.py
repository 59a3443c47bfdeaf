"""Episodes and groups as JSON and back, without loss: what one line of an episode file holds.

A tuple inside an environment's own values is written as `{"$tuple": [...]}`, since JSON has only lists. A
value that JSON can't represent is written as `{"$repr": "..."}` and read back as that text: an unusual value of
a plugin must not end a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, cast

from agentgym.types import (
    Episode,
    ErrorRecord,
    FinishReason,
    Group,
    Json,
    Message,
    Outcome,
    SandboxSpec,
    Split,
    Stop,
    Task,
    Turn,
    VersionSpan,
)

_MARKS = ("$tuple", "$repr", "$dict")


class SandboxRecord(TypedDict):
    image: str | None
    allow_interpreters: list[str]
    network: list[str]
    memory_mib: int
    session: bool


class TaskRecord(TypedDict):
    task_id: str
    prompt: Json
    answer: Json
    sandbox: SandboxRecord | None
    split: Split
    difficulty: int


class TurnRecord(TypedDict):
    """versions: [version, start, end] of each span."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    versions: list[tuple[int, int, int]]
    finish_reason: str


class ErrorMapping(TypedDict):
    source: str
    kind: str
    message: str


class EpisodeRecord(TypedDict):
    episode_id: str
    task: TaskRecord
    seed: int
    messages: Json
    turns: list[TurnRecord]
    info: Json
    stop: str | None
    rewards: dict[str, float | None]
    reward: float | None
    outcome: str | None
    error: ErrorMapping | None
    retries: int
    timing_s: dict[str, float]


class LineRecord(TypedDict):
    """One line of an episode file."""

    format: int
    step: int
    group_id: int
    index: int
    start_version: int
    advantage: float | None
    trained: bool
    episode: EpisodeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEpisode:
    """One episode of a run's files, with its place in training.

    step: the one that trained on it, or that skipped it. index: place in its group. trained: False when
    its group had no signal and was skipped, and for episodes of an evaluation.
    """

    step: int
    group_id: int
    index: int
    start_version: int
    advantage: float | None
    trained: bool
    episode: Episode


def encode_saved(saved: SavedEpisode) -> dict[str, Json]:
    record = LineRecord(
        format=1,
        step=saved.step,
        group_id=saved.group_id,
        index=saved.index,
        start_version=saved.start_version,
        advantage=saved.advantage,
        trained=saved.trained,
        episode=encode_episode(saved.episode),
    )
    return cast(dict[str, Json], record)


def decode_saved(record: Mapping[str, Json]) -> SavedEpisode:
    """Raises KeyError or ValueError when the record has another format."""
    line = cast(LineRecord, record)
    return SavedEpisode(
        step=line["step"],
        group_id=line["group_id"],
        index=line["index"],
        start_version=line["start_version"],
        advantage=line["advantage"],
        trained=line["trained"],
        episode=decode_episode(line["episode"]),
    )


def encode_group(group: Group, *, step: int, trained: bool) -> list[dict[str, Json]]:
    """One record for each episode."""
    advantages = group.advantages or [None] * len(group.episodes)
    return [
        encode_saved(
            SavedEpisode(
                step=step,
                group_id=group.group_id,
                index=index,
                start_version=group.start_version,
                advantage=advantage,
                trained=trained,
                episode=episode,
            )
        )
        for index, (episode, advantage) in enumerate(zip(group.episodes, advantages, strict=True))
    ]


def decode_groups(saved: Sequence[SavedEpisode]) -> list[Group]:
    """The groups of these episodes, in the order of their first episode."""
    groups: dict[int, Group] = {}
    for one in saved:
        group = groups.setdefault(
            one.group_id,
            Group(group_id=one.group_id, task=one.episode.task, start_version=one.start_version),
        )
        group.episodes.append(one.episode)
        group.advantages.append(one.advantage)
    return list(groups.values())


def encode_episode(episode: Episode) -> EpisodeRecord:
    error = episode.error
    return EpisodeRecord(
        episode_id=episode.episode_id,
        task=_encode_task(episode.task),
        seed=episode.seed,
        messages=pack(episode.messages),
        turns=[_encode_turn(turn) for turn in episode.turns],
        info=pack(episode.info),
        stop=episode.stop.value if episode.stop else None,
        rewards=dict(episode.rewards),
        reward=episode.reward,
        outcome=episode.outcome.value if episode.outcome else None,
        error=ErrorMapping(source=error.source, kind=error.kind, message=error.message) if error else None,
        retries=episode.retries,
        timing_s=dict(episode.timing_s),
    )


def decode_episode(record: EpisodeRecord) -> Episode:
    error, stop, outcome = record["error"], record["stop"], record["outcome"]
    return Episode(
        episode_id=record["episode_id"],
        task=_decode_task(record["task"]),
        seed=record["seed"],
        messages=cast(list[Message], unpack(record["messages"])),
        turns=[_decode_turn(turn) for turn in record["turns"]],
        info=cast(dict[str, Json], unpack(record["info"])),
        stop=Stop(stop) if stop else None,
        rewards=record["rewards"],
        reward=record["reward"],
        outcome=Outcome(outcome) if outcome else None,
        error=ErrorRecord(**error) if error else None,
        retries=record["retries"],
        timing_s=record["timing_s"],
    )


def _encode_task(task: Task) -> TaskRecord:
    spec = task.sandbox
    sandbox: SandboxRecord | None = None
    if spec is not None:
        sandbox = SandboxRecord(
            image=spec.image,
            allow_interpreters=list(spec.allow_interpreters),
            network=list(spec.network),
            session=spec.session,
            memory_mib=spec.memory_mib,
        )
    return TaskRecord(
        task_id=task.task_id,
        prompt=pack(list(task.prompt)),
        answer=pack(task.answer),
        sandbox=sandbox,
        split=task.split,
        difficulty=task.difficulty,
    )


def _decode_task(record: TaskRecord) -> Task:
    spec = record["sandbox"]
    sandbox: SandboxSpec | None = None
    if spec is not None:
        sandbox = SandboxSpec(
            image=spec["image"],
            allow_interpreters=tuple(spec["allow_interpreters"]),
            network=tuple(spec["network"]),
            session=spec["session"],
            memory_mib=spec["memory_mib"],
        )
    return Task(
        task_id=record["task_id"],
        prompt=tuple(cast(list[Message], unpack(record["prompt"]))),
        answer=unpack(record["answer"]),
        sandbox=sandbox,
        split=record["split"],
        difficulty=record["difficulty"],
    )


def _encode_turn(turn: Turn) -> TurnRecord:
    return TurnRecord(
        prompt_ids=list(turn.prompt_ids),
        completion_ids=list(turn.completion_ids),
        logprobs=list(turn.logprobs),
        versions=[(span.version, span.start, span.end) for span in turn.versions],
        finish_reason=turn.finish_reason.value,
    )


def _decode_turn(record: TurnRecord) -> Turn:
    return Turn(
        prompt_ids=tuple(record["prompt_ids"]),
        completion_ids=tuple(record["completion_ids"]),
        logprobs=tuple(record["logprobs"]),
        versions=tuple(
            VersionSpan(version=version, start=start, end=end) for version, start, end in record["versions"]
        ),
        finish_reason=FinishReason(record["finish_reason"]),
    )


def pack(value: object) -> Json:
    """A value that JSON can represent."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return {"$tuple": [pack(item) for item in value]}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        packed = {str(key): pack(item) for key, item in value.items()}
        if len(packed) == 1 and next(iter(packed)) in _MARKS:  # a mapping that looks like one of our marks
            return {"$dict": packed}
        return packed
    return {"$repr": repr(value)}


def unpack(value: Json) -> Json:
    """The inverse of `pack`."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1:
            inner: Json
            mark, inner = next(iter(value.items()))
            if mark == "$repr":
                return inner
            if mark == "$tuple" and isinstance(inner, list):
                return tuple(unpack(item) for item in inner)
            if mark == "$dict" and isinstance(inner, dict):
                return {key: unpack(item) for key, item in inner.items()}
        return {key: unpack(item) for key, item in value.items()}
    return value
