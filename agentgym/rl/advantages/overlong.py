"""DAPO's soft overlong punishment: an answer near its limit of tokens loses reward before the limit cuts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.rl.advantages.episodes import StdNormalized
from agentgym.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftOverlong(StdNormalized):
    """`std_normalized` of the rewards plus DAPO's punishment (arXiv:2503.14476, eq. 13), for y sampled tokens:

    0                                       y <= max_tokens - cache_tokens
    (max_tokens - cache_tokens - y) / cache_tokens   up to max_tokens
    -1                                      beyond
    """

    max_tokens: int = 256
    """Tokens from which on the punishment is whole; give rollout.max_episode_tokens less the prompt, or
    rollout.max_turn_tokens where there is one turn."""
    cache_tokens: int = 64
    """Tokens before max_tokens over which the punishment grows."""
    scale: float = 1.0
    """The factor of the punishment; rewards of 0 to 1 have half the range of the paper's -1 to 1."""

    def __post_init__(self) -> None:
        if not 0 < self.cache_tokens <= self.max_tokens or self.scale < 0:
            raise ValueError(
                f"cache_tokens {self.cache_tokens} must be above 0 and at most max_tokens {self.max_tokens}, and scale "
                f"{self.scale} at least 0"
            )

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        return StdNormalized.__call__(self, [self._punished(episode) for episode in episodes_G])

    def punishment(self, num_tokens: int) -> float:
        """The penalty, from 0.0 down to -1.0."""
        return -min(1.0, max(0.0, (num_tokens - self.max_tokens + self.cache_tokens) / self.cache_tokens))

    def _punished(self, episode: Episode) -> Episode:
        assert episode.reward is not None, "a scored episode has a reward"
        return replace(episode, reward=episode.reward + self.scale * self.punishment(episode.num_sampled_tokens))
