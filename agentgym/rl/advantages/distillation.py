"""On-policy distillation: a teacher's opinion of every token that the policy sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.rl.advantages.advantage import Advantage, BatchAdvantages, StepBatch, TurnTokens
from agentgym.rl.advantages.episodes import StdNormalized
from agentgym.rl.advantages.turns import check_share
from agentgym.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation(Advantage):
    """A_t = coef * sum_{i>=t} discount^(i-t) * (log T_i - log m_i) + reward_coef * A of `std_normalized`.

    T is the teacher, m the sampler, i the trained tokens of the episode. -(log T - log m) estimates the reverse KL
    divergence KL(policy || teacher) on the policy's own tokens, so the policy gradient with it goes down that
    divergence: MiniLLM (arXiv:2306.08543, sec. 2.2), GKD (arXiv:2306.13649, with reverse KL and on-policy data), and
    Thinking Machines, "On-Policy Distillation", 2025. Every group is trained.
    """

    teacher: str = ""
    """The teacher, as `model.path` names a model, with the policy's tokenizer."""
    coef: float = 1.0
    """The weight of the teacher's opinion."""
    discount: float = 0.0
    """What the opinion of the next token counts for this one; 0 has each token answer for itself alone."""
    reward_coef: float = 0.0
    """The weight of the rewards' advantage; 0 learns from the teacher alone."""

    def __post_init__(self) -> None:
        check_share("discount", self.discount)
        if self.coef <= 0 or self.reward_coef < 0:
            raise ValueError(f"coef {self.coef} must be above 0, reward_coef {self.reward_coef} at least 0")

    @property
    def teacher_path(self) -> str:
        return self.teacher

    @property
    def trains_equal_groups(self) -> bool:
        return True

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        return [self.reward_coef * value for value in StdNormalized()(episodes_G)]

    def of_batch(self, batch: StepBatch) -> BatchAdvantages:
        found: dict[str, TurnTokens] = {}
        for group in batch.groups:
            counted = [e for e, given in zip(group.episodes, group.advantages, strict=True) if given is not None]
            for episode, of_reward in zip(counted, self(counted), strict=True):
                if episode.num_trained_tokens:
                    found[episode.episode_id] = self._of(episode, batch.teacher[episode.episode_id], of_reward)
        return BatchAdvantages(advantages=found)

    def _of(self, episode: Episode, teacher: TurnTokens, of_reward: float) -> TurnTokens:
        rows, to_go = [], 0.0
        for turn, opinions in reversed([*zip(episode.turns, teacher, strict=True)]):
            row = []
            for sampler, opinion in [] if turn.masked else reversed([*zip(turn.logprobs, opinions, strict=True)]):
                to_go = opinion - sampler + self.discount * to_go
                row.append(self.coef * to_go + of_reward)
            rows.append(row[::-1])
        return rows[::-1]
