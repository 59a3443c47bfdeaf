"""Every loss of RL once more: token by token in plain Python floats, from the equations of the papers.

A token has its log-probability twice: `now`, by which the loss is derived, and `fixed`, which is equal to it and stands
where an equation stops the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentgym.rl.losses.cispo import Cispo
from agentgym.rl.losses.corrected import Decoupled, Mis, Tis
from agentgym.rl.losses.dppo import Dppo
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.losses.gspo import Gspo
from agentgym.rl.losses.policy import PolicyLoss
from agentgym.rl.losses.ppo_clip import Dapo, DrGrpo, PpoClip
from agentgym.rl.losses.reinforce import Reinforce
from agentgym.rl.losses.sapo import Sapo


@dataclass(kw_only=True)
class Token:
    now: float
    fixed: float
    sampler: float
    old: float
    ref: float
    advantage: float
    entropy: float


Sequence_ = list[Token]


def slow_losses(loss: PolicyLoss, sequences: Sequence[Sequence_]) -> list[float]:
    """The loss of each token, one sequence after the other."""
    return [_of_token(loss, sequence, t) for sequence in sequences for t in range(len(sequence))]


def _of_token(loss: PolicyLoss, sequence: Sequence_, t: int) -> float:
    token = sequence[t]
    advantage, extra = token.advantage, 0.0
    if loss.kl_coef:
        if loss.kl_in == "loss":
            extra = loss.kl_coef * _kl(token.now, token.ref, loss.kl)
        else:
            advantage -= loss.kl_coef * sum(_kl(later.old, later.ref, loss.kl) for later in sequence[t:])
    objective = SURROGATES[type(loss)](loss, sequence, t, advantage)
    return -_weight(loss, sequence, t) * objective + extra - loss.entropy_coef * token.entropy


def _kl(p: float, ref: float, estimator: str) -> float:
    return {"k1": p - ref, "k2": (p - ref) ** 2 / 2, "k3": math.exp(ref - p) - 1 - (ref - p)}[estimator]


def _weight(loss: PolicyLoss, sequence: Sequence_, t: int) -> float:
    if loss.correction == "none":
        return 1.0
    tokens = sequence if loss.correction.startswith("sequence") else [sequence[t]]
    weight = math.prod(math.exp(token.old) / math.exp(token.sampler) for token in tokens)
    low, high = loss.correction_floor, loss.correction_cap
    if loss.correction.endswith("mask"):
        return weight if low <= weight <= high else 0.0
    return min(max(weight, low), high)


def _base(loss: PolicyLoss, token: Token) -> float:
    return token.sampler if loss.old == "sampler" else token.old


def _clip(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def _ppo(loss: PolicyLoss, sequence: Sequence_, t: int, advantage: float) -> float:
    token = sequence[t]
    found = _clip(math.exp(token.now - _base(loss, token)), advantage, loss.clip_low, loss.clip_high)  # type: ignore[attr-defined]
    if isinstance(loss, PpoClip) and advantage < 0 and loss.dual_clip:
        found = max(found, loss.dual_clip * advantage)
    return found


def _grpo(loss: PolicyLoss, sequence: Sequence_, t: int, advantage: float) -> float:
    assert isinstance(loss, Grpo)
    token = sequence[t]
    weight = min(math.exp(token.fixed - _base(loss, token)), loss.importance_cap)
    return _clip(weight * math.exp(token.now - token.fixed), advantage, loss.clip_low, loss.clip_high)


def _reinforce(loss: PolicyLoss, sequence: Sequence_, t: int, advantage: float) -> float:
    return advantage * math.exp(sequence[t].now - sequence[t].fixed)


def _cispo(loss: PolicyLoss, sequence: Sequence_, t: int, advantage: float) -> float:
    assert isinstance(loss, Cispo)
    token = sequence[t]
    weight = min(max(math.exp(token.fixed - _base(loss, token)), loss.importance_floor), loss.importance_cap)
    return weight * advantage * token.now


def _gspo(loss: PolicyLoss, sequence: Sequence_, t: int, advantage: float) -> float:
    assert isinstance(loss, Gspo)
    whole = math.prod(math.exp(token.fixed) / math.exp(_base(loss, token)) for token in sequence)
    ratio = whole ** (1 / len(sequence)) * math.exp(sequence[t].now) / math.exp(sequence[t].fixed)
    return _clip(ratio, advantage, loss.clip_low, loss.clip_high)


def _sapo(loss: PolicyLoss, sequence: Sequence_, t: int, advantage: float) -> float:
    assert isinstance(loss, Sapo)
    token = sequence[t]
    temperature = loss.temperature_positive if advantage > 0 else loss.temperature_negative
    ratio = math.exp(token.now - _base(loss, token))
    return 4 / temperature / (1 + math.exp(-temperature * (ratio - 1))) * advantage


def _dppo(loss: PolicyLoss, sequence: Sequence_, t: int, advantage: float) -> float:
    assert isinstance(loss, Dppo)
    token = sequence[t]
    p, q = math.exp(token.fixed), math.exp(_base(loss, token))
    distance = abs(p - q)
    if loss.divergence == "kl":
        distance = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    if distance > loss.threshold and (p - q) * advantage > 0:
        return 0.0
    return min(p / q, loss.importance_cap) * math.exp(token.now - token.fixed) * advantage


SURROGATES: dict[type[PolicyLoss], Callable[[PolicyLoss, Sequence_, int, float], float]] = {
    Reinforce: _reinforce,
    Grpo: _grpo,
    PpoClip: _ppo,
    DrGrpo: _ppo,
    Dapo: _ppo,
    Tis: _ppo,
    Mis: _ppo,
    Decoupled: _ppo,
    Cispo: _cispo,
    Gspo: _gspo,
    Sapo: _sapo,
    Dppo: _dppo,
}
