"""The mismatch by its causes, against values by hand; and that each action does what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentgym.errors import InfraError, UserError
from agentgym.rl.losses.corrected import Decoupled, Tis
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.losses.module import ModuleLoss
from agentgym.rl.losses.reinforce import Reinforce
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.mismatch import Figures, figures
from agentgym.trainer.mismatch_config import EngineLimits, MismatchConfig, StalenessLimits
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]
NOW = 4  # the version that the trainer has published


def k3(distance: float) -> float:
    return math.exp(distance) - 1 - distance


def sampled(
    engine: TrainingEngine, samples: Sequence[Sample], offsets: Sequence[float], version: int = NOW
) -> list[Sample]:
    """As a sampler gives them that is off by that much on each token of a sample: the trainer's is larger by it."""
    scored = engine.logprobs(samples)
    return [
        replace(
            one,
            logprobs=tuple((p - offset) * m for p, m in zip(row, one.loss_mask, strict=True)),
            versions=tuple(version if m else -1 for m in one.loss_mask),
        )
        for one, row, offset in zip(samples, scored, offsets, strict=True)
    ]


def count(samples: Sequence[Sample]) -> int:
    return sum(one.num_trained_tokens for one in samples)


def of_mismatch(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("mismatch/")}


def gradient(engine: TrainingEngine, samples: Sequence[Sample]) -> list[torch.Tensor]:
    engine.forward_backward(samples)
    found = [weight.grad.clone() for weight in engine._model.parameters() if weight.grad is not None]
    engine.clear_gradients()
    return found


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_figures_are_those_by_hand_and_staleness_is_the_difference() -> None:
    sums = [4.0, 0.8, 0.1, 6.0, 3.0, 0.75, 0.0, 0.0, 0.0]
    found, metrics = figures(sums, [0.4, 0.9], Figures(), 7)
    assert found == Figures(engine=0.025, engine_step=7, staleness=pytest.approx(0.1))
    assert metrics == pytest.approx(
        {
            "mismatch/engine_kl": 0.025,
            "mismatch/engine_abs_mean": 0.2,
            "mismatch/engine_max": 0.4,
            "mismatch/stale_kl": 0.125,
            "mismatch/stale_abs_mean": 0.5,
            "mismatch/stale_max": 0.9,
            "mismatch/staleness_kl": 0.1,
            "mismatch/fresh_share": 0.4,
            "mismatch/engine_age_steps": 0.0,
        }
    )


def test_a_class_without_a_token_has_no_figure_and_the_engines_last_one_counts_with_its_age() -> None:
    only_stale, largest = [0.0, 0.0, 0.0, 6.0, 3.0, 0.75, 0.0, 0.0, 0.0], [-math.inf, 0.9]
    _, never = figures(only_stale, largest, Figures(), 7)
    assert never.keys() == {f"mismatch/{n}" for n in ("stale_kl", "stale_abs_mean", "stale_max", "fresh_share")}
    known = Figures(engine=0.025, engine_step=3)
    found, metrics = figures(only_stale, largest, known, 7)
    assert metrics["mismatch/engine_age_steps"] == 4.0 and metrics["mismatch/staleness_kl"] == pytest.approx(0.1)
    assert "mismatch/engine_kl" not in metrics and (found.engine, found.engine_step) == (0.025, 3)
    found, metrics = figures([4.0, 0.8, 0.1, *[0.0] * 6], [0.4, -math.inf], replace(found, staleness=0.1), 8)
    assert not {"mismatch/stale_kl", "mismatch/stale_max", "mismatch/staleness_kl"} & metrics.keys()
    assert found == Figures(engine=0.025, engine_step=8, staleness=0.1)


