"""Where a run's metrics go besides its own folder, and its episodes where the place takes them."""

from __future__ import annotations

import json
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

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


Source: TypeAlias = Literal["train", "eval", "sft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEpisodes:
    """Episodes of a step or of an evaluation. They are the run's own objects: read them, and change nothing.

    source: `train`; `eval`, held-out tasks played with the weights after the step, a group for each task; `sft`,
    conversations that the step imitated, a group for each: nobody sampled or scored them, so their log-probabilities
    are 0.0. groups: those that were trained or evaluated. skipped: those that the step played and did not train.
    """

    step: int
    source: Source
    groups: Sequence[Group]
    skipped: Sequence[Group] = ()


class MetricSink(Contract, Protocol):
    """Opened when the run starts, told every step, closed when it ends, however it ends.

    A thread of its own calls it, so it may block; see `logging.sink_timeout_s` and `logging.sink_errors`.
    """

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


@runtime_checkable
class EpisodeSink(Protocol):
    """A metric sink that gets episodes: it has this method besides its others.

    An attribute `episodes_share`, above 0 up to 1, gives it that share of the groups, always the same ones; without it
    it gets all. A run waits for a sink that is many steps behind, and says so.
    """

    def log_episodes(self, played: StepEpisodes) -> None:
        """The episodes of a step, before its `log`; of an evaluation, when it has ended."""


def share_of(sink: MetricSink) -> float:
    """The share of the groups that it gets, 0.0 for none. Raises ValueError for a share that is not one."""
    share: object = getattr(sink, "episodes_share", 1.0)
    if not isinstance(sink, EpisodeSink):
        return 0.0
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"its `episodes_share` is {share!r}; give a number above 0, at most 1")
    return float(share)


def chosen(played: StepEpisodes, share: float) -> StepEpisodes:
    """A share of the groups. The choice depends on the step and the group alone."""
    if share == 1.0:
        return played

    def is_in(group: Group) -> bool:
        return zlib.crc32(f"{played.source}/{played.step}/{group.group_id}".encode()) < share * 2**32

    groups, skipped = filter(is_in, played.groups), filter(is_in, played.skipped)
    return StepEpisodes(step=played.step, source=played.source, groups=tuple(groups), skipped=tuple(skipped))


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
