"""What a trainer computed for the tokens of a step, given back to the turns that they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentgym.types import Episode, Group, Sample

DIGITS = 6  # after the point: a ratio of probabilities is then right to a millionth


def by_turn(groups: Iterable[Group], values: Sequence[float]) -> dict[str, list[list[float]]]:
    """The values by episode id and turn, one for each sampled token; empty for a turn that was not trained.

    values: one for each trained token, in the order of the samples that `group_samples` makes of the groups: a turn
    is trained in the first branch that holds it. Raises ValueError for another number of values.
    """
    exact = exact_by_turn(groups, values)
    return {name: [[round(value, DIGITS) for value in row] for row in rows] for name, rows in exact.items()}


def exact_by_turn(groups: Iterable[Group], values: Sequence[float]) -> dict[str, list[list[float]]]:
    """The values as `by_turn` gives them, with all digits."""
    found: dict[str, list[list[float]]] = {}
    at = 0
    for group in groups:
        for episode, _ in group.trained():
            rows = found[episode.episode_id] = [[] for _ in episode.turns]
            for number in _order(episode):
                if not episode.turns[number].masked:
                    end = at + len(episode.turns[number].completion_ids)
                    rows[number] = [*values[at:end]]
                    at = end
    if at != len(values):
        raise ValueError(f"{len(values)} values for {at} trained tokens")
    return found


def of_trained(samples: Iterable[Sample], columns: Iterable[Sequence[float]]) -> list[float]:
    """The values of the trained tokens, in the order of the samples, from a column for each sample."""
    return [
        value
        for sample, column in zip(samples, columns, strict=True)
        for mask, value in zip(sample.loss_mask, column, strict=True)
        if mask
    ]


def columns_of(
    samples: Iterable[Sample], groups: Iterable[Group], values: Mapping[str, list[list[float]]]
) -> list[tuple[float, ...]]:
    """One column for each sample that `group_samples` made of the groups, 0.0 where nothing is trained.

    values: by episode id and turn; the opposite of `exact_by_turn`.
    """
    flat = (
        value
        for group in groups
        for episode, _ in group.trained()
        for turn in _order(episode)
        if not episode.turns[turn].masked
        for value in values[episode.episode_id][turn]
    )
    return [tuple(next(flat) if mask else 0.0 for mask in sample.loss_mask) for sample in samples]


def _order(episode: Episode) -> list[int]:
    """The turns in the order of their training."""
    return list(dict.fromkeys(turn for branch in episode.all_branches for turn in branch))
