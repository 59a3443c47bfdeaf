"""The trainer engine transformers: every family computes, steps and exports as transformers and plain torch do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_family import largest_difference, loaded, plain_logprobs, samples
from tiny_model import write_model
from transformers import AutoModelForCausalLM

from agentgym.errors import UserError
from agentgym.families.by_transformers import transformers_config
from agentgym.families.family import TINY
from agentgym.families.registry import families
from agentgym.models.routers import routers_of
from agentgym.models.safetensors import read_folder, write_folder
from agentgym.rl.losses.reinforce import Reinforce
from agentgym.routes import Routes, joined
from agentgym.trainer.checkpoint import check
from agentgym.trainer.config import LoraConfig, OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.journal import Batch, decode, encode
from agentgym.trainer.setup import TrainerSetup
from agentgym.trainer.transformers.unknown_family import prove_unknown
from agentgym.types import Sample
from agentgym.weights.adapters import Base

FAMILIES = sorted({family.model_types[0] for family in families().values()})
TITAN = ("qwen3_moe", "titan")
"""The mixture of experts that the other engine computes too."""
RATE = 1e-2


def engine(folder: Path, tmp_path: Path, rate: float = RATE, **trainer: Any) -> TrainingEngine:
    return TrainingEngine(
        TrainerSetup(
            model_path=str(folder),
            trainer=TrainerConfig(**{"engine": "transformers", "seq_len": 48, "device": "cpu"} | trainer),
            optimizer=OptimizerConfig(lr=rate, warmup_steps=0, max_grad_norm=1e9),
            loss=Reinforce(),
            total_steps=10,
            folder=str(tmp_path / "torchtitan"),
        )
    )


def plain_step(model: Any, given: list[Sample]) -> float:
    """The same loss and AdamW's first step, by plain torch; returns the gradient's norm."""
    count = sum(sum(one.loss_mask) for one in given)
    loss = torch.zeros(())
    for one in given:
        trained, weights = torch.tensor(one.loss_mask[1:]), torch.tensor(one.advantages[1:])
        loss = loss - (plain_logprobs(model, one) * trained * weights).sum() / count
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    loss.backward()
    optimizer.step()
    return float(
        torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
    )


@pytest.mark.parametrize(("model_type", "name"), [*((one, "transformers") for one in FAMILIES), TITAN])
def test_a_family_is_computed_stepped_and_exported_exactly(model_type: str, name: str, tmp_path: Path) -> None:
    model, _ = loaded(write_model(tmp_path / "model", family=model_type))
    trainer = engine(tmp_path / "model", tmp_path, engine=name, activation_checkpoint="elementwise")
    assert largest_difference(trainer, model) < 1e-5
    assert trainer._rows.one_per_row == (families()[model_type].packs == "row")
    norm = trainer.train_step(samples())["train/grad_norm"]
    trainer.export_hf(str(tmp_path / "export"))
    exported, info = loaded(tmp_path / "export")
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert largest_difference(trainer, exported) < 1e-5
    assert norm == pytest.approx(plain_step(model, samples()), rel=1e-4)
    assert largest_difference(trainer, model) < 2e-3
    trainer.close()


def routed(model: Any, folder: Path, shift: int = 0) -> list[Sample]:
    """The samples with the routes that the model itself takes, each id moved by `shift`; the last token has none."""
    routers, found = routers_of(model.model, folder), []
    for sample in samples():
        routers.record()
        with torch.no_grad():
            model(input_ids=torch.tensor([sample.token_ids]), use_cache=False)
        ids_TW = (routers.taken()[:-1] + shift) % 4
        known = Routes(width=routers.width, ids=ids_TW.to(torch.uint16).numpy().tobytes())
        found.append(replace(sample, routes=joined([known], len(sample.token_ids))))
    return found


@pytest.mark.parametrize(("model_type", "name"), [("qwen3_moe", "transformers"), ("gpt_oss", "transformers"), TITAN])
@pytest.mark.parametrize(
    "settings", [{}, {"activation_checkpoint": "full", "minibatches": 2}, {"activation_checkpoint": "elementwise"}]
)
def test_own_routes_replayed_change_no_step_and_others_do(
    model_type: str, name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Through packing, minibatches and recomputation, from a batch that went through the journal."""
    folder = tmp_path / "model"
    (model, _), losses = loaded(write_model(folder, family=model_type)), []
    own, others = routed(model, folder), routed(model, folder, shift=1)
    for replay, given in (("off", samples()), ("rollout", own), ("rollout", others)):
        # so slow that no route changes between two updates
        trainer = engine(folder, tmp_path, rate=1e-7, engine=name, router_replay=replay, **settings)
        assert trainer._rows.pack(given).num_rows < len(given)
        metrics = trainer.train_step(decode(encode(Batch(step=1, version=0, samples=given))).samples)
        losses.append((metrics["train/loss"], metrics["train/grad_norm"]))
        if replay == "rollout":
            with pytest.raises(ValueError, match="samples have routes of width 0 where the model's are 4"):
                trainer.forward_backward(samples())
        trainer.close()
    assert losses[1] == pytest.approx(losses[0], abs=1e-6) and losses[2] != pytest.approx(losses[0], abs=1e-4)


def test_settings_that_the_engine_lacks_are_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path / "model", family="mistral")
    given = {"engine": "auto", "procs": 2, "tensor_parallel": 2}
    with pytest.raises(UserError, match=r"has no trainer\.tensor_parallel 2: .*model_type is 'mistral'"):
        engine(tmp_path / "model", tmp_path, **given)
    with pytest.raises(UserError, match=r"model_type is 'mistral'; trainer\.engine=titan"):
        engine(tmp_path / "model", tmp_path, engine="titan")


