"""The estimates against what was measured on GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from agentgym.families.family import tiny_config
from agentgym.families.registry import architecture_of, families
from agentgym.generators.config import GeneratorConfig
from agentgym.models.released import RELEASED
from agentgym.planning.memory import reference_parts, trainer_parts, version_gib
from agentgym.trainer.config import GatherWeights, LoraConfig, TrainerConfig

MEASURED = [  # Qwen3-1.7B on H200s: GPUs, what is recomputed, rows of 8192 on each, compiled, head's chunk, GiB a GPU
    (1, "none", 4, True, 1024, 98),
    (1, "selective", 4, True, 1024, 53),
    (1, "selective", 2, True, 1024, 41),
    (1, "elementwise", 2, True, 1024, 49),
    (1, "elementwise", 2, True, 4096, 53),
    (2, "none", 4, True, 1024, 81),
    (2, "selective", 2, False, 1024, 33),
    (2, "elementwise", 2, True, 4096, 40),
]


@pytest.mark.parametrize(("procs", "checkpoint", "rows", "compiled", "chunk", "gib"), MEASURED)
def test_the_trainers_memory_is_within_15_percent_of_what_was_measured(
    procs: int, checkpoint: str, rows: int, compiled: bool, chunk: int, gib: float
) -> None:
    trainer = TrainerConfig(
        procs=procs,
        activation_checkpoint=checkpoint,  # type: ignore[arg-type]
        rows_per_microbatch=rows,
        compile=compiled,
        logprob_chunk=chunk,
        seq_len=8192,
        dtype="bfloat16",
        device="cuda",
    )
    model = architecture_of(RELEASED["Qwen/Qwen3-1.7B"], "Qwen3-1.7B")
    parts = trainer_parts(model, trainer, on_gpu=True, batch_tokens=procs * rows * 8192)
    assert sum(parts.values()) == pytest.approx(gib, rel=0.15)


@pytest.mark.parametrize(("tokens", "gib"), [(32_768, 37.4), (100_352, 80.2)])
def test_one_long_row_whose_layers_are_computed_again_is_within_5_percent(tokens: int, gib: float) -> None:
    trainer = TrainerConfig(
        lora=LoraConfig(rank=32),
        activation_checkpoint="full",
        gather_weights="each",
        rows_per_microbatch=1,
        seq_len=tokens,
        compile=True,
        dtype="bfloat16",
    )
    model = architecture_of(RELEASED["meta-llama/Llama-3.1-8B"], "Llama-3.1-8B")
    parts = trainer_parts(model, trainer, on_gpu=True, batch_tokens=tokens)
    tensors = sum(parts.values()) - parts["process"]  # measured without what CUDA takes
    assert tensors == pytest.approx(gib, rel=0.05)


def test_tensor_parallel_ranks_split_all_and_a_small_step_fills_no_microbatch() -> None:
    model = architecture_of(RELEASED["meta-llama/Llama-3.1-8B"], "Llama-3.1-8B")
    alone = TrainerConfig(seq_len=4096, dtype="bfloat16", activation_checkpoint="selective")
    split = TrainerConfig(seq_len=4096, dtype="bfloat16", activation_checkpoint="selective", procs=4, tensor_parallel=4)
    one, four = (trainer_parts(model, config, on_gpu=True, batch_tokens=1 << 30) for config in (alone, split))
    for name in ("weights", "gradients", "optimizer", "activations", "head", "gathered"):
        assert four[name] == pytest.approx(one[name] / 4, rel=0.01), name
    assert one["weights"] == pytest.approx(8.03e9 * 4 / 2**30, rel=0.01)
    small = trainer_parts(model, alone, on_gpu=True, batch_tokens=1024)
    assert small["activations"] == pytest.approx(one["activations"] / 16)


def test_gradients_that_are_reduced_once_are_whole_until_then() -> None:
    model = architecture_of(RELEASED["meta-llama/Llama-3.1-8B"], "Llama-3.1-8B")

    def unreduced(**settings: object) -> float | None:
        given = {"seq_len": 4096, "dtype": "bfloat16", "procs": 4, "reduce_gradients": "last"} | settings
        trainer = TrainerConfig(**given)  # type: ignore[arg-type]
        return trainer_parts(model, trainer, on_gpu=True, batch_tokens=1 << 30).get("unreduced")

    assert unreduced() == pytest.approx(8.03e9 * 4 / 2**30, rel=0.01)
    assert unreduced(tensor_parallel=2) == pytest.approx(8.03e9 * 2 / 2**30, rel=0.01)
    assert unreduced(lora=LoraConfig(rank=16)) == pytest.approx(4 * 41_943_040 / 2**30)
    assert unreduced(reduce_gradients="each") is None
    assert unreduced(tensor_parallel=4) is None and unreduced(procs=1) is None  # nothing to reduce


def test_weights_that_are_gathered_once_are_whole_on_each_rank() -> None:
    model = architecture_of(RELEASED["meta-llama/Llama-3.1-8B"], "Llama-3.1-8B")

    def gathered(gather_weights: GatherWeights, **settings: object) -> float | None:
        given = {"seq_len": 4096, "dtype": "bfloat16", "procs": 4, "gather_weights": gather_weights} | settings
        trainer = TrainerConfig(**given)  # type: ignore[arg-type]
        return trainer_parts(model, trainer, on_gpu=True, batch_tokens=1 << 30).get("gathered")

    assert gathered("once") == pytest.approx(8.03e9 * 2 / 2**30, rel=0.01)
    assert gathered("once", tensor_parallel=2) == pytest.approx(8.03e9 / 2**30, rel=0.01)
    assert gathered("once", dtype="float32") == pytest.approx(8.03e9 * 4 / 2**30, rel=0.01)
    assert gathered("each") == pytest.approx((2 * 218e6 + 128256 * 4096) * 2 / 2**30, rel=0.01)
    assert gathered("once", procs=1, dtype="float32") is None  # one float32 rank computes with its own
    of_reference = [
        reference_parts(model, TrainerConfig(procs=4, gather_weights=one), on_gpu=True, batch_tokens=1 << 30)
        for one in get_args(GatherWeights)
    ]
    assert of_reference[0] == of_reference[1] == of_reference[2]  # it has no updates


def test_adapters_alone_have_gradients_and_moments_and_what_is_frozen_takes_two_bytes() -> None:
    model = architecture_of(RELEASED["meta-llama/Llama-3.1-8B"], "Llama-3.1-8B")
    settings = {"seq_len": 4096, "dtype": "bfloat16", "activation_checkpoint": "selective"}
    lora = TrainerConfig(**settings, lora=LoraConfig(rank=16))  # type: ignore[arg-type]
    parts = trainer_parts(model, lora, on_gpu=True, batch_tokens=1 << 30)
    adapters = 41_943_040  # what PEFT counts for rank 16 on all seven matrices
    assert parts["weights"] == pytest.approx((2 * 8.03e9 + 4 * adapters) / 2**30, rel=0.01)
    assert parts["gradients"] == pytest.approx(4 * adapters / 2**30)
    assert parts["optimizer"] == pytest.approx(8 * adapters / 2**30)
    full = TrainerConfig(**settings)  # type: ignore[arg-type]
    given = {"on_gpu": True, "batch_tokens": 1 << 30}
    assert reference_parts(model, lora, **given) == reference_parts(
        model, full, **given
    )  # one that follows has no adapters


def test_a_version_in_the_store_is_of_adapters_alone_where_only_these_are_trained() -> None:
    model = architecture_of(RELEASED["meta-llama/Llama-3.1-8B"], "Llama-3.1-8B")
    generator = GeneratorConfig(dtype="bfloat16")
    lora = TrainerConfig(lora=LoraConfig(rank=16))
    assert version_gib(model, generator, lora) == pytest.approx(4 * 41_943_040 / 2**30)
    for trainer in (TrainerConfig(), None):
        assert version_gib(model, generator, trainer) == pytest.approx(2 * 8.03e9 / 2**30, rel=0.01)


def test_a_rank_of_expert_parallelism_gathers_its_own_experts_alone() -> None:
    model = architecture_of(tiny_config(families()["qwen3_moe"]), "config.json")
    experts = 2 * 4 * 3 * 32 * 16
    config = TrainerConfig(procs=2, gather_weights="once", reduce_gradients="last")
    whole, half = (
        trainer_parts(model, replace(config, expert_parallel=ranks), on_gpu=True, batch_tokens=1024) for ranks in (1, 2)
    )
    for name in ("gathered", "unreduced"):
        assert whole[name] - half[name] == pytest.approx(4 * experts / 2 / 2**30)
    assert {name for name in whole if whole[name] != half[name]} == {"gathered", "unreduced"}
