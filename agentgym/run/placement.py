"""The processes of a recipe on the GPUs of a machine: planned, checked, and written into the recipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.families.quantized import BLOCK, BLOCK_BYTES, quantized_parameters
from agentgym.models.device import pick_device, why_no_gpu
from agentgym.models.gpu_memory import holders_by_gpu
from agentgym.planning.accumulation import sparing
from agentgym.planning.advice import advice, check
from agentgym.planning.copies import no_room
from agentgym.planning.layout import refuse_impossible
from agentgym.planning.machine import GIB, Machine, this_machine
from agentgym.planning.memory import BYTES, CONTEXT_GIB
from agentgym.planning.placement import USABLE, Placement, Wanted, assign
from agentgym.recipe import Recipe
from agentgym.weights.select import CudaIpcConfig, SharedMemoryConfig, TorchStoreConfig

TORCHSTORE_GB_S = 0.25  # docs/results.md, "Weight updates"


def wanted_of(recipe: Recipe, model: Architecture) -> Wanted:
    """What the recipe asks for. In fine-tuning generators play before and after the training, not during it."""
    together = recipe.sft is None
    store = recipe.weights.store if together else None
    return Wanted(
        model=model,
        trainer=recipe.trainer,
        generator=recipe.generator if recipe.plays else None,
        reference=recipe.needs_reference_model,
        together=together,
        batch_tokens=recipe.batch_tokens,
        gpu_versions=recipe.weights.keep if store is not None and store.gpu_memory else 0,
        host_versions=recipe.weights.keep + 1 if isinstance(store, SharedMemoryConfig) else 0,
        mapped=isinstance(store, CudaIpcConfig),
        quantize=recipe.model.quantize,
    )


def refuse_layout(recipe: Recipe, model: Architecture | None) -> None:
    """Raises UserError for what the recipe asks for and no machine could do. model: None where it is not known."""
    generator = recipe.generator if recipe.plays else None
    refuse_impossible(model, recipe.trainer, generator, episode_tokens=recipe.rollout.max_episode_tokens)


def settle_placement(
    recipe: Recipe, model: Architecture, note: Callable[[str], None], machine: Machine | None = None
) -> Recipe:
    """The recipe with its GPUs chosen, on this machine unless another is given; what is worth knowing goes to `note`.

    Raises UserError where it does not fit, with the numbers and what would.
    """
    refuse_layout(recipe, model)
    if machine is None and recipe.launcher.transport():
        return recipe  # each host gives out its own GPUs
    wanted = wanted_of(recipe, model)
    if machine is None:
        _check_devices(wanted)
    placement = assign(wanted, machine or this_machine())
    if recipe.trainer.check_memory or not placement.procs:
        check(wanted, placement)
    if recipe.trainer.check_memory and machine is None:
        planned, placement = placement, beside_others(wanted, placement)
        if placement.procs != planned.procs:
            note(
                "shared       others hold memory of these GPUs: trainer.gather_weights is "
                f"{placement.gather_weights}, trainer.reduce_gradients {placement.reduce_gradients}"
            )
    standing = stands_still(recipe, model, placement)
    for text in placement.notes + unchecked(placement) + standing + slow_updates(recipe, model, placement):
        note(text)
    return on_gpus(recipe.pausing_to_save() if standing else recipe, placement)


def beside_others(wanted: Wanted, placement: Placement) -> Placement:
    """The plan, or the plan without what `auto` chose for speed if others hold memory of these GPUs.

    Raises UserError where that is too little, too.
    """
    try:
        refuse_taken_gpus(placement, spare=True)
    except UserError:
        placement = assign(replace(wanted, trainer=sparing(wanted.trainer)), placement.machine)
        refuse_taken_gpus(placement, wait_s=0.0)
    return placement


def stands_still(recipe: Recipe, model: Architecture, placement: Placement) -> tuple[str, ...]:
    """Why checkpoints are not written in the background, although the recipe says so; empty where they are."""
    saving = recipe.saving
    if not saving.checkpoint_in_background or not saving.checkpoint_every or not recipe.trainer.check_memory:
        return ()
    text = no_room(model, recipe.trainer, placement.procs, placement.machine)
    return (text,) if text else ()


def slow_updates(recipe: Recipe, model: Architecture, placement: Placement) -> tuple[str, ...]:
    """That weights of this machine's GPUs travel as messages of its host."""
    store, alone = recipe.weights.store, recipe.trainer.lora.rank or recipe.sft is not None  # adapters, or none
    if not isinstance(store, TorchStoreConfig) or not placement.trainer_gpus or alone or recipe.launcher.transport():
        return ()
    size = model.num_parameters * BYTES[recipe.generator.dtype] / 1e9
    return (
        f"slow         torchstore without RDMA takes and gives a version's {size:.1f} GB at some {TORCHSTORE_GB_S:g} "
        f"GB/s, {2 * size / TORCHSTORE_GB_S:.0f} s an update; on one machine weights.store.name: cuda_ipc copies them "
        "from GPU to GPU",
    )


def on_gpus(recipe: Recipe, placement: Placement) -> Recipe:
    trainer = replace(
        recipe.trainer,
        gpus=placement.trainer_gpus or recipe.trainer.gpus,
        reduce_gradients=placement.reduce_gradients or recipe.trainer.reduce_gradients,
        gather_weights=placement.gather_weights or recipe.trainer.gather_weights,
    )
    generator = recipe.generator
    if len(placement.generator_gpus) == generator.most_replicas * generator.engine.gpus_per_replica:
        generator = replace(generator, gpus=placement.generator_gpus)
    return replace(recipe, trainer=trainer, generator=generator)


