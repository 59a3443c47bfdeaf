"""Which engine trains a model: TorchTitan's, or transformers'. No torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.families.quantized import Quantize, quantized_shapes
from agentgym.families.registry import family_of, read_architecture, read_dense, read_titan
from agentgym.models.safetensors import read_shapes
from agentgym.trainer.config import LORA_TARGETS, TrainerConfig


def choose_engine(
    trainer: TrainerConfig, folder: Path, quantize: Quantize = "none"
) -> tuple[TrainerConfig, Architecture]:
    """The settings with the engine that `auto` stands for, and the model's architecture. quantize: its matrices.

    Raises UserError for a model that the engine does not compute, and for settings that it does not have.
    """
    why_not_titan, architecture, wants_experts = "", None, trainer.expert_parallel > 1
    if trainer.engine != "transformers" and quantize == "none":
        try:
            architecture = (read_titan if wants_experts or trainer.engine == "titan" else read_dense)(folder)
        except UserError as error:
            if trainer.engine == "titan":
                raise
            why_not_titan = str(error)
    if architecture is not None:
        _check_mixture(trainer, architecture)
        return replace(trainer, engine="titan"), architecture
    lacking = {
        f"trainer.tensor_parallel {trainer.tensor_parallel}": trainer.tensor_parallel > 1,
        f"trainer.context_parallel {trainer.context_parallel}": trainer.context_parallel > 1,
        f"trainer.expert_parallel {trainer.expert_parallel}": wants_experts,
        f"trainer.float8 {trainer.float8}": trainer.float8 != "off",
    }
    if refused := [name for name, given in lacking.items() if given]:
        raise UserError(
            f"the trainer engine transformers has no {' and no '.join(refused)}: leave it out, and trainer.procs "
            f"shard the weights. {why_not_titan}".rstrip()
        )
    found = read_architecture(folder)
    if not any(name.startswith("model.layers.") for name in found.hf_shapes()):
        raise UserError(
            f"{folder / 'config.json'}: a {found.model_type} can't be trained, since transformers keeps its "
            "layers elsewhere than in model.layers. To evaluate it take generator.engine=transformers, or vllm on a GPU"
        )
    _check_names(found, folder)
    quantized_shapes(found, quantize)
    lora, targets = trainer.lora, family_of(found).adapter_targets
    if lora.targets == LORA_TARGETS:
        lora = replace(lora, targets=targets)
    return replace(trainer, engine="transformers", lora=lora), found


def _check_mixture(trainer: TrainerConfig, found: Architecture) -> None:
    """Raises UserError for settings that titan does not have with the model's experts."""
    if found.experts is None:
        if trainer.expert_parallel > 1:
            raise UserError(
                f"trainer.expert_parallel is {trainer.expert_parallel}, and a {found.model_type} has no experts: leave "
                "it out"
            )
        return
    lacking = {
        f"trainer.tensor_parallel {trainer.tensor_parallel}": trainer.tensor_parallel > 1,
        f"trainer.context_parallel {trainer.context_parallel}": trainer.context_parallel > 1,
        f"trainer.float8 {trainer.float8}": trainer.float8 != "off",
        f"trainer.lora.rank {trainer.lora.rank}": trainer.lora.rank > 0,
        "trainer.compile": trainer.compile,
    }
    if refused := [name for name, given in lacking.items() if given]:
        raise UserError(
            f"the trainer engine titan has no {' and no '.join(refused)} for a mixture of experts: leave it out; "
            "trainer.engine=transformers has adapters and compiles"
        )
    if found.experts.num % trainer.expert_parallel:
        raise UserError(
            f"trainer.expert_parallel is {trainer.expert_parallel}, which the model's {found.experts.num} experts are "
            "no multiple of"
        )


def _check_names(found: Architecture, folder: Path) -> None:
    """Raises UserError for weights of another model, as of one that sees images."""
    stored = read_shapes(folder) if any(folder.glob("*.safetensors")) else {}
    if stored and (missing := [name for name in found.hf_shapes() if name not in stored]):
        raise UserError(
            f"the weights in {folder} have no {missing[0]}, as its config.json says, but {next(iter(stored))}. If it "
            "sees images, save its language model as a model of its own: text alone is trained"
        )
