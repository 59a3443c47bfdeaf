"""The engine in one process, against transformers and against plain sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sampled import sampled_turn
from tiny_model import draw_samples, write_model
from torch import Tensor
from torch.nn import Module

from agentgym.errors import UserError
from agentgym.families.registry import read_architecture
from agentgym.rl.advantages import MeanOnly, assign_advantages
from agentgym.rl.losses import Loss, TokenLoss, TrainedTokens
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.samples import group_samples
from agentgym.trainer.build import uses_flex
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Episode, Group, Outcome, Sample, Task

MakeEngine = Callable[..., TrainingEngine]


def transformers_model(path: str) -> Module:
    from transformers import AutoModelForCausalLM

    model: Module = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def transformers_logprobs(model: Module, sample: Sample) -> Tensor:
    """Of every token after the first, [L - 1], the sample alone in its batch."""
    token_ids = torch.tensor(sample.token_ids)
    return torch.log_softmax(model(token_ids[None]).logits[0], -1)[:-1].gather(1, token_ids[1:, None])[:, 0]


def played(sample: Sample, reward: float) -> Episode:
    """An episode of one turn: the sample's first token, then the rest as its completion."""
    logprobs = [p if m else -3.0 for p, m in zip(sample.logprobs, sample.loss_mask, strict=True)]
    turn = sampled_turn(sample.token_ids[:1], sample.token_ids[1:], logprobs[1:])
    task = Task(task_id="t", prompt=())
    return Episode(episode_id="e", task=task, seed=0, turns=[turn], reward=reward, outcome=Outcome.SCORED)


def weights_of(engine: TrainingEngine) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in engine.hf_weights()}


def gradients_of(engine: TrainingEngine) -> dict[str, Tensor]:
    """Under Hugging Face names: the weights are exchanged for their gradients, and exported."""
    with torch.no_grad():
        for parameter in engine._model.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    return weights_of(engine)


def assert_logprobs_equal(engine: TrainingEngine, path: str, samples: Sequence[Sample]) -> None:
    model = transformers_model(path)
    for sample, found in zip(samples, engine.logprobs(samples), strict=True):
        assert len(found) == len(sample.token_ids)
        assert found[0] == 0.0
        with torch.no_grad():
            expected = transformers_logprobs(model, sample)
        assert found[1:] == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize(("family", "tied"), [*product(("qwen3", "llama"), (True, False)), ("qwen2", True)])
def test_logprobs_of_packed_samples_equal_those_of_each_alone(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path, family: str, tied: bool
) -> None:
    """Several documents share a row here, so a leak of attention or a shifted position would show."""
    path = write_model(tmp_path / "model", tied=tied, family=family)
    assert_logprobs_equal(make_engine(path=path, logprob_chunk=7), path, samples)


def test_one_document_a_row_needs_no_mask_and_gives_the_same(make_engine: MakeEngine, model_path: str) -> None:
    assert_logprobs_equal(make_engine(seq_len=60), model_path, draw_samples(2, longest=59))


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("llama", True), ("llama", False), ("qwen2", True)])
def test_loss_and_gradients_equal_those_of_transformers(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path, family: str, tied: bool
) -> None:
    """Every weight's own gradient, under the name it is exported by; and their norm as it is reported."""
    path = write_model(tmp_path / "model", tied=tied, family=family)
    model = transformers_model(path)
    total = sum(s.num_trained_tokens for s in samples)
    loss = torch.zeros(())
    for sample in samples:
        mask = torch.tensor(sample.loss_mask[1:])
        loss = loss - (transformers_logprobs(model, sample) * mask).sum() / total
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    engine = make_engine(path=path, loss=CrossEntropy())
    metrics = engine.forward_backward(samples)
    found = gradients_of(engine)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)
    norm = torch.nn.utils.get_total_norm(list(expected.values()))
    assert engine.optimizer_step()["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert metrics["train/loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["train/trained_tokens"] == total
    assert metrics["train/tokens"] == sum(len(s.token_ids) for s in samples)


def test_microbatches_change_nothing_but_rounding(make_engine: MakeEngine) -> None:
    """The gradient is divided by the trained tokens of the whole batch, not averaged over parts."""
    samples = draw_samples(24, seed=3)
    steps = []
    for rows in (1, 3, 100):
        engine = make_engine(rows_per_microbatch=rows)
        steps.append(engine.train_step(samples))
    for step in steps[1:]:
        assert step["train/loss"] == pytest.approx(steps[0]["train/loss"], abs=1e-6)
        assert step["train/grad_norm"] == pytest.approx(steps[0]["train/grad_norm"], abs=1e-5)


def test_the_gradient_is_clipped_to_the_configured_norm(make_engine: MakeEngine, samples: list[Sample]) -> None:
    """Adam hides a gradient's size, so the clipped gradient itself is looked at, not the step."""
    engine = make_engine(optimizer=OptimizerConfig(lr=0.0, max_grad_norm=1e-3))
    engine.forward_backward(samples)
    parameters = [p for p in engine._model.parameters() if p.grad is not None]
    seen: list[float] = []

    def record(*_: object) -> None:
        seen.append(float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])))

    engine._built.optimizers.optimizers[0].register_step_pre_hook(record)
    metrics = engine.optimizer_step()
    assert metrics["train/grad_norm"] > 1e-2
    assert seen == pytest.approx([1e-3], rel=1e-3)


