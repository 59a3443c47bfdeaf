"""Assigns processes to GPUs, from the recipe and the machine, and checks that they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from agentgym.families.architecture import Architecture
from agentgym.families.quantized import Quantize
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import AutoEngine, VllmEngineConfig
from agentgym.planning.accumulation import settle_accumulation
from agentgym.planning.machine import GIB, Machine
from agentgym.planning.memory import (
    BYTES,
    CONTEXT_GIB,
    GRAPHS_GIB,
    READER_GIB,
    STAGED_OTHERS_GIB,
    STAGED_SPARE_GIB,
    Parts,
    engine_parts,
    kv_token_gib,
    merged_gib,
    reference_parts,
    trainer_parts,
    version_gib,
    vllm_parts,
)
from agentgym.planning.shown import Block, numbers, shown, shown_once
from agentgym.trainer.config import GatherWeights, ReduceGradients, TrainerConfig

SHOWN = 2  # GPUs whose lack of memory is told in full
OF_A_STEP = (
    "gradients",
    "unreduced",
    "context",
    "activations",
    "head",
    "gathered",
)  # parts of a trainer that are there during a step alone
FEW_GPUS = 8  # up to which each is shown alone
HOST_GPUS = 8  # of a host that is planned on paper: no other host can map a GPU's memory
USABLE = 0.95  # of a GPU's memory; the rest is lost between blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be placed. together: trainer and generator run at the same time. batch_tokens: of one step, at most.

    gpu_versions: how many versions of the weights the store keeps on the trainer's first GPU; host_versions: in shared
    memory. mapped: generators map those on the GPU, for which each of their processes has a context there.
    quantize: the matrices beside the trainer's adapters.
    """

    model: Architecture
    trainer: TrainerConfig | None
    generator: GeneratorConfig | None
    reference: bool = False
    together: bool = True
    batch_tokens: int = 1 << 40
    gpu_versions: int = 0
    host_versions: int = 0
    mapped: bool = False
    quantize: Quantize = "none"

    @property
    def in_turns(self) -> bool:
        """Whether generators sleep while the trainer steps."""
        return self.generator is not None and self.generator.engine.sleeps

    @property
    def reference_gpus(self) -> tuple[int, ...]:
        """The reference model's own; nobody else is planned there."""
        return self.trainer.reference_gpus if self.trainer is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcess:
    """One process, or one GPU's part of a replica. gpu: None is the host. phase: which are there together."""

    name: str
    gpu: int | None
    parts: Parts
    phase: Literal["", "trainer", "generator"] = ""

    @property
    def gib(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """procs: trainer first. problems: why it can't run; empty when it fits. notes: what is worth knowing.

    reduce_gradients, gather_weights: the trainer's, with auto settled where FSDP shards; None without a trainer.
    """

    machine: Machine
    trainer_gpus: tuple[int, ...]
    generator_gpus: tuple[int, ...]
    procs: tuple[PlannedProcess, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reduce_gradients: ReduceGradients | None = None
    gather_weights: GatherWeights | None = None

    @property
    def fits(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """The processes of each GPU, or of the host, with their estimated memory, for people to read.

        Of many GPUs those that are alike are shown once.
        """
        gpus = sorted({proc.gpu for proc in self.procs}, key=lambda gpu: -1 if gpu is None else gpu)
        blocks = [self._block(gpu) for gpu in gpus]
        alike = (list(some) for _, some in groupby(blocks, key=lambda block: block.alike))
        grouped = [[block] for block in blocks] if len(blocks) <= FEW_GPUS else alike
        lines = [f"machine      {self.machine}"]
        for some in grouped:
            lines += shown_once(some)
        return [*lines, *self.notes]

    def _block(self, gpu: int | None) -> Block:
        procs = [proc for proc in self.procs if proc.gpu == gpu]
        of = _memory(self.machine, gpu)
        total = f"{peak(procs):.1f}" + (f" of {of:.1f}" if of is not None else "")
        parts = [f"{proc.gib:6.1f}  {shown(proc.parts)}" for proc in procs]
        return Block(gpu=gpu, total=total, names=[proc.name for proc in procs], parts=parts)


def assign(wanted: Wanted, machine: Machine) -> Placement:
    """Assign every process to GPUs that the recipe names or to those that are left, and check the result.

    Where GPUs are too few for everybody to have one alone, generators share those of others, if the memory allows it.
    """
    problems = list(_missing(wanted, machine))
    on_gpu = {
        "trainer": wanted.trainer is not None and uses_gpu(wanted.trainer.device, machine),
        "generator": wanted.generator is not None and uses_gpu(wanted.generator.device, machine),
    }
    wanted = replace(wanted, generator=settled(wanted.generator, on_gpu=on_gpu["generator"]))
    if problems:
        return Placement(machine=machine, trainer_gpus=(), generator_gpus=(), procs=(), problems=tuple(problems))
    trainer_gpus, generator_gpus = _choose_gpus(wanted, machine, **on_gpu)

    def fits(trainer: TrainerConfig) -> bool:
        """Whether it fits on each of the trainer's GPUs, or on the host, beside all others."""
        procs = _procs(replace(wanted, trainer=trainer), machine, trainer_gpus, generator_gpus)
        where = trainer_gpus or (None,)
        return not _too_little(tuple(proc for proc in procs if proc.gpu in where), machine)

    if wanted.trainer is not None:
        wanted = replace(wanted, trainer=settle_accumulation(wanted.trainer, fits))
    procs = tuple(_procs(wanted, machine, trainer_gpus, generator_gpus))
    problems += _too_little(procs, machine)
    problems += _small_caches(procs, wanted)
    stored, free = stored_gib(wanted), machine.shared_memory_gib
    if free is not None and stored > free:
        has = f"{free:.1f} GiB" if free >= 1 else f"{1024 * free:.0f} MiB"
        problems.append(
            f"/dev/shm has {has} free, and {wanted.host_versions} versions of the weights take {stored:.1f} GiB"
        )
    return Placement(
        machine=machine,
        trainer_gpus=trainer_gpus,
        generator_gpus=generator_gpus,
        procs=procs,
        problems=tuple(problems),
        notes=tuple(_notes(wanted, machine, trainer_gpus, generator_gpus, procs)),
        reduce_gradients=wanted.trainer.reduce_gradients if wanted.trainer else None,
        gather_weights=wanted.trainer.gather_weights if wanted.trainer else None,
    )


def stored_gib(wanted: Wanted) -> float:
    """Memory of the weights in /dev/shm."""
    generator = wanted.generator
    return wanted.host_versions * version_gib(wanted.model, generator, wanted.trainer) if generator else 0.0


def uses_gpu(device: str, machine: Machine) -> bool:
    return device == "cuda" or (device == "auto" and bool(machine.gpus))


def settled(generator: GeneratorConfig | None, *, on_gpu: bool) -> GeneratorConfig | None:
    """`auto` is planned as vLLM on a GPU, elsewhere it is an engine of ours."""
    if generator is None or not (on_gpu and isinstance(generator.engine, AutoEngine)):
        return generator
    return replace(generator, engine=VllmEngineConfig())


def _missing(wanted: Wanted, machine: Machine) -> Iterator[str]:
    """GPUs that are asked for and are not there."""
    count = len(machine.gpus)
    for name, config, each, why in (
        ("trainer", wanted.trainer, wanted.trainer.procs if wanted.trainer else 0, "trainer.procs"),
        (
            "generator",
            wanted.generator,
            wanted.generator.engine.gpus_per_replica if wanted.generator else 0,
            "generator.engine.tensor_parallel",
        ),
    ):
        if config is None or not uses_gpu(config.device, machine):
            continue
        if not count:
            yield f"{name}.device is 'cuda' and there is no GPU; use 'auto' or 'cpu'"
        elif absent := [gpu for gpu in config.gpus if not 0 <= gpu < count]:
            yield f"{name}.gpus names {absent}; the machine has {count}, counted from 0"
        elif config.gpus and name == "trainer" and len(set(config.gpus)) < each:
            yield f"trainer.gpus {list(config.gpus)} are too few for trainer.procs {each}: one for each"
        elif name == "trainer" and (absent := [gpu for gpu in wanted.reference_gpus if not 0 <= gpu < count]):
            yield f"trainer.reference_gpus names {absent}; the machine has {count}, counted from 0"
        elif each > count:
            yield f"{why} is {each}, each on a GPU of its own, and the machine has {count}"


def _choose_gpus(
    wanted: Wanted, machine: Machine, *, trainer: bool, generator: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The GPUs of the trainer's ranks, and of the generators', replica after replica."""
    every = range(len(machine.gpus))
    of_trainer: tuple[int, ...] = ()
    of_generator: tuple[int, ...] = ()
    if wanted.generator is not None and generator:
        of_generator = wanted.generator.gpus
    if wanted.trainer is not None and trainer:
        others = {*wanted.reference_gpus, *(of_generator if wanted.together else ())}
        order = [*(gpu for gpu in every if gpu not in others), *sorted(others)]
        of_trainer = wanted.trainer.gpus[: wanted.trainer.procs] or tuple(order[: wanted.trainer.procs])
    if wanted.generator is not None and generator and not of_generator:
        others = {*wanted.reference_gpus, *(of_trainer if wanted.together else ())}
        order = [*(gpu for gpu in every if gpu not in others), *sorted(others)]
        count = wanted.generator.most_replicas * wanted.generator.engine.gpus_per_replica
        of_generator = tuple(order[number % len(order)] for number in range(count))
    return of_trainer, of_generator


def _procs(
    wanted: Wanted, machine: Machine, trainer_gpus: tuple[int, ...], generator_gpus: tuple[int, ...]
) -> Iterator[PlannedProcess]:
    apart = not wanted.together
    trainer, generator, model = wanted.trainer, wanted.generator, wanted.model
    if trainer is not None:
        phase: Literal["", "trainer"] = "trainer" if apart else ""
        on_gpu = bool(trainer_gpus)
        of_rank = trainer_parts(
            model, trainer, on_gpu=on_gpu, batch_tokens=wanted.batch_tokens, quantize=wanted.quantize
        )
        for rank in range(trainer.procs):
            parts = of_rank
            if rank == 0 and generator is not None and wanted.gpu_versions and on_gpu:
                parts = {**parts, "versions": wanted.gpu_versions * version_gib(model, generator, trainer)}
                if wanted.mapped and (elsewhere := sum(gpu != trainer_gpus[0] for gpu in generator_gpus)):
                    parts["readers"] = min(elsewhere, HOST_GPUS - 1) * READER_GIB
            gpu = trainer_gpus[rank] if on_gpu else None
            if wanted.in_turns and on_gpu:
                passing = {name: parts[name] for name in OF_A_STEP if name in parts}
                parts = {name: size for name, size in parts.items() if name not in OF_A_STEP}
                yield PlannedProcess(name=f"trainer {rank}", gpu=gpu, parts=parts)
                yield PlannedProcess(name=f"its step {rank}", gpu=gpu, parts=passing, phase="trainer")
            else:
                yield PlannedProcess(name=f"trainer {rank}", gpu=gpu, parts=parts, phase=phase)
            if wanted.reference:
                parts = reference_parts(model, trainer, on_gpu=on_gpu, batch_tokens=wanted.batch_tokens)
                own = wanted.reference_gpus[rank] if on_gpu and wanted.reference_gpus else gpu
                yield PlannedProcess(name=f"reference {rank}", gpu=own, parts=parts, phase=phase)
    if generator is not None:
        each = generator.engine.gpus_per_replica
        for number in range(generator.most_replicas * (each if generator_gpus else 1)):
            gpu = generator_gpus[number] if generator_gpus else None
            if gpu is not None and isinstance(generator.engine, VllmEngineConfig):
                parts = vllm_parts(model, generator, machine.gpus[gpu].memory_gib)
            else:
                parts = engine_parts(model, generator, on_gpu=gpu is not None)
            name = f"generator {number // each}" + (f" part {number % each}" if each > 1 and gpu is not None else "")
            yield PlannedProcess(name=name, gpu=gpu, parts=parts, phase="generator" if apart or wanted.in_turns else "")
            if wanted.in_turns and gpu is not None:
                left = {"process": CONTEXT_GIB + GRAPHS_GIB}
                yield PlannedProcess(name=f"{name}, asleep", gpu=gpu, parts=left, phase="trainer")


def peak(procs: list[PlannedProcess]) -> float:
    """GiB, where they are fullest. Phases follow one another; what has none is there all the time."""
    always = sum(proc.gib for proc in procs if not proc.phase)
    return always + max(
        sum(proc.gib for proc in procs if proc.phase == phase) for phase in ("trainer", "generator", "none")
    )


def _memory(machine: Machine, gpu: int | None) -> float | None:
    return machine.memory_gib if gpu is None else machine.gpus[gpu].memory_gib


def _too_little(procs: tuple[PlannedProcess, ...], machine: Machine) -> list[str]:
    problems: list[str] = []
    by_gpu: dict[int | None, list[PlannedProcess]] = {}
    for proc in procs:
        by_gpu.setdefault(proc.gpu, []).append(proc)
    for gpu, here in by_gpu.items():
        memory = _memory(machine, gpu)
        if memory is None or peak(here) <= USABLE * memory:
            continue
        where = "the host's memory" if gpu is None else f"GPU {gpu}"
        who = "; ".join(f"{proc.name} {proc.gib:.1f} ({shown(proc.parts)})" for proc in here)
        if len(problems) == SHOWN:
            return [*problems, "more GPUs have too little as well"]
        problems.append(
            f"{where} has {memory:.1f} GiB, of which {USABLE * memory:.1f} can be used, and about "
            f"{peak(here):.1f} are needed: {who}"
        )
    return problems


def _small_caches(procs: tuple[PlannedProcess, ...], wanted: Wanted) -> list[str]:
    """vLLM refuses a cache that holds less than one sequence."""
    generator = wanted.generator
    if generator is None or not isinstance(generator.engine, VllmEngineConfig):
        return []
    needed = generator.max_model_len * kv_token_gib(wanted.model, generator)
    worst = min((proc.parts["cache"] for proc in procs if "engine" in proc.parts), default=needed)
    if worst >= needed:
        return []
    share = generator.engine.gpu_memory_utilization
    return [
        f"generator.engine.gpu_memory_utilization {share:g} leaves {worst:.1f} GiB for keys and values, and one "
        f"sequence of generator.max_model_len {generator.max_model_len} takes {needed:.1f}"
    ]


def _notes(
    wanted: Wanted,
    machine: Machine,
    trainer_gpus: tuple[int, ...],
    generator_gpus: tuple[int, ...],
    procs: tuple[PlannedProcess, ...],
) -> Iterator[str]:
    if wanted.together and not wanted.in_turns and (shared := sorted(set(trainer_gpus) & set(generator_gpus))):
        yield f"sharing      trainer and generator share GPU {numbers(shared)}: each slows the other"
    each = wanted.generator.engine.gpus_per_replica if wanted.generator else 1
    if many := sorted({gpu for gpu in generator_gpus if generator_gpus.count(gpu) > 1}):
        names = numbers(sorted({at // each for at, gpu in enumerate(generator_gpus) if gpu in many}))
        yield f"sharing      generators {names} share GPU {numbers(many)}: each slows the other"
    idle = set(range(len(machine.gpus))) - {*trainer_gpus, *generator_gpus, *wanted.reference_gpus}
    if idle:
        yield f"unused       GPU {numbers(sorted(idle))}"
    generator = wanted.generator
    caches = [proc.parts["cache"] for proc in procs if "engine" in proc.parts]
    if generator is not None and caches:
        tokens = min(caches) / kv_token_gib(wanted.model, generator)
        held = tokens / generator.max_model_len
        if 1 <= held < generator.max_batch:
            yield (
                f"cache        a replica holds {tokens:,.0f} tokens: {held:.0f} sequences of full length, of "
                f"generator.max_batch {generator.max_batch}"
            )
    yield from _merging(wanted, machine, procs)


def _merging(wanted: Wanted, machine: Machine, procs: tuple[PlannedProcess, ...]) -> Iterator[str]:
    """Where vLLM's updates by adapters pause for more than copies on its GPU."""
    trainer, generator = wanted.trainer, wanted.generator
    own = [proc for proc in procs if "engine" in proc.parts]
    if trainer is None or not trainer.lora.rank or generator is None or not own or wanted.in_turns:
        return
    merged, room = (merged_gib(wanted.model, generator, trainer.lora), min(_room(proc, procs, machine) for proc in own))
    if merged > room:
        wait = f"a generator's GPU has room for {room:.1f}: each update merges them while requests wait"
        yield f"merging      the matrices with adapters take {merged:.1f} GiB merged, and {wait}"
    base = wanted.model.num_parameters * BYTES[generator.dtype] / GIB
    host = [proc for proc in procs if proc.gpu is None]
    if machine.memory_gib is not None and base > machine.memory_gib - peak(host):
        yield (
            f"merging      the host has {machine.memory_gib:.1f} GiB, too little to hold the model folder's "
            f"{base:.1f} in its page cache: each update reads the disk"
        )


def _room(own: PlannedProcess, procs: tuple[PlannedProcess, ...], machine: Machine) -> float:
    """GiB of a replica's GPU for what is merged before an update; none where others use it."""
    assert own.gpu is not None
    used = peak([proc for proc in procs if proc.gpu == own.gpu])
    if used - own.gib > STAGED_OTHERS_GIB:
        return 0.0
    return max(0.0, machine.gpus[own.gpu].memory_gib - used - STAGED_SPARE_GIB)
