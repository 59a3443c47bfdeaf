"""Copies of checkpoints are made where the host has room for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgym.planning.copies import copy_gib
from agentgym.planning.machine import GIB, Gpu, Machine
from agentgym.run.layers import finish_recipe
from agentgym.run.placement import placement_lines, settle_placement
from agentgym.trainer.config import LoraConfig, TrainerConfig
from tests.planning.test_placement import QWEN

MODEL = QWEN["1.7B"]
NEEDED = 16 * MODEL.num_parameters / GIB


def test_a_copy_is_what_is_saved_and_what_is_exported() -> None:
    """torch's tensors of 32 bits: the weight, two moments, and the weight in the Hugging Face folder."""
    assert copy_gib(MODEL, TrainerConfig(procs=4)) == pytest.approx(NEEDED)
    adapters = copy_gib(MODEL, TrainerConfig(lora=LoraConfig(rank=8)))
    assert NEEDED / 4 < adapters < 1.1 * NEEDED / 4


@pytest.mark.parametrize(("gpus", "host_gib"), [(2, NEEDED / 0.95 - 0.1), (0, 72.0)])
def test_without_room_checkpoints_are_saved_while_training_stands_still(gpus: int, host_gib: float) -> None:
    """On a CPU the trainer and the generator have their memory there, too."""
    device = "cuda" if gpus else "cpu"
    given = {"model": {"path": "Qwen/Qwen3-1.7B"}, "trainer": {"device": device}, "generator": {"device": device}}
    given["generator"] |= {"engine": {"name": "vllm" if gpus else "native"}, "max_batch": 4, "replicas": 1}
    made = finish_recipe(given)[0]
    host = Machine(gpus=(Gpu(name="some", memory_gib=180.0),) * gpus, cores=8, memory_gib=host_gib)
    notes: list[str] = []
    settled = settle_placement(made, MODEL, notes.append, host)
    assert made.loop.checkpoint_in_background and not settled.loop.checkpoint_in_background
    (note,) = [note for note in notes if note.startswith("checkpoints  training stands still")]
    assert f"a copy of {NEEDED:.1f} GiB" in note and note in placement_lines(made, MODEL, host)
    roomy = replace(host, memory_gib=host_gib + 1.1 * NEEDED)
    notes.clear()
    assert settle_placement(made, MODEL, notes.append, roomy).loop == made.loop
    assert not any("checkpoints" in line for line in [*notes, *placement_lines(made, MODEL, roomy)])
    tuned = finish_recipe({"model": given["model"], "trainer": given["trainer"], "sft": {"data": ["talks.jsonl"]}})[0]
    still = settle_placement(tuned, MODEL, notes.append, replace(host, memory_gib=NEEDED + (0 if gpus else 26)))
    assert tuned.sft.checkpoint_in_background and not still.sft.checkpoint_in_background
    assert notes[-1].startswith("checkpoints  training stands still")
    unknown = replace(host, memory_gib=None)
    assert settle_placement(made, MODEL, notes.append, unknown).loop == made.loop
