"""A whole run with LoRA and a KL term."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch
from safetensors.torch import load_file

from agentgym.jobs.train import train
from agentgym.models.safetensors import read_folder
from agentgym.models.tiny import policy_path

pytestmark = pytest.mark.hostile


def test_generators_sample_from_what_is_trained_and_the_trainer_is_its_own_reference(lab):
    recipe = lab.recipe(
        "trainer.lora.rank=4",
        "loss.kl_coef=0.01",
        "loop.check_sync_every=1",
        "loop.checkpoint_every=3",
        "eval.at_end=false",
    )
    assert recipe.optimizer.lr == pytest.approx(5e-3)
    folder, references = lab.new_run(recipe), []
    reporter = lab.reporter(on_step=lambda step: references.append(lab.processes(folder.path, "reference")))
    asyncio.run(train(recipe, folder, reporter))
    folder.close()
    assert references == [[], [], []]
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