def settle_generators(recipe: Recipe, model: Architecture | None) -> Recipe:
    """Settles the placement of generators alone. model: None is one whose memory cannot be estimated."""
    refuse_impossible(model, None, recipe.generator)
    if model is None or recipe.launcher.transport():
        return recipe
    wanted = Wanted(model=model, trainer=None, generator=recipe.generator)
    _check_devices(wanted)
    placement = assign(wanted, this_machine())
    if recipe.trainer.check_memory or not placement.procs:
        check(wanted, placement)
    if recipe.trainer.check_memory:
        refuse_taken_gpus(placement)
    return on_gpus(recipe, placement)


def placement_lines(recipe: Recipe, model: Architecture | None, machine: Machine, unknown: str = "") -> list[str]:
    """The placement as lines, for a dry run. unknown: why there is no model. Raises UserError for a machine on which it
    does not fit.
    """
    refuse_layout(recipe, model)
    if model is None:
        return [f"memory       not estimated: {unknown}"]
    wanted = wanted_of(recipe, model)
    devices = {recipe.trainer.device, recipe.generator.device}
    if not machine.gpus and "cuda" in devices:
        why = f" ({reason})" if (reason := why_no_gpu()) else ""
        return [f"machine      this one has no GPU{why}; --gpus N --gpu-memory GIB shows the placement on another"]
    if not machine.gpus:
        _check_devices(wanted)
    placement = assign(wanted, machine)
    if not placement.procs:
        check(wanted, placement)
    if placement.fits:
        notes = stands_still(recipe, model, placement) + slow_updates(recipe, model, placement)
        return [*placement.lines(), *_quantized(recipe, model), *notes]
    if not recipe.trainer.check_memory:
        return [*placement.lines(), *unchecked(placement)]
    lines = [f"  {line}" for line in [*placement.lines(), *placement.problems]]
    raise UserError(
        "\n".join(["this does not fit, by the estimate of its memory in GiB:", *lines, advice(wanted, placement)])
    )


def _quantized(recipe: Recipe, model: Architecture) -> tuple[str, ...]:
    """What the trainer's quantized matrices take, and would take."""
    if recipe.model.quantize == "none":
        return ()
    count, size = quantized_parameters(model, recipe.model.quantize), BYTES[recipe.trainer.dtype]
    return (
        f"quantized    {count:,} of {model.num_parameters:,} parameters, as {recipe.model.quantize}: "
        f"{count * BLOCK_BYTES / BLOCK / GIB:.2f} GiB instead of {count * size / GIB:.2f}",
    )


def unchecked(placement: Placement) -> tuple[str, ...]:
    """What is wrong with a placement that is taken all the same."""
    return tuple(f"unchecked    trainer.check_memory is false, and {problem}" for problem in placement.problems)


def _check_devices(wanted: Wanted) -> None:
    """Raises UserError for a GPU that is asked for, or there, and can't be used."""
    if wanted.trainer is not None:
        pick_device(wanted.trainer.device, "trainer")
    if wanted.generator is not None:
        pick_device(wanted.generator.device, "generator")


WAIT_S = 10.0
"""For memory that is being given back: the processes of a run that was killed end a moment after it."""
_POLL_S = 1.0


def refuse_taken_gpus(
    placement: Placement,
    look: Callable[[], Machine] = this_machine,
    *,
    wait_s: float | None = None,
    spare: bool = False,
) -> None:
    """Raises UserError for a GPU with less free memory than is estimated for its processes. look: for another look.

    spare: what others leave must also hold what is lost between blocks, as is planned for a whole GPU.
    """
    wait_s = WAIT_S if wait_s is None else wait_s
    until_s, machine = time.monotonic() + wait_s, placement.machine
    while taken := list(_taken(placement, machine, spare=spare)):
        if time.monotonic() >= until_s:
            raise UserError(
                f"{'; '.join(taken)}: end what holds them, leave the GPU out by CUDA_VISIBLE_DEVICES, or set "
                "trainer.check_memory to false to start all the same"
            )
        time.sleep(min(_POLL_S, wait_s))
        machine = look()


def _taken(placement: Placement, machine: Machine, *, spare: bool) -> Iterator[str]:
    for number in sorted({proc.gpu for proc in placement.procs if proc.gpu is not None}):
        gpu, needed_gib = machine.gpus[number], _needed_gib(placement, number)
        if gpu.free_gib is None:
            continue
        others = gpu.memory_gib - gpu.free_gib > CONTEXT_GIB
        if needed_gib <= (USABLE * gpu.free_gib if spare and others else gpu.free_gib):
            continue
        who = ", ".join(map(str, holders_by_gpu().get(gpu.uuid, ())))
        yield (
            f"GPU {number}: {gpu.memory_gib - gpu.free_gib:.1f} of {gpu.memory_gib:.1f} GiB are used by others"
            f"{f' ({who})' if who else ''}, and about {needed_gib:.1f} are needed"
        )


def _needed_gib(placement: Placement, gpu: int) -> float:
    """The most at a time: phases follow one another, and what has none is there all the time."""
    by_phase: dict[str, float] = {}
    for proc in placement.procs:
        if proc.gpu == gpu:
            by_phase[proc.phase] = by_phase.get(proc.phase, 0.0) + proc.gib
    return by_phase.pop("", 0.0) + max(by_phase.values(), default=0.0)
