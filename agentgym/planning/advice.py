"""What would fit where a recipe does not: single changes, several, else the machine or the model that would."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from agentgym.errors import UserError
from agentgym.families.registry import architecture_of
from agentgym.models.released import RELEASED
from agentgym.planning.changes import LORA, Changes, alone, fits, together
from agentgym.planning.machine import Machine
from agentgym.planning.placement import Placement, Wanted, stored_gib

MOST_GPUS = 32
MOST_SHOWN = 6  # single changes
SPARE_SHARED = 1.25  # times the weights, for what else is in /dev/shm


def check(wanted: Wanted, placement: Placement) -> None:
    """Raises UserError with all that is wrong and what would fit; nothing for a placement that fits."""
    if placement.problems:
        found = "\n  ".join(placement.problems)
        raise UserError(
            f"this does not fit on the machine ({placement.machine}):\n  {found}\n{advice(wanted, placement)}"
        )


def advice(wanted: Wanted, placement: Placement) -> str:
    """Single changes with which it fits here; else several, GPUs that would do, or a released model that fits.

    A /dev/shm that is too small comes first: it costs nothing to make it larger.
    """
    machine = placement.machine
    free, stored = machine.shared_memory_gib, stored_gib(wanted)
    if free is None or stored <= free:
        return _changes(wanted, machine)
    roomy = replace(machine, shared_memory_gib=None)
    size = f"{math.ceil(SPARE_SHARED * stored)}g"
    larger = (
        f"Make /dev/shm larger: docker run --shm-size {size}; in Kubernetes an emptyDir of medium Memory; "
        f"elsewhere mount -o remount,size={size} /dev/shm"
    )
    if not fits(wanted, roomy, {}):
        return f"{larger}. Besides:\n{_changes(wanted, roomy)}"
    single = [as_words(remedy.changes) for remedy in alone(wanted, machine)[:MOST_SHOWN]]
    return f"{larger}. Instead, this would fit: {', or '.join(single)}" if single else larger


def _changes(wanted: Wanted, machine: Machine) -> str:
    if single := alone(wanted, machine)[:MOST_SHOWN]:
        words = [as_words(remedy.changes) for remedy in single]
        width = max(map(len, words))
        lines = [f"  {word.ljust(width)}  {remedy.cost}" for word, remedy in zip(words, single, strict=True)]
        if all(LORA in remedy.changes for remedy in single):
            lines += _without_adapters(wanted, machine)
        return "\n".join(["This would fit:" if len(single) == 1 else "Each of these alone would fit:", *lines])
    if several := together(wanted, machine):
        return f"This would fit: {as_words(several)}"
    sentences = []
    if larger := _larger(wanted, machine):
        sentences.append(larger)
    if smaller := _smaller(wanted, machine):
        sentences.append(f"On this machine this would: {smaller}")
    return ". ".join(sentences) or "Use a smaller model, or a machine with more memory"


def _without_adapters(wanted: Wanted, machine: Machine) -> list[str]:
    """A line with what trains all weights, here or on more GPUs."""
    if several := together(wanted, machine, adapters=False):
        return [f"All weights could be trained with {as_words(several)}"]
    larger = _larger(wanted, machine)
    return [f"{larger}, all weights trained"] if larger else []


def _larger(wanted: Wanted, machine: Machine) -> str:
    """The fewest GPUs like these on which it fits, with all that generators leave over training; empty without any."""
    if not machine.gpus:
        return ""
    free = replace(
        wanted,
        trainer=wanted.trainer and replace(wanted.trainer, gpus=()),
        generator=wanted.generator and replace(wanted.generator, gpus=()),
    )
    larger = [
        replace(machine, gpus=(machine.gpus[0],) * count) for count in range(len(machine.gpus) + 1, MOST_GPUS + 1)
    ]
    for bigger in larger:
        for changes in _of_more_gpus(free, len(bigger.gpus)):
            if fits(free, bigger, changes):
                return _with(bigger, changes)
    found = ((bigger, together(free, bigger, adapters=False)) for bigger in larger)
    return next((_with(bigger, changes) for bigger, changes in found if changes), "")


def _with(machine: Machine, changes: Changes) -> str:
    return f"It would fit on {len(machine.gpus)} such GPUs" + (f" with {as_words(changes)}" if changes else "")


def _of_more_gpus(wanted: Wanted, count: int) -> Iterator[Changes]:
    """The recipe as it is, and with more trainer processes, with and without a second version of the weights."""
    trainer, generator = wanted.trainer, wanted.generator
    taken = generator.most_replicas * generator.engine.gpus_per_replica if generator and wanted.together else 0
    kept: list[Changes] = [{}, {"weights.keep": 1}] if wanted.gpu_versions > 1 else [{}]
    yield from kept
    if trainer is None or trainer.data_parallel_shard > 0:
        return
    procs = (count - taken) // trainer.ranks_of_a_row * trainer.ranks_of_a_row
    if procs > trainer.procs:
        yield from ({"trainer.procs": procs} | changes for changes in kept)


def _smaller(wanted: Wanted, machine: Machine) -> str:
    """The largest released model that fits in place of this one, with the fields that it takes."""
    models = {name: architecture_of(config, name) for name, config in RELEASED.items()}
    for name, model in sorted(models.items(), key=lambda item: -item[1].num_parameters):
        if model.num_parameters >= wanted.model.num_parameters:
            continue
        other = replace(wanted, model=model)
        if fits(other, machine, {}):
            return f"--model.path {name}"
        single = alone(other, machine)
        if changes := single[0].changes if single else together(other, machine):
            return f"--model.path {name} {as_words(changes)}"
    return ""


def as_words(changes: Changes) -> str:
    """The changes as command-line arguments."""
    return " ".join(f"--{key} {value}" for key, value in changes.items())
