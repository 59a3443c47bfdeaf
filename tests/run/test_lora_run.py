"""A whole run with LoRA and a KL term."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest
import torch
from plain_family import loaded
from safetensors.torch import load_file

from agentgym.families.quantized import quantized_shapes
from agentgym.families.registry import read_architecture
from agentgym.models.nf4 import from_nf4, to_nf4
from agentgym.models.safetensors import read_folder
from agentgym.models.tiny import policy_path
from agentgym.rollout.activity import Activity
from agentgym.run.engines import started_generators
from agentgym.run.settle import settle_sampling
from agentgym.run.train import train
from agentgym.trainer.checkpoint import write_manifest
from agentgym.trainer.config import LoraConfig
from agentgym.types import GenerateRequest, SamplingParams

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
    """Version 0 is not what their folder has, so none is there when a second replica has started."""
    settings = ("model.quantize=nf4", "trainer.lora.rank=4", "loop.steps=1", "loop.checkpoint_every=0")
    recipe = lab.recipe(*settings, "eval.at_end=false", "generator.replicas=2")
    folder, reporter = lab.new_run(recipe), lab.reporter()
    asyncio.run(train(recipe, folder, reporter))
    folder.close()
    assert reporter.metrics[0]["train/mismatch_fresh_max"] < 1e-4


@pytest.mark.parametrize(("is_checkpoint", "trained", "rounded"), [(0, 1, 1), (1, 1, 0), (1, 0, 1)])
async def test_without_a_trainer_a_base_is_sampled_as_it_quantizes_it_and_a_checkpoint_as_it_is(
    lab, tmp_path, is_checkpoint, trained, rounded
):
    """As `eval`, `serve` and `chat` open them; fine-tuning measures its base, which may be a checkpoint."""
    model = tmp_path / "step" / "hf"
    shutil.copytree(policy_path(), model)
    if is_checkpoint:
        (tmp_path / "step" / "trainer").mkdir()
        known = {"step": 1, "architecture": read_architecture(model), "lora": LoraConfig(rank=4), "quantize": "nf4"}
        write_manifest(tmp_path / "step" / "trainer", **known)
    plain, _ = loaded(model)
    if rounded:
        for name in quantized_shapes(read_architecture(model), "nf4"):
            weight = plain.get_parameter(name)
            weight.data = from_nf4(to_nf4(weight), torch.float32)
    given = ("model.quantize=nf4", "trainer.lora.rank=4", "generator.replicas=2")
    recipe = lab.recipe(*given, f"model.path={tmp_path / 'step'}")
    settled, reporter = settle_sampling(recipe, tmp_path, print, trained=bool(trained)), lab.reporter()
    logs = tmp_path / "logs"
    async with started_generators(settled, reporter, name="one", log_dir=logs, activity=Activity()) as generator:
        request = GenerateRequest(prompt_ids=(5, 6, 7), sampling=SamplingParams(max_tokens=8, temperature=1.0, seed=1))
        found = await generator.generate(request)
    with torch.no_grad():
        logits = plain(torch.tensor([[5, 6, 7, *found.completion_ids]])).logits[0, 2:-1]
    expected = logits.log_softmax(-1)[range(len(logits)), list(found.completion_ids)]
    assert torch.allclose(expected, torch.tensor(found.logprobs), atol=1e-4)


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
