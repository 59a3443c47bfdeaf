"""Episodes to training samples: every token with its mask, log-probability, advantage and version."""

from __future__ import annotations

from collections.abc import Iterable

from agentgym.types import Episode, Group, Sample


def group_samples(groups: Iterable[Group]) -> list[Sample]:
    """One sample for each episode that has an advantage, also one of 0.0, and a token to train."""
    return [episode_sample(episode, advantage) for group in groups for episode, advantage in group.trained()]


def episode_sample(episode: Episode, advantage: float) -> Sample:
    """The tokens of all turns, each exactly once. Raises AssertionError when a turn rewrote history."""
    token_ids: list[int] = []
    loss_mask: list[float] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for turn in episode.turns:
        known = len(token_ids)
        assert list(turn.prompt_ids[:known]) == token_ids, f"{episode.episode_id}: a turn rewrote its history"
        new = len(turn.prompt_ids) - known
        assert new > 0, f"{episode.episode_id}: two turns with nothing between them"
        token_ids += turn.prompt_ids[known:]
        loss_mask += [0.0] * new
        logprobs += [0.0] * new
        versions += [-1] * new
        token_ids += turn.completion_ids
        if turn.masked:  # context for later turns, and nothing else
            loss_mask += [0.0] * len(turn.completion_ids)
            logprobs += [0.0] * len(turn.completion_ids)
            versions += [-1] * len(turn.completion_ids)
            continue
        loss_mask += [1.0] * len(turn.completion_ids)
        logprobs += turn.logprobs
        versions += [span.version for span in turn.versions for _ in range(span.start, span.end)]
    sample = Sample(
        sample_id=episode.episode_id,
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        logprobs=tuple(logprobs),
        advantages=tuple(advantage * mask for mask in loss_mask),
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
