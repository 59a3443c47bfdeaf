"""The critic's head against the same least squares in float64, and distillation by what it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sampled import sampled_turn
from tiny_model import draw_samples, write_model

from agentgym.rl.advantages import Distillation, GaeTokens, assign_advantages
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.losses.reinforce import Reinforce
from agentgym.rl.samples import group_samples
from agentgym.rollout.activity import Activity
from agentgym.trainer.config import CriticConfig
from agentgym.trainer.credit import Credit
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Episode, Group, Outcome, Sample, Task

MakeEngine = Callable[..., TrainingEngine]
TASK = Task(task_id="t", prompt=())


def with_returns(samples: list[Sample]) -> list[Sample]:
    """Each token's return is its place in the sample, scaled: something that hidden states know about."""
    return [replace(s, returns=tuple(i / 50 for i in range(len(s.token_ids)))) for s in samples]


def hidden_states(path: str, sample: Sample) -> torch.Tensor:
    """Before each trained token, as transformers has them: [N, D]."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        states = model(torch.tensor(sample.token_ids)[None]).last_hidden_state[0]
    places = torch.tensor([i - 1 for i, mask in enumerate(sample.loss_mask) if mask])
    return states[places]


def slow_adam(features_ND: np.ndarray, returns_N: np.ndarray, *, lr: float, steps: int) -> np.ndarray:
    """Least squares from 0, with a bias, in float64: the weights [D + 1]."""
    design = np.hstack([features_ND / features_ND.shape[1] ** 0.5, np.ones((len(features_ND), 1))])
    w = m = v = np.zeros(design.shape[1])
    for t in range(1, steps + 1):
        g = design.T @ (design @ w - returns_N) / len(returns_N)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def test_the_critic_is_the_least_squares_of_float64_whatever_the_microbatches(
    make_engine: MakeEngine, model_path: str, samples: list[Sample]
) -> None:
    samples = with_returns(samples)
    engine = make_engine(critic=CriticConfig(lr=0.01, epochs=3), with_critic=True, rows_per_microbatch=1)
    assert all(value == 0 for row in engine.values(samples) for value in row)
    features = np.vstack([hidden_states(model_path, s).double().numpy() for s in samples])
    returns = np.array([r for s in samples for r, mask in zip(s.returns, s.loss_mask, strict=True) if mask])
    metrics = engine.train_step(samples)
    assert metrics["train/critic_loss"] == pytest.approx((returns**2).mean(), rel=1e-5)
    assert metrics["train/return_mean"] == pytest.approx(returns.mean(), rel=1e-5)
    critic = engine._built.critic
    assert critic is not None
    np.testing.assert_allclose(critic.weights, slow_adam(features, returns, lr=0.01, steps=3), atol=2e-5)


def test_values_are_of_the_state_before_each_trained_token(
    make_engine: MakeEngine, model_path: str, samples: list[Sample]
) -> None:
    engine = make_engine(with_critic=True, lr=0.0)
    critic = engine._built.critic
    assert critic is not None
    critic.weights.copy_(torch.randn(critic.weights.shape, generator=torch.Generator().manual_seed(1)))
    for sample, found in zip(samples, engine.values(samples), strict=True):
        states = hidden_states(model_path, sample)
        expected = states @ critic.weights[:-1] / states.shape[1] ** 0.5 + critic.weights[-1]
        assert [v for v, mask in zip(found, sample.loss_mask, strict=True) if mask] == pytest.approx(
            expected.tolist(), abs=1e-4
        )
        assert not any(v for v, mask in zip(found, sample.loss_mask, strict=True) if not mask)


def test_a_critic_changes_nothing_of_the_policys_training(make_engine: MakeEngine, samples: list[Sample]) -> None:
    plain, critic = make_engine(), make_engine(with_critic=True)
    for engine in (plain, critic):
        engine.train_step(with_returns(samples))
    for (name, mine), (_, other) in zip(plain.hf_weights(), critic.hf_weights(), strict=True):
        assert torch.equal(mine, other), name


def test_a_checkpoint_holds_the_critic_with_its_moments(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    samples = with_returns(samples)
    engine = make_engine(with_critic=True)
    engine.train_step(samples)
    engine.save(str(tmp_path / "saved"))
    expected = [engine.train_step(samples), engine.values(samples)]
    again = make_engine(with_critic=True)
    again.load(str(tmp_path / "saved"))
    found = [again.train_step(samples), again.values(samples)]
    assert found[1] == expected[1]
    assert found[0]["train/critic_loss"] == expected[0]["train/critic_loss"]


def test_the_critic_learns_what_is_to_be_earned(make_engine: MakeEngine, samples: list[Sample]) -> None:
    samples = with_returns(samples)
    engine = make_engine(with_critic=True, lr=0.0, critic=CriticConfig(lr=0.05, epochs=20))
    explained = [engine.train_step(samples)["train/critic_explained"] for _ in range(3)]
    assert explained[0] == pytest.approx(0.0, abs=1e-6) and explained[2] > 0.3


def test_values_need_a_critic(make_engine: MakeEngine, samples: list[Sample]) -> None:
    with pytest.raises(ValueError, match="this trainer has no critic"):
        make_engine().values(samples)


class InProcess:
    """A trainer or a reference model without processes."""

    def __init__(self, engine: TrainingEngine) -> None:
        self.engine = engine

    async def call(self, _values: object, samples: list[Sample]) -> object:
        return self.engine.values(samples)

    async def forward(self, samples: list[Sample], trained_only: bool) -> list[tuple[float, ...]]:
        return self.engine.logprobs(samples, trained_only)


def group_of(engine: TrainingEngine, drawn: list[Sample]) -> Group:
    """Episodes whose sampler is the engine as it is now."""
    episodes = []
    for number, (sample, logprobs) in enumerate(zip(drawn, engine.logprobs(drawn), strict=True)):
        turn = sampled_turn(sample.token_ids[:1], sample.token_ids[1:], logprobs[1:])
        episode = Episode(episode_id=f"e{number}", task=TASK, seed=0, turns=[turn])
        episode.reward, episode.outcome = float(number % 2), Outcome.SCORED
        episodes.append(episode)
    return Group(group_id=0, task=TASK, start_version=0, episodes=episodes)


def reverse_kl(policy: TrainingEngine, teacher: TrainingEngine, prefix: Sample) -> float:
    """KL(policy || teacher) of the token after the sample's first, exactly: every token of the vocabulary in turn."""
    every = draw_every(policy, prefix)
    mine, other = (torch.tensor([row[1] for row in engine.logprobs(every)]) for engine in (policy, teacher))
    return float((mine.exp() * (mine - other)).sum())


