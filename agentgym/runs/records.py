"""Episodes and groups as JSON and back, without loss: what one line of an episode file holds.

A tuple inside an environment's own values is written as `{"$tuple": [...]}`, since JSON has only lists. A
value that JSON can't represent is written as `{"$repr": "..."}` and read back as that text: an unusual value of
a plugin must not end a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

from agentgym.routes import Routes
from agentgym.types import (
    Episode,
    ErrorRecord,
    FinishReason,
    Group,
    Json,
    Message,
    Outcome,
    SandboxSpec,
    SandboxTrace,
    Stop,
    Task,
    ToolTrace,
    Turn,
    VersionSpan,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MARKS = ("$tuple", "$repr", "$dict")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEpisode:
    """One episode of a run's files, with its place in training.

    step: the one that trained on it, or that skipped it. index: place in its group. trained: False when
    its group had no signal and was skipped, and for episodes of an evaluation. trainer_logprobs: of the tokens of
    each turn, by the weights that the step began with; empty where they were not recorded.
    """

    step: int
    group_id: int
    index: int
    start_version: int
    advantage: float | None
    trained: bool
    episode: Episode
    trainer_logprobs: list[list[float]] = field(default_factory=list)


def encode_saved(saved: SavedEpisode) -> dict[str, Json]:
    """One line of an episode file."""
    return {"format": 1, **_fields(saved), "episode": encode_episode(saved.episode)}


def decode_saved(record: Mapping[str, Any]) -> SavedEpisode:
    """Raises KeyError, TypeError or ValueError when the record has another format."""
    values = {key: value for key, value in record.items() if key not in ("format", "ended")}
    return SavedEpisode(**{**values, "episode": decode_episode(values["episode"])})


def encode_group(
    group: Group, *, step: int, trained: bool, trainer_logprobs: Mapping[str, list[list[float]]] | None = None
) -> list[dict[str, Json]]:
    """One record for each episode. trainer_logprobs: by episode id."""
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
                trainer_logprobs=(trainer_logprobs or {}).get(episode.episode_id, []),
            )
        )
        for index, (episode, advantage) in enumerate(zip(group.episodes, advantages, strict=True))
    ]


def encode_episode(episode: Episode) -> dict[str, Json]:
    """Enumerations are strings already; spans of versions are written as [version, start, end]."""
    task = episode.task
    return {
        **_fields(episode),
        "task": {
            **_fields(task),
            "prompt": pack(list(task.prompt)),
            "answer": pack(task.answer),
            "sandbox": _fields(task.sandbox) if task.sandbox else None,
        },
        "messages": pack(episode.messages),
        "turns": [
            {
                **_fields(turn),
                "prompt_ids": list(turn.prompt_ids),
                "versions": [(span.version, span.start, span.end) for span in turn.versions],
                "routes": turn.routes.to_text() if turn.routes else None,
            }
            for turn in episode.turns
        ],
        "tool_calls": [{**_fields(call), "arguments": pack(call.arguments)} for call in episode.tool_calls],
        "sandbox_calls": list(map(_fields, episode.sandbox_calls)),
        "info": pack(episode.info),
        "error": _fields(episode.error) if episode.error else None,
    }


def decode_episode(record: Mapping[str, Any]) -> Episode:
    task, spec = record["task"], record["task"]["sandbox"]
    of_task: dict[str, Any] = {
        "prompt": tuple(cast(list[Message], unpack(task["prompt"]))),
        "answer": unpack(task["answer"]),
        "sandbox": SandboxSpec(**_with_tuples(spec)) if spec else None,
    }
    of_episode: dict[str, Any] = {
        "task": Task(**{**task, **of_task}),
        "messages": unpack(record["messages"]),
        "turns": [_decode_turn(turn) for turn in record["turns"]],
        "tool_calls": [
            ToolTrace(**{**call, "arguments": unpack(call["arguments"])}) for call in record.get("tool_calls", ())
        ],
        "sandbox_calls": [SandboxTrace(**call) for call in record.get("sandbox_calls", ())],
        "info": unpack(record["info"]),
        "branches": [tuple(branch) for branch in record.get("branches", ())],
        "stop": Stop(record["stop"]) if record["stop"] else None,
        "outcome": Outcome(record["outcome"]) if record["outcome"] else None,
        "error": ErrorRecord(**record["error"]) if record["error"] else None,
    }
    return Episode(**{**record, **of_episode})


def _decode_turn(record: Mapping[str, Any]) -> Turn:
    read: dict[str, Any] = {
        "versions": tuple(VersionSpan(version=v, start=start, end=end) for v, start, end in record["versions"]),
        "finish_reason": FinishReason(record["finish_reason"]),
        "routes": Routes.of_text(record["routes"]) if record.get("routes") else None,
    }
    return Turn(**{**_with_tuples(record), **read})


def _fields(value: DataclassInstance) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _with_tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where our data has tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}


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
        match value:
            case {"$repr": str(text)} if len(value) == 1:
                return text
            case {"$tuple": list(items)} if len(value) == 1:
                return tuple(unpack(item) for item in items)
            case {"$dict": dict(inner)} if len(value) == 1:
                value = inner
        return {key: unpack(item) for key, item in value.items()}
    return value


def restore_groups(saved: Iterable[SavedEpisode]) -> tuple[list[Group], list[Group]]:
    """The groups of one step as they were trained on, and those that it skipped, both in their order."""
    trained: dict[int, Group] = {}
    skipped: dict[int, Group] = {}
    for one in saved:
        groups = trained if one.trained else skipped
        task, start = one.episode.task, one.start_version
        group = groups.setdefault(one.group_id, Group(group_id=one.group_id, task=task, start_version=start))
        group.episodes.append(one.episode)
        group.advantages.append(one.advantage)
    return [*trained.values()], [*skipped.values()]