@pytest.mark.parametrize(
    ("family", "given", "message"),
    [
        (
            "qwen3_moe",
            {"expert_parallel": 2, "lora": LoraConfig(rank=4)},
            r"titan has no trainer\.lora\.rank 4 for a mix",
        ),
        (
            "qwen3_moe",
            {"expert_parallel": 2, "tensor_parallel": 2},
            r"titan has no trainer\.tensor_parallel 2 for a mix",
        ),
        ("qwen3_moe", {"engine": "titan", "compile": True}, r"titan has no trainer\.compile for a mixture"),
        ("qwen3_moe", {"expert_parallel": 3, "procs": 3}, r"expert_parallel is 3, .* model's 4 experts"),
        ("qwen3_moe", {"expert_parallel": 2, "engine": "transformers"}, r"no trainer\.expert_parallel 2"),
        ("olmoe", {"expert_parallel": 2}, r"no trainer\.expert_parallel 2: .*model_type is 'olmoe'"),
        ("qwen3", {"expert_parallel": 2}, r"expert_parallel is 2, and a qwen3 has no experts"),
    ],
)
def test_expert_parallelism_is_refused_by_name(
    family: str, given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "model", family=family)
    with pytest.raises(UserError, match=message):
        engine(tmp_path / "model", tmp_path, **{"engine": "auto", "procs": 2} | given)


def test_a_checkpoint_of_the_other_engine_is_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path / "model", family="qwen3_moe")
    engine(tmp_path / "model", tmp_path, engine="titan").save(str(tmp_path / "checkpoint"))
    with pytest.raises(UserError, match=r"is of the trainer engine titan, and the trainer's is transformers: resume"):
        engine(tmp_path / "model", tmp_path).load(str(tmp_path / "checkpoint"))
    check(str(tmp_path / "checkpoint"), str(tmp_path / "model"))


def test_weights_with_names_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = Path(write_model(tmp_path / "model", family="mistral"))
    weights = {f"language_model.{name}": weight.clone() for name, weight in read_folder(folder)}
    write_folder(folder, iter(weights.items()))
    with pytest.raises(UserError, match=r"no model\.embed_tokens\.weight.*but language_model\."):
        engine(folder, tmp_path)


@pytest.mark.parametrize("recompute", ["elementwise", "selective", "full"])
def test_recomputation_changes_no_gradient(tmp_path: Path, recompute: str) -> None:
    write_model(tmp_path / "model", family="gemma3_text")
    plain = engine(tmp_path / "model", tmp_path)
    again = engine(tmp_path / "model", tmp_path, activation_checkpoint=recompute)
    assert again.train_step(samples())["train/grad_norm"] == plain.train_step(samples())["train/grad_norm"]
    assert again.logprobs(samples()) == plain.logprobs(samples())


@pytest.mark.parametrize("model_type", ["phi3", "qwen3_5_text", "gemma4_text"])
def test_adapters_are_merged_as_they_are_computed(model_type: str, tmp_path: Path) -> None:
    """In the export, and by readers of a published version; without them the model is its base."""
    model, _ = loaded(write_model(tmp_path / "model", family=model_type))
    trainer = engine(tmp_path / "model", tmp_path, lora=LoraConfig(rank=4))
    assert largest_difference(trainer, model) < 1e-5
    trainer.train_step(samples())
    trainer.train_step(samples())
    assert largest_difference(trainer, model) > 0.01
    trainer.export_hf(str(tmp_path / "export"))
    assert largest_difference(trainer, loaded(tmp_path / "export")[0]) < 1e-5
    stored: dict[str, torch.Tensor] = {}
    trainer.publish(2, lambda weights: stored.update(weights))
    read = dict(Base(tmp_path / "model").whole(stored.items(), torch.device("cpu")))
    merged = dict(trainer.hf_weights())
    assert read.keys() == merged.keys() and all(torch.equal(read[name], merged[name]) for name in read)
    base = trainer.base_logprobs(samples())
    theirs = [plain_logprobs(model, one) for one in samples()]
    assert all(torch.allclose(torch.tensor(b[1:]), t, atol=1e-5) for b, t in zip(base, theirs, strict=True))


def test_a_family_without_a_record_is_trained_if_a_fresh_forward_pass_agrees(tmp_path: Path) -> None:
    folder, config = tmp_path / "model", {**TINY, "model_type": "cohere", "logit_scale": 0.25}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(transformers_config(config, "config.json")).save_pretrained(folder)
    trainer = engine(folder, tmp_path)
    assert largest_difference(trainer, loaded(folder)[0]) < 1e-5

    def without_scale(given: Sequence[Sample]) -> list[tuple[float, ...]]:
        return [tuple(4 * value for value in one) for one in trainer.logprobs(given)]

    of_run = (trainer._architecture, trainer._trainer, trainer._ranks, str(folder))
    with pytest.raises(UserError, match=r"'cohere' is a family without a record.* differ by .* nats .*gemma3_text"):
        prove_unknown(*of_run, without_scale, trainer.hf_weights())
    with pytest.raises(UserError, match=r"finds no model\.norm\.weight in the weights that the trainer exports"):
        weights = ((name, one) for name, one in trainer.hf_weights() if name != "model.norm.weight")
        prove_unknown(*of_run, trainer.logprobs, weights)


def test_a_family_whose_head_the_trainer_lacks_is_refused_as_the_engine_starts(tmp_path: Path) -> None:
    """This one multiplies its logits by the field by which granite, whose head is known, divides them."""
    config = {**TINY, "model_type": "hyperclovax", "logits_scaling": 4.0}
    AutoModelForCausalLM.from_config(transformers_config(config, "config.json")).save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match=r"'hyperclovax' is a family without a record.* differ by .* nats"):
        engine(tmp_path / "model", tmp_path)
