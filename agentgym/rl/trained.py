"""What a trainer computed for the tokens of a step, given back to the turns that they came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentgym.types import Episode, Group

DIGITS = 6  # after the point: a ratio of probabilities is then right to a millionth


def by_turn(groups: Iterable[Group], values: Sequence[float]) -> dict[str, list[list[float]]]:
    """By episode id, a list for each turn, of as many values as it sampled; empty for a turn that was not trained.

    values: one for each trained token, in the order of the samples that `group_samples` makes of the groups: a turn
    is trained in the first branch that holds it. Raises ValueError for another number of values.
    """
    found: dict[str, list[list[float]]] = {}
    at = 0
    for group in groups:
        for episode, _ in group.trained():
            rows = found[episode.episode_id] = [[] for _ in episode.turns]
            for number in _order(episode):
                if not episode.turns[number].masked:
                    end = at + len(episode.turns[number].completion_ids)
                    rows[number] = [round(value, DIGITS) for value in values[at:end]]
                    at = end
    if at != len(values):
        raise ValueError(f"{len(values)} values for {at} trained tokens")
    return found


def _order(episode: Episode) -> list[int]:
    """The turns in the order of their training."""
    return list(dict.fromkeys(turn for branch in episode.all_branches for turn in branch))
