"""Episodes to training samples: every token with its mask, log-probability, advantage and version."""

from __future__ import annotations

from collections.abc import Iterable

from agentgym.types import Episode, Group, Sample


def group_samples(groups: Iterable[Group]) -> list[Sample]:
    """One sample for each episode that has an advantage, also one of 0.0, and a token to train."""
    return [episode_sample(episode, advantage) for group in groups for episode, advantage in group.trained()]


def episode_sample(episode: Episode, advantage: float) -> Sample:
    """The tokens of all turns, each exactly once. Raises AssertionError when a turn rewrote history.

    advantage: of all its turns, unless the episode has some for each.
    """
    of_turns = episode.turn_advantages or [advantage] * len(episode.turns)
    advantages: list[float] = []
    token_ids: list[int] = []
    loss_mask: list[float] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for turn, of_turn in zip(episode.turns, of_turns, strict=True):
        known = len(token_ids)
        assert list(turn.prompt_ids[:known]) == token_ids, f"{episode.episode_id}: a turn rewrote its history"
        new = len(turn.prompt_ids) - known
        assert new > 0, f"{episode.episode_id}: two turns with nothing between them"
        token_ids += turn.prompt_ids[known:]
        loss_mask += [0.0] * new
        logprobs += [0.0] * new
        versions += [-1] * new
        advantages += [0.0] * new
        count = len(turn.completion_ids)
        token_ids += turn.completion_ids
        loss_mask += [0.0 if turn.masked else 1.0] * count  # a masked one is context for later turns, nothing else
        logprobs += [0.0] * count if turn.masked else turn.logprobs
        versions += (
            [-1] * count
            if turn.masked
            else [span.version for span in turn.versions for _ in range(span.start, span.end)]
        )
        advantages += [0.0 if turn.masked else of_turn] * count
    sample = Sample(
        sample_id=episode.episode_id,
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        logprobs=tuple(logprobs),
        advantages=tuple(advantages),
        versions=tuple(versions),
    )
    check_provenance(sample, episode)
    return sample


def check_provenance(sample: Sample, episode: Episode) -> None:
    """Assert that the sampled tokens of unmasked turns, and only they, have a mask, a logprob and a version."""
    assert sample.num_trained_tokens == episode.num_trained_tokens, f"{sample.sample_id}: a token was lost"
    for mask, version, logprob in zip(sample.loss_mask, sample.versions, sample.logprobs, strict=True):
        assert (mask == 1.0) == (version >= 0), f"{sample.sample_id}: a trained token without a version"
        assert mask == 1.0 or logprob == 0.0, f"{sample.sample_id}: a logprob on a token that was not sampled"