def test_the_trainer_splits_what_it_trains_on_by_the_weights_that_sampled_it(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    engine = make_engine(lr=0.0, rows_per_microbatch=1)
    engine.version = NOW
    fresh = sampled(engine, samples[:5], [0.1, -0.1, 0.1, -0.1, 0.3])
    stale = sampled(engine, samples[5:], [0.5] * 4, version=NOW - 1)
    found = of_mismatch(engine.train_step([*fresh, *stale]))
    tokens, last = count(fresh), count(fresh[4:])
    positive, negative = count([fresh[0], fresh[2]]), count([fresh[1], fresh[3]])
    of_engine = (positive * k3(0.1) + negative * k3(-0.1) + last * k3(0.3)) / tokens
    assert found == pytest.approx(
        {
            "mismatch/engine_kl": of_engine,
            "mismatch/engine_abs_mean": 0.1 + 0.2 * last / tokens,
            "mismatch/engine_max": 0.3,
            "mismatch/stale_kl": k3(0.5),
            "mismatch/stale_abs_mean": 0.5,
            "mismatch/stale_max": 0.5,
            "mismatch/staleness_kl": k3(0.5) - of_engine,
            "mismatch/fresh_share": tokens / (tokens + count(stale)),
            "mismatch/engine_age_steps": 0.0,
        },
        abs=1e-5,
    )


def test_weights_that_moved_since_they_were_published_sampled_nothing(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    """Also within a step of several updates, unless the old log-probabilities of before it are there."""
    engine = make_engine()
    engine.version = NOW
    own = sampled(engine, samples, [0.0] * 9)
    assert engine.train_step(own)["mismatch/fresh_share"] == 1.0
    again = engine.train_step(own)
    assert (again["mismatch/fresh_share"], again["mismatch/engine_age_steps"]) == (0.0, 1.0)
    assert again["mismatch/stale_max"] > 1e-3
    for loss, share in ((Grpo(), 1 / 3), (Decoupled(), 1.0)):
        several = make_engine(loss=loss, epochs=3)
        several.version = NOW
        metrics = several.train_step(own)
        assert metrics["mismatch/fresh_share"] == pytest.approx(share)
        assert metrics["mismatch/engine_max"] < 1e-5


def test_a_loss_of_tokens_that_nobody_sampled_has_no_mismatch(make_engine: MakeEngine, samples: list[Sample]) -> None:
    limits = MismatchConfig(engine=EngineLimits(stop=0.0), staleness=StalenessLimits(stop=0.0))
    assert not of_mismatch(make_engine(loss=CrossEntropy(), mismatch=limits).train_step(samples))


OFF = [0.4, -0.4, 1.2, -0.2, 0.1, 1.0, -1.5, 0.3, 3.0]


def weighed_by_hand(one: Sample, offset: float, *, cap: float) -> Sample:
    """For REINFORCE, whose loss is linear in the advantage: the weight is in it."""
    return replace(one, advantages=tuple(a * min(math.exp(offset), cap) for a in one.advantages))


@pytest.mark.parametrize("part", ["engine", "staleness"])
def test_correct_gives_the_tokens_concerned_truncated_weights_from_the_next_step_on(
    make_engine: MakeEngine, samples: list[Sample], part: str
) -> None:
    """The engine's part is in all tokens, that of staleness in stale ones alone."""
    limits = (
        {"engine": EngineLimits(correct=0.01)} if part == "engine" else {"staleness": StalenessLimits(correct=0.01)}
    )
    engine = make_engine(loss=Reinforce(), lr=0.0, mismatch=MismatchConfig(cap=2.0, **limits))
    plain = make_engine(loss=Reinforce(), lr=0.0)
    engine.version = NOW
    own = [*sampled(engine, samples[:5], OFF[:5]), *sampled(engine, samples[5:], OFF[5:], version=NOW - 1)]
    assert_equal(gradient(engine, own), gradient(plain, own))
    first = engine.train_step(own)
    assert "mismatch/weight_mean" not in first
    corrected = range(9) if part == "engine" else range(5, 9)
    by_hand = [
        weighed_by_hand(one, off, cap=2.0) if n in corrected else one
        for n, (one, off) in enumerate(zip(own, OFF, strict=True))
    ]
    engine.version = NOW  # a learning rate of 0 has not moved the weights
    assert_equal(gradient(engine, own), gradient(plain, by_hand))
    second = engine.train_step(own)
    weights = [min(math.exp(off), 2.0) if n in corrected else 1.0 for n, off in enumerate(OFF)]
    mean = sum(w * one.num_trained_tokens for w, one in zip(weights, own, strict=True)) / count(own)
    assert second["mismatch/weight_mean"] == pytest.approx(mean, abs=1e-4)
    assert second["mismatch/corrected_share"] == pytest.approx(count([own[n] for n in corrected]) / count(own))
    assert second["mismatch/masked_share"] == 0.0
    for name in ("train/mismatch_kl", "train/ratio_mean", "mismatch/engine_kl", "mismatch/staleness_kl"):
        assert second[name] == pytest.approx(first[name], abs=1e-6), "what is measured is not what was corrected"


def test_a_corrected_ratio_is_not_counted_twice(make_engine: MakeEngine, samples: list[Sample]) -> None:
    """A loss with the ratio against the sampler is then that of `tis`: the trainer's ratio times the weight."""
    limits = MismatchConfig(engine=EngineLimits(correct=0.01), cap=2.0)
    engine = make_engine(lr=0.0, mismatch=limits)
    engine.version = NOW
    own = sampled(engine, samples, OFF)
    engine.train_step(own)
    assert_equal(gradient(engine, own), gradient(make_engine(loss=Tis(correction_cap=2.0), lr=0.0), own))


def test_several_updates_are_bounded_against_the_policy_before_them_once_they_are_corrected(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    """The weight stays that of the old policy against the sampler, however far the updates go."""
    limits = MismatchConfig(engine=EngineLimits(correct=0.01), cap=2.0)
    engine = make_engine(mismatch=limits, epochs=3, optimizer=OptimizerConfig(lr=1e-2, warmup_steps=0))
    engine.version = NOW
    own = sampled(engine, samples, OFF)
    engine.train_step(own)
    engine.version = NOW + 1
    again = sampled(engine, samples, OFF, version=NOW + 1)
    weights = [min(math.exp(off), 2.0) for off in OFF]
    mean = sum(w * one.num_trained_tokens for w, one in zip(weights, own, strict=True)) / count(own)
    assert engine.train_step(again)["mismatch/weight_mean"] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("drop", ["token", "sequence"])
def test_mask_leaves_out_what_is_beyond_the_bound(make_engine: MakeEngine, samples: list[Sample], drop: str) -> None:
    limits = MismatchConfig(engine=EngineLimits(mask=0.01), bound=0.9, drop=drop)
    engine = make_engine(loss=Reinforce(), lr=0.0, mismatch=limits, rows_per_microbatch=1)
    plain = make_engine(loss=Reinforce(), lr=0.0)
    engine.version = NOW
    own = sampled(engine, samples, [0.1] * 9)
    longest = max(range(9), key=lambda n: own[n].num_trained_tokens)
    place = own[longest].loss_mask.index(1.0)
    logprobs = list(own[longest].logprobs)
    logprobs[place] -= 5.0
    own[longest] = replace(own[longest], logprobs=tuple(logprobs))
    engine.train_step(own)
    engine.version = NOW
    advantages = list(own[longest].advantages)
    gone = [place] if drop == "token" else range(len(advantages))
    without = replace(own[longest], advantages=tuple(0.0 if n in gone else a for n, a in enumerate(advantages)))
    assert_equal(gradient(engine, own), gradient(plain, [*own[:longest], without, *own[longest + 1 :]]))
    masked = 1 if drop == "token" else own[longest].num_trained_tokens
    assert masked >= 1 and engine.train_step(own)["mismatch/masked_share"] == pytest.approx(masked / count(own))


@pytest.mark.parametrize(("part", "version"), [("engine", NOW), ("staleness", NOW - 1)])
def test_stop_ends_the_step_before_it_changes_a_weight(
    make_engine: MakeEngine, samples: list[Sample], part: str, version: int
) -> None:
    limits = MismatchConfig(engine=EngineLimits(stop=0.1), staleness=StalenessLimits(stop=0.1))
    engine = make_engine(mismatch=limits)
    engine.version = NOW
    engine.train_step(sampled(engine, samples, [0.2] * 9))
    engine.version = NOW
    before = {name: weight.clone() for name, weight in engine.hf_weights()}
    bad = sampled(engine, samples, [0.8] * 9, version=version)
    with pytest.raises(
        InfraError, match=rf"step 2 ends the run: .*above trainer\.mismatch\.{part}\.stop 0\.1.*--resume"
    ):
        engine.train_step(bad)
    assert engine.step == 1
    assert all(torch.equal(weight, before[name]) for name, weight in engine.hf_weights())
    good = engine.train_step(sampled(engine, samples, [0.2] * 9))
    assert good["mismatch/engine_abs_mean"] == pytest.approx(0.2, abs=1e-5), "nothing of the dropped batch is left"


def test_a_resumed_trainer_acts_by_the_figures_of_the_one_before(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    def make() -> TrainingEngine:
        return make_engine(mismatch=MismatchConfig(engine=EngineLimits(correct=0.01)))

    first, second, older = make(), make(), make()
    first.version = NOW
    own = sampled(first, samples, OFF)
    first.train_step(own)
    first.save(str(tmp_path / "one"))
    second.load(str(tmp_path / "one"))
    for engine in (first, second):
        engine.version = NOW + 1
    went_on, resumed = (engine.train_step(own) for engine in (first, second))
    assert of_mismatch(went_on) == of_mismatch(resumed) and "mismatch/weight_mean" in resumed
    assert (resumed["mismatch/engine_age_steps"], resumed["train/loss"]) == (1.0, went_on["train/loss"])
    (tmp_path / "one" / "mismatch.json").unlink()  # as in a checkpoint of an older version
    older.load(str(tmp_path / "one"))
    assert "mismatch/engine_age_steps" not in older.train_step(own)


def test_limits_that_the_loss_can_not_go_with_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_number.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def setup(loss: object, **limits: object) -> None:
        trainer = TrainerConfig(mismatch=MismatchConfig(**limits))
        TrainerSetup(model_path="m", trainer=trainer, optimizer=OptimizerConfig(), loss=loss, total_steps=1, folder="f")

    correct, mask = StalenessLimits(correct=0.1), EngineLimits(mask=0.1)
    setup(Tis(), engine=mask)
    with pytest.raises(UserError, match=r"trainer\.mismatch\.staleness\.correct.*would count twice"):
        setup(Tis(), staleness=correct)
    module = ModuleLoss(path="one_number:OneNumber")
    setup(module, engine=EngineLimits(stop=1.0))
    with pytest.raises(UserError, match="one number for all tokens"):
        setup(module, engine=mask)


MODULE = """
from torch import nn

class OneNumber(nn.Module):
    def forward(self, logprobs, ref_logprobs, advantages, padding_mask):
        return logprobs.sum()
"""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EngineLimits(warn=-1.0), "warn is -1; give a number of nats"),
        (lambda: StalenessLimits(stop=math.inf), "stop is inf"),
        (lambda: MismatchConfig(cap=0.5), r"cap is 0\.5"),
        (lambda: MismatchConfig(bound=0.0), "bound 0; give"),
    ],
)
def test_limits_out_of_range_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
