"""Where a run's metrics go besides its own folder, and a few of its episodes where the place can show a table."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from agentgym.contracts import Contract
from agentgym.types import Episode, Group, Json
from agentgym.utf8 import clean_text

COLUMNS = (
    "step",
    "episode",
    "task",
    "success",
    "reward",
    "advantage",
    "stop",
    "turns",
    "tokens",
    "rewards",
    "conversation",
)
"""Of a table of episodes."""


class MetricSink(Contract, Protocol):
    """Opened when the run starts, told every step, closed when it ends, however it ends."""

    @abstractmethod
    def open(self, run_dir: str, config: Mapping[str, Json]) -> None: ...

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


@runtime_checkable
class GroupSink(Protocol):
    """A metric sink that also shows episodes: it has this method besides its others."""

    def log_group(self, step: int, group: Group) -> None:
        """A group that the step trained on, every `logging.episodes_every` steps, before the step's `log`."""
        ...


def show_group(sink: MetricSink, step: int, group: Group) -> None:
    """Shows a group's episodes, if the sink can."""
    if isinstance(sink, GroupSink):
        sink.log_group(step, group)


def episode_rows(step: int, group: Group) -> list[list[str | int | float | bool | None]]:
    """One row for each episode, of `COLUMNS`. success: None where it is not known."""
    advantages = group.advantages or [None] * len(group.episodes)
    return [
        [
            step,
            episode.episode_id,
            episode.task.task_id,
            episode.known_success,
            episode.reward,
            advantage,
            str(episode.stop or ""),
            len(episode.turns),
            episode.num_sampled_tokens,
            json.dumps(episode.rewards),
            conversation(episode),
        ]
        for episode, advantage in zip(group.episodes, advantages, strict=True)
    ]


def conversation(episode: Episode) -> str:
    """All messages as text; tool calls as JSON. Lone surrogates, which UTF-8 can't encode, are replaced."""
    parts = []
    for message in episode.messages:
        calls = message.get("tool_calls")
        text = f"{message['content']}\n{json.dumps(calls, default=str)}" if calls else message["content"]
        parts.append(f"[{message['role']}]\n{text}")
    return clean_text("\n\n".join(parts))