def test_a_learning_rate_of_zero_leaves_weights_bit_equal(make_engine: MakeEngine, samples: list[Sample]) -> None:
    engine = make_engine(lr=0.0)
    before = weights_of(engine)
    engine.train_step(samples)
    assert all(torch.equal(weight, before[name]) for name, weight in engine.hf_weights())


def test_zero_advantage_gives_zero_gradient(make_engine: MakeEngine, samples: list[Sample]) -> None:
    flat = [replace(s, advantages=(0.0,) * len(s.token_ids)) for s in samples]
    assert make_engine().train_step(flat)["train/grad_norm"] == 0.0


def test_an_episode_with_advantage_zero_counts_in_the_denominator_and_in_the_kl_term(
    make_engine: MakeEngine, model_path: str
) -> None:
    """Rewards 0, .5 and 1, from the group to the loss, against a plain sum over transformers' log-probabilities."""
    model, kl_coef = transformers_model(model_path), 0.3
    drawn = draw_samples(3, seed=5)
    group = Group(group_id=0, task=Task(task_id="t", prompt=()), start_version=0)
    for sample, reward in zip(drawn, (0.0, 0.5, 1.0), strict=True):
        group.episodes.append(played(sample, reward))
    assign_advantages(group, MeanOnly())
    expected, count = 0.0, 0
    samples = [replace(s, ref_logprobs=tuple(p - 0.2 for p in s.logprobs)) for s in group_samples([group])]
    for sample, advantage in zip(samples, (-0.5, 0.0, 0.5), strict=True):
        with torch.no_grad():
            now = transformers_logprobs(model, sample).tolist()
        columns = (now, sample.loss_mask[1:], sample.logprobs[1:], sample.ref_logprobs[1:])
        for logprob, mask, sampler, ref in zip(*columns, strict=True):
            if mask:
                ratio = min(2.0, math.exp(logprob - sampler))
                bounded = min(max(ratio, 0.8), 1.28)
                kl = math.exp(ref - logprob) - 1 - (ref - logprob)
                expected += kl_coef * kl - min(ratio * advantage, bounded * advantage)
                count += 1
    metrics = make_engine(loss=Grpo(kl_coef=kl_coef)).train_step(samples)
    assert metrics["train/trained_tokens"] == count == sum(e.num_sampled_tokens for e in group.episodes)
    assert metrics["train/loss"] == pytest.approx(expected / count, abs=1e-5)


def test_values_at_masked_tokens_never_change_the_loss(make_engine: MakeEngine, samples: list[Sample]) -> None:
    def scribble(column: Sequence[float], mask: Sequence[float]) -> tuple[float, ...]:
        return tuple(value if m else -3.0 for value, m in zip(column, mask, strict=True))

    scribbled = [
        replace(
            s,
            logprobs=scribble(s.logprobs, s.loss_mask),
            advantages=scribble(s.advantages, s.loss_mask),
            ref_logprobs=scribble(s.ref_logprobs, s.loss_mask),
        )
        for s in samples
    ]
    engine = make_engine(loss=Grpo(kl_coef=0.1), lr=0.0)
    clean = engine.train_step(samples)
    engine.version = 0  # at a rate of 0 the weights are still those of it
    dirty = engine.train_step(scribbled)
    assert {k: v for k, v in clean.items() if "time" not in k} == {k: v for k, v in dirty.items() if "time" not in k}


