"""Compaction: where a context runs out, the policy summarises the conversation and goes on from its summary."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agentgym.types import Episode, Message, Turn

NOTE: Final = "compactions"  # the key of `Episode.info`
REASON: Final = "compacted"  # why the branch after a summary began
ASK: Final = (
    "Your context is almost full. Summarise the conversation so far for yourself: what was asked, what you did and "
    "found, what is left to do. Call no tool. You will go on with the task and this summary alone."
)
GO_ON: Final = "Your context was full. Your summary of the conversation so far:\n\n{}\n\nGo on with the task."


@dataclass(slots=True)
class Segment:
    """The context of the turns since the last compaction. ids: of all of it; num_turns: sampled in it."""

    ids: array[int]
    num_turns: int = 0

    def add(self, episode: Episode, turn: Turn) -> None:
        """Record a turn. The first one after a summary begins a branch, as a rewritten history of an agent does."""
        number = len(episode.turns)
        episode.turns.append(turn)
        if episode.branches and self.num_turns == 0:
            episode.branches.append((number,))
            episode.branch_reasons.append(REASON)
        elif episode.branches:
            episode.branches[-1] = (*episode.branches[-1], number)
        self.num_turns += 1


def record_summary(episode: Episode, text: str) -> None:
    """Note that the last turn is a summary, and that later turns begin another branch.

    The messages of the episode stay those of the environment, so the summary is in its `info`; `turn` is from 1.
    """
    notes = episode.info.setdefault(NOTE, [])
    assert isinstance(notes, list), f"info[{NOTE!r}] is reserved for compactions"
    notes.append({"turn": len(episode.turns), "summary": text})
    if not episode.branches:
        episode.branches = [tuple(range(len(episode.turns)))]


def asked_for_summary(answer: Sequence[Message]) -> list[Message]:
    """What the policy is asked in place of its next turn. answer: to its last one."""
    return [*answer, {"role": "user", "content": ASK}]


def after_summary(opening: Sequence[Message], text: str) -> list[Message]:
    """The conversation with which the next segment begins."""
    return [*opening, {"role": "user", "content": GO_ON.format(text)}]


def summary_turns(info: object) -> frozenset[int]:
    """The numbers, from 0, of an episode's turns that are summaries and so no messages of its conversation."""
    notes = info.get(NOTE) if isinstance(info, dict) else None
    return frozenset(
        one["turn"] - 1 for one in notes or () if isinstance(one, dict) and isinstance(one.get("turn"), int)
    )
