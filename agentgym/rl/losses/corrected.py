"""PPO's surrogate against the trainer's own old policy, times a weight of that policy against the sampler."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.rl.losses.correction import Correction
from agentgym.rl.losses.policy import Old
from agentgym.rl.losses.ppo_clip import PpoClip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tis(PpoClip):
    """Truncated importance sampling (Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training", 2025), with o the trainer's old policy and m the sampler's, of each token:

        loss = -min(o / m, correction_cap) * min(r A, clamp(r, 1 - clip_low, 1 + clip_high) A),  r = p / o
    """

    old: Old = "trainer"
    correction: Correction = "token"
    clip_high: float = 0.28


@dataclass(frozen=True, slots=True, kw_only=True)
class Mis(PpoClip):
    """Masked importance sampling of whole sequences (Liu et al., "When speed kills stability", 2025).

        W    = prod_t o_t / m_t                                            over the trained tokens of the sequence
        loss = -W 1[correction_floor <= W <= correction_cap] * min(r A, clamp(r, 1 - clip_low, 1 + clip_high) A)

    A sequence that the trainer finds too much likelier than the sampler did is left out whole.
    """

    old: Old = "trainer"
    correction: Correction = "sequence_mask"
    clip_high: float = 0.28


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoupled(PpoClip):
    """Decoupled PPO (arXiv:2110.00641; for language models AReaL, arXiv:2505.24298).

        loss = -(o / m) * min(r A, clamp(r, 1 - clip_low, 1 + clip_high) A),  r = p / o

    The policy o that bounds the update is not the one that sampled: it is the trainer's before the batch, so stale
    samples take nothing of the room that the clip leaves. It takes trainer.minibatches or trainer.epochs above 1: with
    one update a batch r is 1, and what is left is a plain importance weight.
    """

    old: Old = "trainer"
    correction: Correction = "token"
    correction_cap: float = 1e9
    """No bound: a weight is at most exp(20)."""
