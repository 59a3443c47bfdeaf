"""QLoRA: adapters beside matrices in NF4, which trainer, plain torch, readers and exports round to the same numbers."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_family import largest_difference, loaded, plain_logprobs, samples
from tiny_model import write_model

from agentgym.errors import UserError
from agentgym.families.quantized import quantized_parameters, quantized_shapes
from agentgym.families.registry import read_architecture
from agentgym.models.nf4 import LEVELS, from_nf4, to_nf4
from agentgym.models.safetensors import read_folder, write_folder
from agentgym.rl.losses.reinforce import Reinforce
from agentgym.trainer.checkpoint import check_adapters
from agentgym.trainer.config import LoraConfig, OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.adapters import Base

SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
LORA, RATE = LoraConfig(rank=4), 1e-2


def written(folder: Path, family: str = "mistral", seed: int = 0) -> Path:
    return Path(write_model(folder, family=family, seed=seed, **SIZES))


def engine(folder: Path, **changes: Any) -> TrainingEngine:
    lora = changes.pop("lora", LORA)
    setup = TrainerSetup(
        model_path=str(folder),
        trainer=TrainerConfig(seq_len=48, device="cpu", lora=lora),
        optimizer=OptimizerConfig(lr=RATE, warmup_steps=0, max_grad_norm=1e9),
        loss=Reinforce(),
        total_steps=10,
        folder=str(folder / "torchtitan"),
        quantize="nf4",
    )
    return TrainingEngine(replace(setup, **changes))


def dequantized(folder: Path, matrices: dict[str, Any]) -> Any:
    """The model by transformers, whose matrices are rounded to the nearest level of their block, one by one."""
    model, _ = loaded(folder)
    levels = torch.tensor(LEVELS)
    for name in matrices:
        weight = model.get_parameter(name)
        blocks = weight.detach().reshape(-1, 64)
        largest = blocks.abs().amax(1, keepdim=True)
        nearest = (blocks / largest)[..., None].sub(levels).abs().argmin(-1)
        weight.data = (levels[nearest] * largest).reshape(weight.shape)
    return model


def test_codes_scales_and_numbers_are_those_of_bitsandbytes() -> None:
    """Its version 0.50.2 gave these by quantize_4bit and dequantize_4bit, in blocks of 64: all levels, and zeros."""
    weight = (torch.arange(256) * 37 % 101 - 50.0).view(2, 128)
    weight[1, 64:] = 0
    packed = to_nf4(weight)
    found = [blake2b(one.view(torch.uint8).numpy(), digest_size=8) for one in (packed, from_nf4(packed, torch.float32))]
    assert [one.hexdigest() for one in found] == ["a4edfe319bacf01c", "45d2e479c0e654e8"]


@pytest.mark.parametrize("family", ["mistral", "phi3", "qwen2"])
def test_a_step_is_plain_torchs_over_the_dequantized_base(family: str, tmp_path: Path) -> None:
    """Log-probabilities, the adapters' gradients and the export; the base stays what it is, in 4.5 bits a number."""
    folder = written(tmp_path / "model", family)
    matrices = quantized_shapes(read_architecture(folder), "nf4")
    model, trainer = dequantized(folder, matrices), engine(folder)
    assert largest_difference(trainer, model) < 1e-5 < largest_difference(trainer, loaded(folder)[0])
    own = dict(trainer._model.named_parameters())
    assert sum(own[name].nbytes for name in matrices) * 16 == 9 * quantized_parameters(read_architecture(folder), "nf4")
    assert {name for name, weight in own.items() if weight.requires_grad} == {n for n in own if ".lora_" in n}
    before = {name: own[name].clone() for name in own if ".lora_" not in name}

    for name in matrices:
        model.get_parameter(name).requires_grad_(True)
    given = samples()
    count = sum(sum(one.loss_mask) for one in given)
    loss = torch.zeros(())
    for one in given:
        trained, weights = torch.tensor(one.loss_mask[1:]), torch.tensor(one.advantages[1:])
        loss = loss - (plain_logprobs(model, one) * trained * weights).sum() / count
    loss.backward()
    expected = {}
    for name in matrices:  # of W + scale * B A; B is zero, and so is the gradient of A
        stem, weight = name.removesuffix("weight"), model.get_parameter(name)
        expected[stem] = LORA.scale * weight.grad @ own[f"{stem}lora_a.weight"].T
    trainer.forward_backward(given)
    for stem, gradient in expected.items():
        assert torch.allclose(own[f"{stem}lora_b.weight"].grad, gradient, atol=1e-5, rtol=1e-3), stem
        with torch.no_grad():  # AdamW's first step
            model.get_parameter(f"{stem}weight").sub_(
                LORA.scale * RATE * (gradient / (gradient.abs() + 1e-8)) @ own[f"{stem}lora_a.weight"]
            )
    trainer.optimizer_step()
    assert largest_difference(trainer, model) < 1e-3
    assert all(torch.equal(own[name], weight) for name, weight in before.items())
    trainer.export_hf(str(tmp_path / "export"))
    exported, info = loaded(tmp_path / "export")
    assert not info["missing_keys"] and largest_difference(trainer, exported) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_readers_of_a_version_have_the_trainers_weights_to_the_bit(dtype: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "model")
    lora = LoraConfig(rank=4, targets=("q_proj", "down_proj"))  # the others are rounded without an adapter
    trainer = TrainerConfig(seq_len=48, device="cpu", lora=lora, dtype=dtype)
    one = engine(folder, trainer=trainer, publish_dtype=dtype)
    one.train_step(samples())
    stored: dict[str, torch.Tensor] = {}
    one.publish(1, lambda weights: stored.update(weights))
    read = dict(Base(folder).whole(stored.items(), torch.device("cpu")))
    merged = dict(one.hf_weights(getattr(torch, dtype)))
    assert read.keys() == merged.keys() and all(torch.equal(read[name], merged[name]) for name in read)
    one.close()


def test_a_checkpoint_continues_on_its_own_quantized_base_alone(tmp_path: Path) -> None:
    folder, given = written(tmp_path / "model"), samples()
    first = engine(folder)
    first.train_step(given)
    first.save(str(tmp_path / "saved"))
    metrics = first.train_step(given)
    again = engine(folder)
    again.load(str(tmp_path / "saved"))
    assert again.train_step(given)["train/loss"] == metrics["train/loss"]
    assert again.logprobs(given) == first.logprobs(given)
    check_adapters(str(tmp_path / "saved"), LORA, "nf4")
    with pytest.raises(UserError, match=r"saved with trainer\.lora .*'quantize': 'nf4'.* and model\.quantize that"):
        check_adapters(str(tmp_path / "saved"), LORA, "none")
    weights = {name: weight.clone() for name, weight in read_folder(folder)}
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] *= -1
    write_folder(folder, iter(weights.items()))
    with pytest.raises(UserError, match=r"trained on another quantized base \(digest"):
        engine(folder).load(str(tmp_path / "saved"))
    with pytest.raises(UserError, match=r"trained on another quantized base .* the model's is \)"):
        engine(folder, quantize="none").load(str(tmp_path / "saved"))


def test_models_that_would_stay_mostly_as_they_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"most weights of a qwen3_moe are experts"):
        engine(written(tmp_path / "experts", "qwen3_moe"))
    narrow = write_model(tmp_path / "narrow", family="mistral")
    with pytest.raises(UserError, match=r"multiple of 64 numbers; model\.layers\.0\.\S+ has rows of 32"):
        engine(Path(narrow))
