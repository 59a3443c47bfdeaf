"""How long episodes are: what a recipe's limits leave of them, and at which context their tokens are sampled."""

from __future__ import annotations

from typing import TypeAlias

from agentgym.errors import UserError
from agentgym.rollout.config import RolloutConfig

Turns: TypeAlias = tuple[tuple[int, int], ...]
"""Of an episode: of each turn the tokens of new context, and those that are sampled."""


def as_played(episodes: tuple[Turns, ...], limits: RolloutConfig) -> tuple[Turns, ...]:
    """The episodes as a run cuts them; one whose prompt leaves no token to sample is left out, as in a run.

    Raises UserError where that leaves none.
    """
    played = tuple(filter(None, (_cut(turns, limits) for turns in episodes)))
    if not played:
        shortest = min(turns[0][0] for turns in episodes)
        raise UserError(
            f"a prompt of {shortest} tokens leaves none to sample, since rollout.max_episode_tokens is "
            f"{limits.max_episode_tokens}; give shorter lengths, or raise it with generator.max_model_len and "
            "trainer.seq_len"
        )
    return played


def decode_context(episodes: tuple[Turns, ...]) -> int:
    """Tokens before a sampled one, in the mean over all sampled ones: of P+C about P + C / 2."""
    before = sampled = 0.0
    for turns in episodes:
        known = 0
        for new, tokens in turns:
            before += tokens * (known + new + tokens / 2)
            sampled += tokens
            known += new + tokens
    return round(before / max(1.0, sampled))


def _cut(turns: Turns, limits: RolloutConfig) -> Turns:
    """A turn that reaches a limit is the last one."""
    played: list[tuple[int, int]] = []
    known = 0
    for new, wanted in turns:
        room = limits.max_episode_tokens - known - new
        if room < 1:
            break
        sampled = min(wanted, room, limits.max_turn_tokens)
        played.append((new, sampled))
        known += new + sampled
        if sampled < wanted:
            break
    return tuple(played)
