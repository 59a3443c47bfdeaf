"""Every loss by its name: value and gradient against slow_losses.py, and the property that the loss is known for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
import torch
from slow_losses import SURROGATES, Token, slow_losses
from torch import Tensor

from agentgym.components import SEAMS, find
from agentgym.errors import UserError
from agentgym.recipe import build_recipe
from agentgym.rl.losses import TrainedTokens
from agentgym.rl.losses.kl import kl
from agentgym.rl.losses.policy import PolicyLoss

LENGTHS = (7, 1, 12, 4, 9, 6)
VARIANTS: Mapping[str, list[dict[str, object]]] = {
    "reinforce": [{}, {"kl_coef": 0.3}, {"kl_coef": 0.3, "kl": "k2"}, {"old": "trainer", "correction": "token"}],
    "grpo": [{}, {"old": "trainer"}, {"kl_coef": 0.1}, {"clip_low": 0.1, "clip_high": 0.5, "importance_cap": 1.2}],
    "ppo_clip": [{}, {"dual_clip": 1.5}, {"old": "trainer", "correction": "sequence", "correction_floor": 0.5}],
    "dr_grpo": [{}, {"kl_coef": 0.2, "kl": "k1"}],
    "dapo": [{}, {"entropy_coef": 0.01}, {"kl_coef": 0.2, "kl_in": "reward", "kl": "k1"}],
    "cispo": [{}, {"importance_floor": 0.8, "importance_cap": 1.2}, {"kl_coef": 0.2, "kl_in": "reward"}],
    "gspo": [{}, {"clip_low": 0.05, "clip_high": 0.1, "old": "trainer"}],
    "sapo": [{}, {"temperature_positive": 2.0, "temperature_negative": 5.0, "old": "trainer"}],
    "dppo": [{}, {"divergence": "kl", "threshold": 0.05}, {"importance_cap": 1.5, "threshold": 0.01}],
    "tis": [{}, {"correction_cap": 1.1}],
    "mis": [{}, {"correction": "token_mask", "correction_floor": 0.9, "correction_cap": 1.2}],
    "decoupled": [{}, {"kl_coef": 0.1, "kl": "k2", "entropy_coef": 0.1}],
}
CASES = [(name, settings) for name, many in VARIANTS.items() for settings in many]
STOPPED = {"reinforce", "grpo", "cispo", "gspo", "dppo"}  # losses with a stop of the gradient inside


def loss_of(name: str, **settings: object) -> PolicyLoss:
    loss: PolicyLoss = find("losses", name)(**settings)
    return loss


def draw(seed: int = 0, spread: float = 0.3) -> TrainedTokens:
    """float64, so that only the equations can differ."""
    torch.manual_seed(seed)
    count = sum(LENGTHS)
    sampler = -torch.rand(count, dtype=torch.float64) * 3 - 0.05
    old = (sampler + torch.randn(count, dtype=torch.float64) * spread / 2).clamp(max=-0.02)
    return TrainedTokens(
        logprobs=(old + torch.randn(count, dtype=torch.float64) * spread).clamp(max=-0.01).requires_grad_(),
        entropy=torch.rand(count, dtype=torch.float64, requires_grad=True),
        sampler_logprobs=sampler,
        old_logprobs=old,
        ref_logprobs=(sampler + torch.randn(count, dtype=torch.float64) * spread).clamp(max=-0.01),
        advantages=torch.randn(count, dtype=torch.float64),
        versions=torch.zeros(count, dtype=torch.int64),
        sample_index=torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)),
    )


def as_sequences(tokens: TrainedTokens) -> list[list[Token]]:
    columns = (tokens.logprobs, tokens.logprobs, tokens.sampler_logprobs, tokens.old_logprobs, tokens.ref_logprobs)
    rows = zip(*(c.tolist() for c in (*columns, tokens.advantages, tokens.entropy)), strict=True)
    made = [Token(now=n, fixed=f, sampler=s, old=o, ref=r, advantage=a, entropy=e) for n, f, s, o, r, a, e in rows]
    remaining = iter(made)
    return [[next(remaining) for _ in range(length)] for length in LENGTHS]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_loss_equals_the_slow_computation_in_value_and_in_the_derivative_by_every_token(
    name: str, settings: dict[str, object]
) -> None:
    loss, tokens = loss_of(name, **settings), draw()
    found = loss(tokens, version=0).loss
    sequences = as_sequences(tokens)
    assert found.tolist() == pytest.approx(slow_losses(loss, sequences), abs=1e-12)
    found.sum().backward()
    assert tokens.logprobs.grad is not None
    slopes = []
    for sequence in sequences:
        for token in sequence:
            token.now += 1e-6
            above = math.fsum(slow_losses(loss, [sequence]))
            token.now -= 2e-6
            slopes.append((above - math.fsum(slow_losses(loss, [sequence]))) / 2e-6)
            token.now += 1e-6
    assert tokens.logprobs.grad.tolist() == pytest.approx(slopes, abs=1e-7)
    if loss.entropy_coef:
        assert tokens.entropy.grad is not None
        assert tokens.entropy.grad.tolist() == pytest.approx([-loss.entropy_coef] * len(found))


@pytest.mark.parametrize(("name", "settings"), [case for case in CASES if case[0] not in STOPPED])
def test_gradcheck(name: str, settings: dict[str, object]) -> None:
    """Those with a stop of the gradient inside are not derivatives of their values; the test above has them."""
    loss, tokens = loss_of(name, **settings), draw()
    inputs = (tokens.logprobs, tokens.entropy)
    assert torch.autograd.gradcheck(
        lambda logprobs, entropy: loss(replace(tokens, logprobs=logprobs, entropy=entropy), 0).loss, inputs
    )


def test_every_loss_of_rl_that_we_ship_is_checked_here() -> None:
    shipped = {name for name in SEAMS["losses"].builtin if name not in ("cross_entropy", "module")}
    assert shipped == VARIANTS.keys()
    assert {type(loss_of(name)) for name in shipped} == SURROGATES.keys()


def gradient(loss: PolicyLoss, tokens: TrainedTokens) -> Tensor:
    tokens = replace(tokens, logprobs=tokens.logprobs.detach().requires_grad_())
    loss(tokens, version=0).loss.sum().backward()
    assert tokens.logprobs.grad is not None
    return tokens.logprobs.grad


@pytest.mark.parametrize("name", VARIANTS)
def test_where_nothing_has_moved_every_loss_is_the_policy_gradient(name: str) -> None:
    """Sampler, old policy and policy are equal: the gradient by each log-probability is -A, whatever the bounds."""
    tokens = draw()
    same = tokens.sampler_logprobs
    tokens = replace(tokens, logprobs=same.clone(), old_logprobs=same)
    torch.testing.assert_close(gradient(loss_of(name), tokens), -tokens.advantages, atol=1e-9, rtol=0)


def pair(now: list[float], sampler: list[float], advantages: list[float], index: list[int]) -> TrainedTokens:
    values = {"logprobs": now, "sampler_logprobs": sampler, "old_logprobs": sampler, "ref_logprobs": sampler}
    columns = {name: torch.tensor(column, dtype=torch.float64) for name, column in values.items()}
    return TrainedTokens(
        **columns,
        entropy=torch.ones(len(now), dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        versions=torch.zeros(len(now), dtype=torch.int64),
        sample_index=torch.tensor(index),
    )


def test_ppo_stops_a_good_token_that_grew_and_a_bad_one_that_fell_and_no_other() -> None:
    up, down = math.log(1.3), math.log(0.7)
    tokens = pair([-2 + up, -2 + down, -2 + up, -2 + down], [-2] * 4, [1, -1, -1, 1], [0, 0, 0, 0])
    assert gradient(loss_of("ppo_clip"), tokens).tolist() == pytest.approx([0, 0, 1.3, -0.7])
    assert gradient(loss_of("ppo_clip", dual_clip=1.2), tokens).tolist() == pytest.approx([0, 0, 0, -0.7])


def test_dapo_lets_a_token_grow_further_than_it_lets_one_fall() -> None:
    tokens = pair([-2 + math.log(1.25), -2 + math.log(0.75)], [-2, -2], [1, -1], [0, 0])
    assert gradient(loss_of("dapo"), tokens).tolist() == pytest.approx([-1.25, 0])


def test_cispo_never_loses_a_gradient_where_ppo_does() -> None:
    tokens = pair([-0.1, -9.0], [-6.0, -0.5], [1, -1], [0, 0])
    assert gradient(loss_of("ppo_clip"), tokens).tolist() == [0, 0]
    found = gradient(loss_of("cispo", importance_cap=3.0), tokens).tolist()
    assert found == pytest.approx([-3.0, math.exp(-8.5)])


def test_gspo_takes_a_sequence_whole_or_not_at_all() -> None:
    """One sequence whose tokens differ and whose mean does not, and one whose mean does."""
    tokens = pair([-1.5, -2.5, -1.9, -2.0], [-2.0] * 4, [1.0] * 4, [0, 0, 1, 1])
    assert gradient(loss_of("gspo"), tokens).tolist() == pytest.approx([-1, -1, 0, 0])


def test_the_gradient_of_gspo_is_that_of_its_sequence_ratio() -> None:
    """GSPO itself (one ratio, one advantage a sequence), against the form of GSPO-token that is used here."""
    tokens = draw()
    of_sequence = torch.randn(len(LENGTHS), dtype=torch.float64)[tokens.sample_index]
    tokens = replace(tokens, advantages=of_sequence)
    loss = loss_of("gspo", clip_low=0.05, clip_high=0.1)
    now = tokens.logprobs.detach().requires_grad_()
    counts = torch.tensor(LENGTHS, dtype=torch.float64)
    sums = torch.zeros(len(LENGTHS), dtype=torch.float64).index_add(
        0, tokens.sample_index, now - tokens.sampler_logprobs
    )
    ratio, advantage = (sums / counts).exp(), of_sequence[torch.tensor(LENGTHS).cumsum(0) - 1]
    (-torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.1) * advantage)).sum().backward()
    weights = 1 / counts[tokens.sample_index]
    torch.testing.assert_close(gradient(loss, tokens) * weights, now.grad, atol=1e-12, rtol=0)


def test_the_weight_of_sapo_falls_smoothly_to_both_sides_and_the_quicker_where_the_advantage_is_negative() -> None:
    ratios = [0.25, 0.5, 0.99, 1.0, 1.01, 2.0, 6.0]
    now = [-3 + math.log(ratio) for ratio in ratios]
    good, bad = (
        gradient(loss_of("sapo"), pair(now, [-3.0] * 7, [sign] * 7, [0] * 7)).abs() / torch.tensor(ratios)
        for sign in (1.0, -1.0)
    )
    assert (good.diff()[3:] < 0).all() and (good.diff()[:3] > 0).all()
    assert good[3] == bad[3] == 1.0
    assert (good[[0, 1, 5, 6]] > bad[[0, 1, 5, 6]]).all() and (bad > 0).all()


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_dppo_lets_a_rare_token_grow_manyfold_and_stops_a_likely_one_that_a_clip_would_not(divergence: str) -> None:
    """By ratios the first one is far outside of a clip at 0.2, and the second one inside."""
    now, was = [math.log(0.004), math.log(0.99)], [math.log(0.001), math.log(0.9)]
    tokens = pair(now, was, [1, 1], [0, 0])
    assert gradient(loss_of("ppo_clip"), tokens).tolist() == pytest.approx([0, -1.1])
    found = gradient(loss_of("dppo", divergence=divergence, threshold=0.05), tokens).tolist()
    assert found == pytest.approx([-4.0, 0])
    back = replace(tokens, advantages=torch.tensor([-1.0, -1.0], dtype=torch.float64))
    assert gradient(loss_of("dppo", divergence=divergence, threshold=0.05), back).tolist() == pytest.approx([4.0, 1.1])


def corrected(sampler: list[float], index: list[int]) -> TrainedTokens:
    old = [-1.0] * len(sampler)
    tokens = pair(old, sampler, [1.0] * len(sampler), index)
    return replace(tokens, old_logprobs=torch.tensor(old, dtype=torch.float64))


def test_tis_truncates_single_tokens_and_mis_leaves_whole_sequences_out() -> None:
    low = -1.0 - math.log(1.5)
    tokens = corrected([-1.0, -5.0, low, low, low, -1.0], [0, 0, 1, 1, 2, 2])
    assert gradient(loss_of("tis"), tokens).tolist() == pytest.approx([-1, -2, -1.5, -1.5, -1.5, -1])
    assert gradient(loss_of("mis"), tokens).tolist() == pytest.approx([0, 0, 0, 0, -1.5, -1.5])
    assert gradient(loss_of("mis", correction_cap=3.0), tokens).tolist() == pytest.approx(
        [0, 0, *[-2.25] * 2, -1.5, -1.5]
    )
    metrics = loss_of("mis")(tokens, version=0).metrics
    assert metrics["train/correction_cut_share"].tolist() == [1, 1, 1, 1, 0, 0]


def test_the_clip_of_decoupled_ppo_has_all_its_room_for_stale_samples() -> None:
    """The sampler gave 0.5, the old policy gives 0.8, the policy now 0.9: inside of the clip around 0.8, not of 0.5."""
    tokens = pair([math.log(0.9)], [math.log(0.5)], [1], [0])
    tokens = replace(tokens, old_logprobs=torch.tensor([math.log(0.8)], dtype=torch.float64))
    assert gradient(loss_of("ppo_clip"), tokens).tolist() == [0]
    assert gradient(loss_of("decoupled"), tokens).tolist() == pytest.approx([-1.8])  # 0.8 / 0.5 * 0.9 / 0.8


def test_only_the_loss_with_the_sampler_as_old_policy_refuses_a_correction() -> None:
    with pytest.raises(ValueError, match=r"correction is 'token' with old: sampler, .*set old: trainer"):
        loss_of("dapo", correction="token")
    assert loss_of("dapo", correction="token", old="trainer").needs_old
    assert not loss_of("dapo").needs_old


@pytest.mark.parametrize(
    ("estimator", "of_loss", "of_reward"),
    [("k1", "nothing", "reverse"), ("k2", "reverse", "other"), ("k3", "forward", "other")],
)
def test_the_gradient_of_each_kl_estimate_is_of_the_divergence_that_its_docstring_says(
    estimator: str, of_loss: str, of_reward: str
) -> None:
    """Exactly, by the sum over all tokens of a vocabulary of 6, in the loss and as a reward."""
    torch.manual_seed(1)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    ref = torch.randn(6, dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    p = logp.exp()
    exact = {
        "nothing": torch.zeros(6, dtype=torch.float64),
        "reverse": torch.autograd.grad((p * (logp - ref)).sum(), logits, retain_graph=True)[0],
        "forward": torch.autograd.grad((ref.exp() * (ref - logp)).sum(), logits, retain_graph=True)[0],
    }
    estimate = kl(logp, ref, estimator)  # type: ignore[arg-type]
    in_loss = torch.autograd.grad((p.detach() * estimate).sum(), logits, retain_graph=True)[0]
    in_reward = torch.autograd.grad((p.detach() * estimate.detach() * logp).sum(), logits)[0]
    torch.testing.assert_close(in_loss, exact[of_loss])
    assert torch.allclose(in_reward, exact["reverse"]) == (of_reward == "reverse")


def test_kl_in_the_reward_costs_a_token_what_comes_after_it() -> None:
    tokens = pair([-1.0] * 4, [-1.0] * 4, [0.0] * 4, [0, 0, 0, 1])
    tokens = replace(tokens, ref_logprobs=torch.tensor([-1.0, -2.0, -1.5, -3.0], dtype=torch.float64))
    loss = loss_of("ppo_clip", kl_coef=0.5, kl="k1", kl_in="reward")
    assert gradient(loss, tokens).tolist() == pytest.approx([0.75, 0.75, 0.25, 1.0])


@pytest.mark.parametrize("name", [name for name in VARIANTS])
def test_a_microbatch_without_a_token_is_no_error(name: str) -> None:
    tokens = draw()
    empty = TrainedTokens(**{field.name: getattr(tokens, field.name)[:0] for field in fields(tokens)})
    loss = loss_of(name, kl_coef=0.1, kl_in="reward")
    assert loss(empty, version=0).loss.sum().isfinite()


def test_a_field_out_of_its_bounds_is_named_with_what_is_allowed() -> None:
    with pytest.raises(UserError, match=r"loss: clip_low is 1.5; allowed is above 0 and at most 1"):
        build_recipe({"loss": {"name": "dapo", "clip_low": 1.5}})
    with pytest.raises(UserError, match=r"importance_cap is 0.5; allowed is at least 1"):
        build_recipe({"loss": {"name": "cispo", "importance_cap": 0.5}})