def test_an_end_token_with_the_padding_id_is_trained(make_engine: MakeEngine) -> None:
    sample = Sample(
        sample_id="ends-with-0",
        token_ids=(3, 4, 0),
        loss_mask=(0.0, 0.0, 1.0),
        logprobs=(0.0, 0.0, -1.0),
        advantages=(0.0, 0.0, 1.0),
        versions=(-1, -1, 0),
    )
    engine = make_engine(loss=CrossEntropy(), lr=0.0)
    metrics = engine.train_step([sample])
    assert metrics["train/trained_tokens"] == 1
    assert metrics["train/loss"] == pytest.approx(-engine.logprobs([sample])[0][2], abs=1e-6)


def test_samples_scored_by_the_trainer_itself_show_no_mismatch(make_engine: MakeEngine, samples: list[Sample]) -> None:
    engine = make_engine(lr=0.0)
    engine.version = 4
    own = [
        replace(
            s,
            logprobs=tuple(p * m for p, m in zip(logprobs, s.loss_mask, strict=True)),
            versions=tuple(4 if m else -1 for m in s.loss_mask),
        )
        for s, logprobs in zip(samples, engine.logprobs(samples), strict=True)
    ]
    metrics = engine.train_step(own)
    assert metrics["train/mismatch_fresh_max"] < 1e-5
    assert metrics["train/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["train/clip_share"] == 0.0
    engine.version = 5
    assert "train/mismatch_fresh_max" not in engine.train_step(own)


def test_what_a_step_kept_are_the_logprobs_of_its_tokens_before_it(make_engine: MakeEngine) -> None:
    """Of all microbatches, in the order of the samples; only those that were trained."""
    samples = [*draw_samples(7), *draw_samples(2, seed=5)]
    engine = make_engine(keep_logprobs=True, rows_per_microbatch=1)
    before = engine.logprobs(samples)
    engine.train_step(samples)
    wanted = [p for one, row in zip(samples, before, strict=True) for m, p in zip(one.loss_mask, row, strict=True) if m]
    kept = engine.trained_logprobs()
    assert len(kept) == sum(one.num_trained_tokens for one in samples) == len(wanted)
    assert list(kept) == pytest.approx(wanted, abs=1e-5)
    assert list(kept) != pytest.approx([p for row in engine.logprobs(samples) for p in row if p][: len(kept)], abs=1e-5)
    with pytest.raises(ValueError, match="keep_logprobs"):
        make_engine().trained_logprobs()


def test_supervised_training_learns_its_samples(make_engine: MakeEngine, samples: list[Sample]) -> None:
    engine = make_engine(loss=CrossEntropy())
    losses = [engine.train_step(samples)["train/loss"] for _ in range(15)]
    assert losses[-1] < 0.5 * losses[0]
    assert engine.step == 15


def test_grpo_moves_probability_towards_positive_advantages(make_engine: MakeEngine, samples: list[Sample]) -> None:
    engine = make_engine(lr=1e-3)
    own = [
        replace(s, logprobs=tuple(p * m for p, m in zip(lp, s.loss_mask, strict=True)))
        for s, lp in zip(samples, engine.logprobs(samples), strict=True)
    ]

    def score() -> float:
        return sum(
            p * a
            for s, lp in zip(own, engine.logprobs(own), strict=True)
            for p, a in zip(lp, s.advantages, strict=True)
        )

    before = score()
    engine.train_step(own)
    assert score() > before


def test_the_learning_rate_warms_up_and_decays(make_engine: MakeEngine, samples: list[Sample]) -> None:
    engine = make_engine(optimizer=OptimizerConfig(lr=1e-3, warmup_steps=4, decay_ratio=0.5))
    rates = [engine.train_step(samples[:1])["train/lr"] for _ in range(20)]
    assert rates[:5] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])
    assert 0 < rates[-1] < rates[-2] < 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Steep(Loss):
    """Finite, unlike its gradient."""

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        return TokenLoss(loss=(tokens.logprobs - tokens.logprobs.detach()).abs().sqrt())


