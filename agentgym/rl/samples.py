"""Episodes to training samples: every token with its mask, log-probability, advantage and version."""

from __future__ import annotations

from collections.abc import Iterable

from agentgym.rollout.config import BranchWeights
from agentgym.routes import joined
from agentgym.types import Episode, Group, Sample


def group_samples(groups: Iterable[Group], branch_weights: BranchWeights = "tokens") -> list[Sample]:
    """One sample for each branch of each episode that has an advantage, also one of 0.0, and a token to train."""
    return [
        sample
        for group in groups
        for episode, advantage in group.trained()
        for sample in episode_samples(episode, advantage, branch_weights)
    ]


def episode_samples(episode: Episode, advantage: float, branch_weights: BranchWeights = "tokens") -> list[Sample]:
    """The tokens of each branch's turns; a turn is trained in the first branch that holds it, later it is context.

    advantage: of all turns, unless the episode has some for each, or for each token. branch_weights: see RolloutConfig.
    A branch with nothing to train is left out. Raises AssertionError when a turn rewrote its branch's history.
    """
    held = {turn for branch in episode.all_branches for turn in branch}
    assert held == set(range(len(episode.turns))), f"{episode.episode_id}: a turn is in no branch"
    of_tokens = _of_tokens(episode, advantage)
    weights = _weights(episode, branch_weights)
    of_tokens = [[value * weight for value in row] for row, weight in zip(of_tokens, weights, strict=True)]
    samples = []
    known: set[int] = set()
    for number, branch in enumerate(episode.all_branches):
        new = {turn for turn in branch if turn not in known and not episode.turns[turn].masked}
        known.update(branch)
        if any(episode.turns[turn].completion_ids for turn in new):
            name = f"{episode.episode_id}-b{number}" if number else episode.episode_id
            samples.append(_branch_sample(name, episode, branch, new, of_tokens))
    check_provenance(samples, episode)
    return samples


def _branch_sample(
    name: str, episode: Episode, branch: tuple[int, ...], trained: set[int], of_tokens: list[list[float]]
) -> Sample:
    """trained: the turns that are not context alone."""
    advantages: list[float] = []
    token_ids: list[int] = []
    loss_mask: list[float] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for number in branch:
        turn, is_trained = episode.turns[number], number in trained
        known = len(token_ids)
        assert list(turn.prompt_ids[:known]) == token_ids, f"{name}: a turn rewrote its history"
        new = len(turn.prompt_ids) - known
        assert new > 0, f"{name}: two turns with nothing between them"
        token_ids += turn.prompt_ids[known:]
        loss_mask += [0.0] * new
        logprobs += [0.0] * new
        versions += [-1] * new
        advantages += [0.0] * new
        count = len(turn.completion_ids)
        token_ids += turn.completion_ids
        loss_mask += [float(is_trained)] * count
        logprobs += turn.logprobs if is_trained else [0.0] * count
        versions += (
            [span.version for span in turn.versions for _ in range(span.start, span.end)]
            if is_trained
            else [-1] * count
        )
        advantages += of_tokens[number] if is_trained else [0.0] * count
    return Sample(
        sample_id=name,
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        logprobs=tuple(logprobs),
        advantages=tuple(advantages),
        versions=tuple(versions),
        routes=joined((episode.turns[number].routes for number in branch), len(token_ids)),
    )


def _of_tokens(episode: Episode, advantage: float) -> list[list[float]]:
    """One number for each sampled token, by turn; [] if a masked turn has none."""
    if episode.token_advantages:
        return episode.token_advantages
    of_turns = episode.turn_advantages or [advantage] * len(episode.turns)
    return [[value] * len(turn.completion_ids) for value, turn in zip(of_turns, episode.turns, strict=True)]


def _weights(episode: Episode, branch_weights: BranchWeights) -> list[float]:
    """The weight of each turn's advantage. All of an episode's tokens together weigh the same with `equal` and
    `tokens`.
    """
    turns, branches = episode.turns, episode.all_branches
    if branch_weights == "tokens" or len(branches) < 2:
        return [1.0] * len(turns)
    if branch_weights == "last":
        last = set(episode.last_branch)
        return [float(turn in last) for turn in range(len(turns))]
    owner = {turn: number for number, branch in reversed([*enumerate(branches)]) for turn in branch}
    tokens = [0] * len(branches)
    for turn, number in owner.items():
        tokens[number] += 0 if turns[turn].masked else len(turns[turn].completion_ids)
    share = sum(tokens) / max(1, sum(map(bool, tokens)))
    return [share / max(1, tokens[owner[turn]]) for turn in range(len(turns))]


def check_provenance(samples: Iterable[Sample], episode: Episode) -> None:
    """Assert that the sampled tokens of unmasked turns, and only they, have a mask, a logprob and a version, once."""
    samples = list(samples)
    trained = sum(sample.num_trained_tokens for sample in samples)
    assert trained == episode.num_trained_tokens, f"{episode.episode_id}: a token was lost, or is trained twice"
    for sample in samples:
        for mask, version, logprob in zip(sample.loss_mask, sample.versions, sample.logprobs, strict=True):
            assert (mask == 1.0) == (version >= 0), f"{sample.sample_id}: a trained token without a version"
            assert mask == 1.0 or logprob == 0.0, f"{sample.sample_id}: a logprob on a token that was not sampled"
