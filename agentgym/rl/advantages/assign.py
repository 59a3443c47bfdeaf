"""Fills the advantages of a group that was played, and of a step that is about to be trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress

from agentgym.plugin_errors import blamed, origin_of
from agentgym.rl.advantages.advantage import Advantage, StepBatch, TurnTokens, reward_of
from agentgym.types import Episode, Group, Outcome


def assign_advantages(group: Group, advantage: Advantage) -> None:
    """Fill `group.advantages`. Episodes that broken infrastructure cost get None and touch no other's.

    Raises ValueError for a reward that is not finite, and for an advantage that is not, or that misses an episode, a
    turn or a token.
    """
    counts_G = [episode.outcome in (Outcome.SCORED, Outcome.INVALID) for episode in group.episodes]
    counted = list(compress(group.episodes, counts_G))
    for episode in counted:
        reward_of(episode)  # an advantage of one's own may not look
    with blamed("advantages", advantage):
        values, turns_G, of_tokens = advantage(counted), advantage.of_turns(counted), advantage.of_tokens(counted)
    if len(values) != len(counted) or not all(map(math.isfinite, values)):
        raise ValueError(
            f"{_named(advantage)} gave the advantages {values} for {len(counted)} episodes; "
            "give one finite number for each"
        )
    for episode, of_turns in zip(counted, turns_G or [[] for _ in counted], strict=True):
        if of_turns and not (len(of_turns) == len(episode.turns) and all(map(math.isfinite, of_turns))):
            raise ValueError(
                f"{_named(advantage)} gave the advantages {of_turns} for {len(episode.turns)} turns; "
                "give one finite number for each"
            )
        episode.turn_advantages, episode.token_advantages = of_turns, []
    if of_tokens is not None:
        for episode, rows in zip(counted, of_tokens, strict=True):
            _keep(episode, rows, advantage)
    remaining = iter(values)
    group.advantages = [next(remaining) if counts else None for counts in counts_G]
    group.always_trained = advantage.trains_equal_groups and any(episode.num_trained_tokens for episode in counted)


def assign_batch(batch: StepBatch, advantage: Advantage) -> dict[str, TurnTokens]:
    """Give the trained episodes what `advantage.of_batch` says; returns the critic's targets, {} where it has none.

    Raises ValueError as `assign_advantages` does.
    """
    with blamed("advantages", advantage):
        given = advantage.of_batch(batch)
    if given is None:
        return {}
    for group in batch.groups:
        for number, episode in enumerate(group.episodes):
            if group.advantages[number] is None or not episode.num_trained_tokens:
                continue
            rows = given.advantages.get(episode.episode_id, [])
            _keep(episode, rows, advantage)
            values = [value for row, turn in zip(rows, episode.turns, strict=True) if not turn.masked for value in row]
            group.advantages[number] = math.fsum(values) / len(values)
    for episode in batch.trained() if given.returns else ():
        _check(episode, given.returns.get(episode.episode_id, []), advantage, "returns")
    return dict(given.returns)


def _keep(episode: Episode, rows: TurnTokens, advantage: Advantage) -> None:
    """Keeps one number a turn if all tokens of each turn have the same."""
    _check(episode, rows, advantage, "advantages")
    if all(len(set(row)) < 2 for row in rows):
        episode.turn_advantages, episode.token_advantages = [row[0] if row else 0.0 for row in rows], []
    else:
        episode.turn_advantages, episode.token_advantages = [], rows


def _check(episode: Episode, rows: TurnTokens, advantage: Advantage, what: str) -> None:
    wanted = [len(turn.completion_ids) for turn in episode.turns]
    fits = len(rows) == len(wanted) and all(
        len(row) == count or (turn.masked and not row)
        for row, count, turn in zip(rows, wanted, episode.turns, strict=True)
    )
    if not fits or not all(math.isfinite(value) for row in rows for value in row):
        found: Sequence[int] = [len(row) for row in rows]
        finite = "" if not fits else ", some not finite"
        raise ValueError(
            f"{_named(advantage)} gave {found}{finite} {what} for the turns of {episode.episode_id}, which "
            f"sampled {wanted} tokens; give one finite number for each token"
        )


def _named(advantage: Advantage) -> str:
    return type(advantage).__name__ + origin_of(advantage, " ({})")