def test_a_gradient_that_is_not_finite_is_refused_and_weights_stay(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    engine = make_engine(loss=Steep())
    before = weights_of(engine)
    with pytest.raises(RuntimeError, match="gradient norm of step 1 is"):
        engine.train_step(samples)
    broken = [replace(s, advantages=tuple(float("inf") * m if m else 0.0 for m in s.loss_mask)) for s in samples]
    with pytest.raises(RuntimeError, match=r"step 1: .* not finite: log-probabilities or advantages"):
        engine.train_step(broken)
    assert all(torch.equal(weight, before[name]) for name, weight in engine.hf_weights())
    assert engine.step == 0


def test_a_batch_that_trains_nothing_is_refused(make_engine: MakeEngine, samples: list[Sample]) -> None:
    masked = [replace(s, loss_mask=(0.0,) * len(s.token_ids)) for s in samples]
    with pytest.raises(ValueError, match="none of the 9 samples has a token to train"):
        make_engine().train_step(masked)


def test_a_kl_term_without_a_reference_is_refused(make_engine: MakeEngine, samples: list[Sample]) -> None:
    with pytest.raises(ValueError, match="run a reference model"):
        make_engine(loss=Grpo(kl_coef=0.1)).train_step([replace(s, ref_logprobs=()) for s in samples])


@pytest.mark.parametrize(
    ("trainer", "message"),
    [({"seq_len": 512}, "the model has 256 positions"), ({"attention": "flex"}, "can't train on a CPU")],
)
def test_settings_that_do_not_fit_are_refused(
    make_engine: MakeEngine, trainer: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_engine(**trainer)


@pytest.mark.parametrize(("head_dim", "flex"), [(8, False), (16, True)])
def test_heads_too_narrow_for_flex_attention_go_without_it(tmp_path: Path, head_dim: int, flex: bool) -> None:
    architecture = read_architecture(Path(write_model(tmp_path / "model", head_dim=head_dim)))
    assert uses_flex(TrainerConfig(), architecture, on_cpu=False) == flex
    assert not uses_flex(TrainerConfig(attention="sdpa"), architecture, on_cpu=False)
    if not flex:
        with pytest.raises(UserError, match="at least 16 dimensions; the model's have 8"):
            uses_flex(TrainerConfig(attention="flex"), architecture, on_cpu=False)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_weights_are_exported_as_they_were_loaded(make_engine: MakeEngine, tmp_path: Path, family: str) -> None:
    path = write_model(tmp_path / "model", family=family)
    stored = load_file(Path(path) / "model.safetensors")
    found = weights_of(make_engine(path=path))
    assert found.keys() == stored.keys()
    assert "lm_head.weight" not in found
    assert found["model.embed_tokens.weight"].shape == (96, 48 if family == "llama" else 32)
    assert all(torch.equal(found[name], stored[name]) for name in stored)


def test_bfloat16_weights_on_disk_are_trained_in_float32(make_engine: MakeEngine, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", dtype=torch.bfloat16)
    engine = make_engine(path=path)
    assert {weight.dtype for _, weight in engine.hf_weights()} == {torch.float32}
    assert_logprobs_equal(engine, path, draw_samples(3))


def test_what_is_published_is_rounded_once_and_what_is_exported_is_not(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(publish_dtype="bfloat16")
    published: dict[str, Tensor] = {}
    engine.publish(4, published.update)
    exact = weights_of(engine)
    assert engine.version == 4 and published.keys() == exact.keys()
    assert all(torch.equal(tensor, exact[name].to(torch.bfloat16)) for name, tensor in published.items())
    engine.export_hf(str(tmp_path / "hf"))
    assert {tensor.dtype for tensor in load_file(tmp_path / "hf" / "model.safetensors").values()} == {torch.float32}


def test_bfloat16_products_stay_near_float32(make_engine: MakeEngine, samples: list[Sample]) -> None:
    """One process that shards with itself, because the sharding is what casts."""
    exact = make_engine().logprobs(samples)
    engine = make_engine(dtype="bfloat16")
    rounded = engine.logprobs(samples)
    distances = [abs(a - b) for x, y in zip(exact, rounded, strict=True) for a, b in zip(x, y, strict=True)]
    assert 0 < sum(distances) / len(distances) < 0.05
    assert engine.train_step(samples)["train/grad_norm"] > 0
    assert {weight.dtype for _, weight in engine.hf_weights()} == {torch.float32}


def test_missing_variables_of_torchrun_are_named(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set"):
        make_engine(procs=2)
