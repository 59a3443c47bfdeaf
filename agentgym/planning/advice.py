"""What would fit where a recipe does not: the fewest fields to change, else the machine or the model that would do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import get_args

from agentgym.errors import UserError
from agentgym.generators.select import VllmEngineConfig
from agentgym.models.architecture import architecture_of
from agentgym.models.released import RELEASED
from agentgym.planning.machine import Gpu, Machine
from agentgym.planning.placement import Placement, Wanted, place, settled, uses_gpu
from agentgym.trainer.config import Recompute

Changes = dict[str, object]
"""Fields of the recipe, by dotted key."""

MOST_GPUS = 32


def check(wanted: Wanted, placement: Placement) -> None:
    """Raises UserError with all that is wrong and what would fit; nothing for a placement that fits."""
    if placement.problems:
        found = "\n  ".join(placement.problems)
        raise UserError(
            f"this does not fit on the machine ({placement.machine}):\n  {found}\n{advice(wanted, placement)}"
        )


def advice(wanted: Wanted, placement: Placement) -> str:
    """One sentence: fields that fit here; else GPUs that would do, or a released model that fits."""
    machine = placement.machine
    changes = fewest_changes(wanted, machine)
    if changes:
        return f"This would fit: {_as_words(changes)}"
    sentences = []
    if machine.gpus and (larger := _larger(wanted, machine)):
        sentences.append(larger)
    if smaller := _smaller(wanted, machine):
        sentences.append(f"On this machine this would: {smaller}")
    return ". ".join(sentences) or "Use a smaller model, or a machine with more memory"


def fewest_changes(wanted: Wanted, machine: Machine) -> Changes:
    """The smallest set of fields that makes it fit on this machine; empty where none does."""
    ranked = sorted(_candidates(wanted, machine), key=_cost)
    for changes in ranked:
        if changes and place(changed(wanted, changes), machine).fits:
            return changes
    return {}


def _cost(changes: Changes) -> float:
    """Few changes first; of equally many, those that cost no speed."""
    price = {"trainer.rows_per_microbatch": 1.1, "trainer.activation_checkpoint": 1.2, "generator.max_batch": 1.3}
    slow = changes.get("trainer.activation_checkpoint") == "full"
    return sum(price.get(key, 1.0) for key in changes) + 0.5 * slow


def _candidates(wanted: Wanted, machine: Machine) -> Iterator[Changes]:
    """Combinations of what may help."""
    trainer, generator = wanted.trainer, wanted.generator
    count = len(machine.gpus)
    options: dict[str, list[object]] = {}
    if trainer is not None:
        order = get_args(Recompute)
        options["trainer.activation_checkpoint"] = list(order[order.index(trainer.activation_checkpoint) :])
        rows = trainer.rows_per_microbatch
        fewer: list[object] = [*sorted({rows, max(1, rows // 2), 1}, reverse=True)]
        options["trainer.rows_per_microbatch"] = fewer
        if uses_gpu(trainer.device, machine) and not trainer.gpus and trainer.tensor_parallel == 1:
            more = [procs for procs in {1, count // 4, count // 2} if procs]
            options["trainer.procs"] = [trainer.procs, *(procs for procs in more if procs != trainer.procs)]
    if generator is not None:
        name = "replicas" if generator.max_replicas is None else "max_replicas"
        options[f"generator.{name}"] = list(dict.fromkeys([generator.most_replicas, *_replicas(wanted, machine)]))
        if uses_gpu(generator.device, machine):
            options["generator.engine.gpu_memory_utilization"] = [None, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1]
    if wanted.gpu_versions:
        options["weights.store.name"] = [None, "shared_memory"]
    for values in itertools.product(*options.values()):
        yield {key: value for key, value in zip(options, values, strict=True) if value != options[key][0]}


def _replicas(wanted: Wanted, machine: Machine) -> list[int]:
    """A GPU for each beside the trainer's, or one that shares."""
    generator = wanted.generator
    assert generator is not None
    left = len(machine.gpus) - (wanted.trainer.procs if wanted.trainer and wanted.together else 0)
    alone = max(1, left // generator.engine.gpus_per_replica)
    least = (generator.min_replicas or 1) if generator.max_replicas is None else generator.replicas
    return [count for count in {alone, 1} if least <= count < generator.most_replicas]


def changed(wanted: Wanted, changes: Mapping[str, object]) -> Wanted:
    """With fields of the recipe set."""
    trainer, generator = wanted.trainer, wanted.generator
    if "weights.store.name" in changes:
        wanted = replace(wanted, gpu_versions=0, host_versions=wanted.gpu_versions + 1)
    for key, value in changes.items():
        name = key.rpartition(".")[2]
        if key.startswith("trainer.") and trainer is not None:
            trainer = replace(trainer, **{name: value})  # type: ignore[arg-type]
        elif generator is not None and key.startswith("generator.engine."):
            made = settled(generator, on_gpu=True)
            assert made is not None
            if isinstance(made.engine, VllmEngineConfig):
                generator = replace(made, engine=replace(made.engine, **{name: value}))  # type: ignore[arg-type]
        elif generator is not None and key.startswith("generator."):
            generator = replace(generator, **{name: value}, gpus=())  # type: ignore[arg-type]
    return replace(wanted, trainer=trainer, generator=generator)


def _larger(wanted: Wanted, machine: Machine) -> str:
    """The fewest GPUs like these on which it fits, half of them training."""
    gpu: Gpu = machine.gpus[0]
    count = 2 ** math.ceil(math.log2(len(machine.gpus) + 1))
    free = replace(
        wanted,
        trainer=wanted.trainer and replace(wanted.trainer, gpus=()),
        generator=wanted.generator and replace(wanted.generator, gpus=()),
    )
    while count <= MOST_GPUS:
        bigger = replace(machine, gpus=(gpu,) * count)
        if place(free, bigger).fits:
            return f"It would fit on {count} such GPUs"
        if changes := fewest_changes(free, bigger):
            return f"It would fit on {count} such GPUs with {_as_words(changes)}"
        count *= 2
    return ""


def _smaller(wanted: Wanted, machine: Machine) -> str:
    """The largest released model that fits in place of this one, with the fields that it takes."""
    models = {name: architecture_of(config, name) for name, config in RELEASED.items()}
    for name, model in sorted(models.items(), key=lambda item: -item[1].num_parameters):
        other = replace(wanted, model=model)
        if model.num_parameters >= wanted.model.num_parameters:
            continue
        if place(other, machine).fits:
            return f"--model.path {name}"
        if changes := fewest_changes(other, machine):
            return f"--model.path {name} {_as_words(changes)}"
    return ""


def _as_words(changes: Changes) -> str:
    """As the command line takes them."""
    return " ".join(f"--{key} {value}" for key, value in changes.items())