async def test_distillation_goes_down_the_reverse_divergence(
    make_engine: MakeEngine, tmp_path: Path, model_path: str
) -> None:
    """On every first token, weighted by the policy's own probability: the exact expectation of its samples."""
    policy = make_engine(loss=Reinforce(), lr=3e-3)
    teacher = make_engine(path=write_model(tmp_path / "teacher", seed=5))
    advantage = Distillation(teacher="t")
    [prefix] = draw_samples(1)
    before = reverse_kl(policy, teacher, prefix)
    every = draw_every(policy, prefix)
    for _ in range(6):
        group = group_of(policy, every)
        assign_advantages(group, advantage)
        credit = Credit(advantage=advantage, teacher=InProcess(teacher))
        samples = await credit.assign([group], group_samples([group]), trainer=InProcess(policy), activity=Activity())
        weighted = [replace(s, advantages=(0.0, s.advantages[1] * float(np.exp(s.logprobs[1])))) for s in samples]
        policy.train_step(weighted)
    assert reverse_kl(policy, teacher, prefix) < 0.7 * before


def draw_every(engine: TrainingEngine, prefix: Sample) -> list[Sample]:
    zeros = (0.0, 0.0)
    return [
        Sample(
            sample_id=str(token),
            token_ids=(prefix.token_ids[0], token),
            loss_mask=zeros,
            logprobs=zeros,
            advantages=zeros,
            versions=(-1, -1),
        )
        for token in range(engine._architecture.vocab_size)
    ]


async def test_a_step_asks_the_critic_and_gives_the_samples_their_returns(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    engine = make_engine(with_critic=True, loss=Grpo())
    engine.train_step(with_returns(samples))
    advantage = GaeTokens(gae_lambda=0.5, whiten=False)
    group = group_of(engine, samples)
    assign_advantages(group, advantage)
    plain = group_samples([group])
    found = await Credit(advantage=advantage).assign([group], plain, trainer=InProcess(engine), activity=Activity())
    for sample, values in zip(found, engine.values(plain), strict=True):
        assert np.subtract(sample.returns, sample.advantages)[1:] == pytest.approx(values[1:], abs=1e-9)
    assert engine.train_step(found)["train/critic_loss"] > 0
