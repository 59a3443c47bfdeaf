"""A whole run with LoRA and a KL term."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from agentgym.models.safetensors import read_folder
from agentgym.models.tiny import policy_path
from agentgym.run.train import train

pytestmark = pytest.mark.slow


def test_generators_sample_from_what_is_trained_and_the_trainer_is_its_own_reference(lab):
    recipe = lab.recipe(
        "trainer.lora.rank=4",
        "loss.kl_coef=0.01",
        "loop.check_sync_every=1",
        "loop.checkpoint_every=3",
        "eval.at_end=false",
    )
    assert recipe.optimizer.lr == pytest.approx(5e-3)
    assert recipe.needs_reference and not recipe.needs_reference_model
    folder, reporter = lab.new_run(recipe), lab.reporter()
    asyncio.run(train(recipe, folder, reporter))
    folder.close()
    assert all(metrics["sync/mismatch_max"] < 1e-4 for metrics in reporter.metrics)
    assert reporter.metrics[0]["train/kl_ref"] == pytest.approx(0, abs=1e-6)
    assert reporter.metrics[-1]["train/kl_ref"] > 1e-6
    exported = folder.checkpoint_dir(3) / "hf"
    adapters = load_file(exported / "adapter" / "adapter_model.safetensors")
    scale = 32 / json.loads((exported / "adapter" / "adapter_config.json").read_text())["r"]
    base = dict(read_folder(policy_path()))
    for name, weight in read_folder(exported):
        stem = "base_model.model." + name.removesuffix("weight")
        if f"{stem}lora_A.weight" in adapters:
            delta = scale * adapters[f"{stem}lora_B.weight"] @ adapters[f"{stem}lora_A.weight"]
            assert delta.abs().max() > 0
            base[name] = base[name].float() + delta
        assert torch.allclose(weight, base[name].float(), atol=1e-5), name


@pytest.mark.hostile
def test_generators_sample_the_first_episodes_with_the_quantized_base(lab):
    """Version 0 is not what their folder has."""
    settings = ("model.quantize=nf4", "trainer.lora.rank=4", "loop.steps=1", "loop.checkpoint_every=0")
    recipe = lab.recipe(*settings, "eval.at_end=false")
    folder, reporter = lab.new_run(recipe), lab.reporter()
    asyncio.run(train(recipe, folder, reporter))
    folder.close()
    assert reporter.metrics[0]["train/mismatch_fresh_max"] < 1e-4


@pytest.mark.hostile
def test_a_resumed_run_merges_into_the_model_that_it_began_with_and_so_does_a_reference_that_follows(lab):
    """TorchStore hands out weights, and no files."""
    model = lab.root / "base"
    shutil.copytree(policy_path(), model)
    settings = (
        "launcher.name=local",
        f"model.path={model}",
        "trainer.lora.rank=4",
        "trainer.reference_every=1",
        "loss.kl_coef=0.01",
        "weights.store=torchstore",
        "loop.check_sync_every=1",
        "eval.at_end=false",
    )
    folder, reporter = lab.new_run(lab.recipe(*settings, "loop.steps=1")), lab.reporter()
    asyncio.run(train(lab.recipe(*settings, "loop.steps=1"), folder, reporter))
    asyncio.run(train(lab.recipe(*settings, "loop.steps=3"), folder, reporter, resume=True))
    folder.close()
    assert len(reporter.metrics) == 3
    assert all(metrics["sync/mismatch_max"] < 1e-4 for metrics in reporter.metrics)
