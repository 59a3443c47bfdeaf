"""LoRA: what is trained, what the generators get, and what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_model import write_model
from torch import Tensor

from agentgym.models.safetensors import read_folder
from agentgym.trainer.config import LORA_TARGETS, LoraConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]
LORA = LoraConfig(rank=4, alpha=8.0)


def trainable(engine: TrainingEngine) -> dict[str, Tensor]:
    return {name: weight for name, weight in engine._model.named_parameters() if weight.requires_grad}


def all_bits(engine: TrainingEngine) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in engine._model.named_parameters()}


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_new_adapters_change_nothing_and_steps_change_only_adapters(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path, family: str
) -> None:
    path = write_model(tmp_path / "model", family=family)
    base, engine = make_engine(path=path), make_engine(path=path, lora=LORA)
    for expected, found in zip(base.logprobs(samples), engine.logprobs(samples), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)
    before = all_bits(engine)
    of_base = engine.logprobs(samples)
    for _ in range(2):  # in the first A has no gradient, as B is 0
        engine.train_step(samples)
    after = all_bits(engine)
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert changed == set(trainable(engine)) and len(changed) == 2 * 2 * len(LORA_TARGETS)
    in_optimizer = [weight for one in engine._built.optimizers for weight in one.state]
    assert len(in_optimizer) == len(changed)
    assert engine.logprobs(samples) != of_base
    assert engine.base_logprobs(samples) == of_base
    merged = dict(engine.hf_weights())
    assert all(torch.equal(weight, after[name]) for name, weight in all_bits(engine).items())
    expected = dict(base.hf_weights())
    moved = {name for name in merged if not torch.equal(merged[name], expected[name])}
    assert {name.split(".")[-2] for name in moved} == set(LORA_TARGETS) and len(moved) == 2 * len(LORA_TARGETS)


def test_only_the_targets_get_adapters(make_engine: MakeEngine, samples: list[Sample]) -> None:
    engine = make_engine(lora=LoraConfig(rank=2, targets=("k_proj", "down_proj")))
    before = dict(engine.hf_weights())
    for _ in range(2):
        engine.train_step(samples)
    moved = {name for name, weight in engine.hf_weights() if not torch.equal(weight, before[name])}
    assert {name.split(".")[-2] for name in moved} == {"k_proj", "down_proj"}


def test_the_merged_weights_are_the_model_with_its_adapters(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    engine = make_engine(lora=LORA)
    for _ in range(3):
        engine.train_step(samples)
    engine.export_hf(str(tmp_path / "hf"))
    reader = make_engine(path=str(tmp_path / "hf"))
    for expected, found in zip(engine.logprobs(samples), reader.logprobs(samples), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


def test_the_saved_adapters_merge_to_the_exported_weights(
    make_engine: MakeEngine, samples: list[Sample], model_path: str, tmp_path: Path
) -> None:
    engine = make_engine(lora=replace(LORA, targets=("q_proj", "v_proj", "up_proj")))
    for _ in range(2):
        engine.train_step(samples)
    engine.export_hf(str(tmp_path / "hf"))
    config = json.loads((tmp_path / "hf" / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["base_model_name_or_path"]) == ("LORA", 4, model_path)
    assert config["target_modules"] == ["q_proj", "v_proj", "up_proj"]
    adapters = dict(read_adapters(tmp_path / "hf" / "adapter"))
    assert len(adapters) == 2 * 3 * 2
    exported = dict(read_folder(tmp_path / "hf"))
    for name, weight in read_folder(Path(model_path)):
        stem = "base_model.model." + name.removesuffix("weight")
        if f"{stem}lora_A.weight" in adapters:
            a, b = adapters.pop(f"{stem}lora_A.weight"), adapters.pop(f"{stem}lora_B.weight")
            assert a.shape == (4, weight.shape[1]) and b.shape == (weight.shape[0], 4)
            weight = weight + config["lora_alpha"] / config["r"] * (b @ a)
        assert torch.allclose(exported[name], weight, atol=1e-6)
    assert not adapters


def read_adapters(folder: Path) -> list[tuple[str, Tensor]]:
    from safetensors.torch import load_file

    return [*load_file(folder / "adapter_model.safetensors").items()]


def test_resuming_gives_the_same_steps_and_the_checkpoint_has_no_base(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    first = make_engine(lora=LORA)
    first.train_step(samples)
    first.save(str(tmp_path / "step-1"))
    went_on = [first.train_step(samples) for _ in range(2)]
    second = make_engine(lora=LORA)
    second.load(str(tmp_path / "step-1"))
    resumed = [second.train_step(samples) for _ in range(2)]
    for name in ("train/loss", "train/grad_norm", "train/lr"):
        assert [step[name] for step in resumed] == [step[name] for step in went_on]
    anew = make_engine(lora=LORA)
    for _ in range(3):
        anew.train_step(samples)
    expected = all_bits(first)
    for engine in (second, anew):
        assert all(torch.equal(weight, expected[name]) for name, weight in all_bits(engine).items())
    from torch.distributed.checkpoint import FileSystemReader

    saved = FileSystemReader(tmp_path / "step-1").read_metadata().state_dict_metadata
    assert {name.split(".", 1)[1] for name in saved if name.startswith("model.")} == set(trainable(first))


def test_frozen_weights_have_the_type_of_matrix_products(make_engine: MakeEngine, samples: list[Sample]) -> None:
    engine = make_engine(lora=LORA, dtype="bfloat16", procs=1)
    assert {weight.dtype for weight in trainable(engine).values()} == {torch.float32}
    frozen = {weight.dtype for weight in engine._model.parameters() if not weight.requires_grad}
    assert frozen == {torch.bfloat16}
    of_base = engine.logprobs(samples)
    losses = [engine.train_step(samples)["train/loss"] for _ in range(3)]
    assert losses[-1] < losses[0]
    assert engine.base_logprobs(samples) == of_base != engine.logprobs(samples)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rank": -1}, "rank -1 must be at least 0"),
        ({"alpha": 0.0}, "alpha 0 above 0"),
        ({"targets": ("q_prj",)}, "Did you mean 'q_proj'"),
        ({"targets": ()}, "empty"),
    ],
)
def test_a_bad_setting_is_refused_with_what_is_allowed(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LoraConfig(**settings)  # type: ignore[arg-type]


def test_adapters_and_tensor_parallel_are_refused() -> None:
    with pytest.raises(ValueError, match=r"set trainer\.tensor_parallel to 1"):
        TrainerConfig(procs=2, tensor_parallel=2, lora=LORA)


def test_a_trainer_without_adapters_has_no_base_to_ask(make_engine: MakeEngine, samples: list[Sample]) -> None:
    with pytest.raises(ValueError, match=r"trainer\.lora is off"):
        make_engine().base_logprobs(samples)
