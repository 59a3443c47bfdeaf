"""Fields of a recipe that take less memory, with what each costs, and which of them make it fit on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import get_args

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import AutoEngine, VllmEngineConfig
from agentgym.planning.machine import Machine
from agentgym.planning.memory import is_sharded, kv_token_gib, vllm_parts
from agentgym.planning.placement import Wanted, assign, settled, uses_gpu
from agentgym.trainer.config import Recompute

Changes = dict[str, object]
"""Fields of the recipe, by dotted key."""

EVERY = 16  # GPUs, up to which each number of trainer processes is tried
USEFUL = 1 / 8  # of generator.max_batch: sequences of full length that vLLM's cache should hold
FEW_SEQUENCES = 2  # of them, where there is no room for that
LORA, LORA_RANK = "trainer.lora.rank", 32
LEAST_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One thing that can be changed, from the mildest value to the strongest. combined: also beside others.

    takes: later values take memory instead of giving it, so that beside others the first one is what can be had.
    """

    cost: str
    values: tuple[Changes, ...]
    combined: bool = True
    takes: bool = False

    @property
    def furthest(self) -> Changes:
        """The value with which most else fits."""
        return self.values[0 if self.takes else -1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Changes with which it fits, and what they cost."""

    changes: Changes
    cost: str = ""


def fits(wanted: Wanted, machine: Machine, changes: Changes) -> bool:
    return assign(changed(wanted, changes), machine).fits


def alone(wanted: Wanted, machine: Machine) -> list[Remedy]:
    """Single changes that suffice, in the order of what they cost: of each kind the mildest."""
    found = []
    for kind in kinds(wanted, machine):
        changes = next((value for value in kind.values if fits(wanted, machine, value)), None)
        if changes is not None:
            found.append(Remedy(changes=changes, cost=kind.cost))
    return found


def together(wanted: Wanted, machine: Machine, *, adapters: bool = True) -> Changes:
    """A few changes that suffice together, each as mild as the others allow; empty where none do.

    adapters: instead of all weights, where nothing else suffices.
    """
    every = [kind for kind in kinds(wanted, machine) if kind.combined]
    of_all = [kind for kind in every if LORA not in kind.values[0]]
    for known in (of_all, every) if adapters else (of_all,):
        chosen = {at: kind.furthest for at, kind in enumerate(known)}
        if fits(wanted, machine, _merged(chosen)):
            return _merged(_milder(wanted, machine, known, chosen))
    return {}


def _milder(wanted: Wanted, machine: Machine, known: list[Kind], chosen: dict[int, Changes]) -> dict[int, Changes]:
    """Drops unneeded changes, the most expensive first, and makes the others as mild as possible.

    chosen: by place in `known`.
    """
    before: dict[int, Changes] = {}
    while before != chosen:  # one that is gone may have been why another was needed
        before = chosen
        for at in sorted(chosen, reverse=True):
            fewer = {other: changes for other, changes in chosen.items() if other != at}
            if fits(wanted, machine, _merged(fewer)):
                chosen = fewer
        for at in chosen:
            mildest = (value for value in known[at].values if fits(wanted, machine, _merged(chosen | {at: value})))
            chosen = chosen | {at: next(mildest)}
    return chosen


def kinds(wanted: Wanted, machine: Machine) -> list[Kind]:
    """What could be changed in this recipe, what costs least first; without those that have no value to offer."""
    found = [*_of_weights(wanted), *_of_gpus(wanted, machine), *_of_generator(wanted, machine), *_of_trainer(wanted)]
    found += [*_in_turns(wanted, machine), *_of_store(wanted), *_adapters(wanted)]
    return [kind for kind in found if kind.values]


def _of_weights(wanted: Wanted) -> Iterator[Kind]:
    if wanted.gpu_versions > 1 or wanted.host_versions > 2:
        yield Kind(cost="one version of the weights is kept", values=({"weights.keep": 1},))


def _of_gpus(wanted: Wanted, machine: Machine) -> Iterator[Kind]:
    trainer, generator, count = wanted.trainer, wanted.generator, len(machine.gpus)
    if trainer is not None and uses_gpu(trainer.device, machine):
        if trainer.gpus:
            yield Kind(cost="the trainer's GPUs are planned", values=({"trainer.gpus": []},))
        elif trainer.data_parallel_shard < 0:
            taken = generator.engine.gpus_per_replica if generator and wanted.together else 0
            yield from _trainer_procs(trainer.procs, trainer.ranks_of_a_row, count, taken)
    if generator is None:
        return
    if generator.gpus:
        yield Kind(cost="the generators' GPUs are planned", values=({"generator.gpus": []},))
    name = "replicas" if generator.max_replicas is None else "max_replicas"
    least = (generator.min_replicas or 1) if generator.max_replicas is None else generator.replicas
    fewer = _some(range(generator.most_replicas - 1, least - 1, -1))
    yield Kind(cost="fewer generators", values=tuple({f"generator.{name}": count} for count in fewer))


def _trainer_procs(own: int, tensor: int, count: int, taken: int) -> Iterator[Kind]:
    """taken: GPUs that one generator needs. Beside other changes as many train as leave it these."""
    most, beside = count - count % tensor, (count - taken) // tensor * tensor
    more = _some(range(own + tensor, most + 1, tensor))
    more = [*(procs for procs in more if procs != beside), *(procs for procs in more if procs == beside)]
    fewer = _some(range(min(own - tensor, most), 0, -tensor))
    yield Kind(cost="more GPUs train", values=tuple({"trainer.procs": procs} for procs in more))
    yield Kind(cost="fewer GPUs train", values=tuple({"trainer.procs": procs} for procs in fewer), combined=own > count)


def _some(values: range) -> list[int]:
    """All of a few; of many, each about a fifth further than the one before."""
    if len(values) <= EVERY:
        return list(values)
    at = {round((len(values) - 1) * step / EVERY) for step in range(EVERY + 1)} | {len(values) - 2}
    return [values[index] for index in sorted(at)]


def _of_generator(wanted: Wanted, machine: Machine) -> Iterator[Kind]:
    generator = wanted.generator
    if generator is None:
        return
    if machine.gpus and uses_gpu(generator.device, machine) and _is_vllm(generator):
        own, useful = _own_share(wanted), _useful_shares(wanted, machine)
        lower = tuple(_of_vllm(wanted, gpu_memory_utilization=share) for share in reversed(useful) if share < own)
        higher = tuple(_of_vllm(wanted, gpu_memory_utilization=share) for share in useful if share > own)
        yield Kind(cost="vLLM holds fewer sequences at a time", values=lower)
        needed = not lower and _cache_gib(wanted, machine, own) < _sequence_gib(wanted)
        yield Kind(cost="vLLM takes more of its GPU", values=higher, combined=needed, takes=True)
    halves = range(1, max(1, (generator.max_batch // LEAST_BATCH).bit_length()))
    values: tuple[Changes, ...] = tuple({"generator.max_batch": generator.max_batch // 2**half} for half in halves)
    yield Kind(cost="fewer sequences are sampled at a time", values=values)


def _is_vllm(generator: GeneratorConfig) -> bool:
    """Whether the generators are vLLM on a GPU."""
    return isinstance(generator.engine, VllmEngineConfig | AutoEngine)


def _own_share(wanted: Wanted) -> float:
    made = settled(wanted.generator, on_gpu=True)
    assert made is not None and isinstance(made.engine, VllmEngineConfig)
    return made.engine.gpu_memory_utilization


def _useful_shares(wanted: Wanted, machine: Machine, *, few: bool = False) -> list[float]:
    """Shares of a GPU's memory with which vLLM can work, in ascending steps.

    few: or some of it, as where none of them can.
    """
    assert wanted.generator is not None
    sequence = _sequence_gib(wanted)
    caches = {round(0.05 * step, 2): _cache_gib(wanted, machine, 0.05 * step) for step in range(2, 19)}
    useful = max(1.0, USEFUL * wanted.generator.max_batch)
    found = (
        [share for share, cache in caches.items() if cache >= sequences * sequence]
        for sequences in ([FEW_SEQUENCES] if few else [useful, FEW_SEQUENCES])
    )
    return next(filter(None, found), [])


def _cache_gib(wanted: Wanted, machine: Machine, share: float) -> float:
    """What vLLM has for keys and values on the smallest GPU, with a share of its memory."""
    made = settled(wanted.generator, on_gpu=True)
    assert made is not None and isinstance(made.engine, VllmEngineConfig)
    made = replace(made, engine=replace(made.engine, gpu_memory_utilization=share))
    return vllm_parts(wanted.model, made, min(gpu.memory_gib for gpu in machine.gpus))["cache"]


def _sequence_gib(wanted: Wanted) -> float:
    """Memory of one sequence of full length."""
    generator = settled(wanted.generator, on_gpu=True)
    assert generator is not None
    return generator.max_model_len * kv_token_gib(wanted.model, generator)


def _of_trainer(wanted: Wanted) -> Iterator[Kind]:
    """1.7B on an H200 lost 3% of its speed by fewer logits, 5% by half a microbatch, over 10% by recomputing more."""
    trainer = wanted.trainer
    if trainer is None:
        return
    chunks = [chunk for chunk in (1024, 256) if chunk < trainer.logprob_chunk]
    values: tuple[Changes, ...] = tuple({"trainer.logprob_chunk": chunk} for chunk in chunks)
    yield Kind(cost="logits of fewer tokens at a time", values=values)
    rows = [trainer.rows_per_microbatch // 2**halves for halves in range(1, trainer.rows_per_microbatch.bit_length())]
    yield Kind(cost="smaller microbatches", values=tuple({"trainer.rows_per_microbatch": count} for count in rows))
    order = get_args(Recompute)
    stronger = order[order.index(trainer.activation_checkpoint) + 1 :]
    values = tuple({"trainer.activation_checkpoint": kind} for kind in stronger)
    yield Kind(cost="the backward pass computes more again", values=values)
    if trainer.reduce_gradients == "last" and trainer.procs > trainer.tensor_parallel:
        yield Kind(cost="gradients are reduced with each microbatch", values=({"trainer.reduce_gradients": "each"},))
    if trainer.gather_weights == "once" and is_sharded(trainer):
        yield Kind(cost="weights are gathered with each pass", values=({"trainer.gather_weights": "each"},))


def _in_turns(wanted: Wanted, machine: Machine) -> Iterator[Kind]:
    """Changes for a trainer and vLLM generators that share a GPU."""
    generator = wanted.generator
    if generator is None or wanted.trainer is None or not wanted.together or wanted.in_turns:
        return
    if not (machine.gpus and uses_gpu(generator.device, machine) and _is_vllm(generator)):
        return
    placement = assign(wanted, machine)
    if set(placement.trainer_gpus) & set(placement.generator_gpus):
        own = _own_share(wanted)
        none = _cache_gib(wanted, machine, own) < _sequence_gib(wanted)
        useful = _useful_shares(wanted, machine, few=none)
        shares = [share for share in reversed(useful) if share < own or none]
        asleep = _of_vllm(wanted, sleep=True) | {"loop.max_staleness": 0}
        values = (asleep, *(asleep | _of_vllm(wanted, gpu_memory_utilization=share) for share in shares))
        yield Kind(cost="a synchronous run: vLLM sleeps while the trainer steps", values=values)


def _of_store(wanted: Wanted) -> Iterator[Kind]:
    if wanted.gpu_versions:
        yield Kind(
            cost="weights go through the host's memory, which is slower",
            values=({"weights.store.name": "shared_memory"},),
        )


def _adapters(wanted: Wanted) -> Iterator[Kind]:
    trainer = wanted.trainer
    if trainer is not None and not trainer.lora.rank and trainer.tensor_parallel == 1 and trainer.float8 == "off":
        yield Kind(cost="adapters are trained instead of all weights", values=({LORA: LORA_RANK},))


def _of_vllm(wanted: Wanted, **fields: object) -> Changes:
    assert wanted.generator is not None
    named: Changes = {"generator.engine.name": "vllm"} if isinstance(wanted.generator.engine, AutoEngine) else {}
    return named | {f"generator.engine.{name}": value for name, value in fields.items()}


def changed(wanted: Wanted, changes: Mapping[str, object]) -> Wanted:
    """The recipe with these fields changed."""
    trainer, generator, versions = wanted.trainer, wanted.generator, wanted.gpu_versions
    if "weights.keep" in changes:
        versions = min(1, versions)
        wanted = replace(wanted, gpu_versions=versions, host_versions=min(2, wanted.host_versions))
    if "weights.store.name" in changes:
        wanted = replace(wanted, gpu_versions=0, host_versions=versions + 1)
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if isinstance(value, list):
            value = tuple(value)
        if key == LORA and trainer is not None:
            trainer = replace(trainer, lora=replace(trainer.lora, rank=value))  # type: ignore[arg-type]
            wanted = replace(wanted, reference=wanted.reference and bool(trainer.reference_every))
        elif section == "trainer" and trainer is not None:
            trainer = replace(trainer, **{name: value})  # type: ignore[arg-type]
        elif key.startswith("generator.engine.") and generator is not None:
            made = settled(generator, on_gpu=True)
            assert made is not None
            if isinstance(made.engine, VllmEngineConfig) and name != "engine.name":
                engine = replace(made.engine, **{name.removeprefix("engine."): value})  # type: ignore[arg-type]
                generator = replace(made, engine=engine)
        elif section == "generator" and generator is not None:
            generator = replace(generator, **({"gpus": ()} | {name: value}))  # type: ignore[arg-type]
    return replace(wanted, trainer=trainer, generator=generator)


def _merged(chosen: Mapping[int, Changes]) -> Changes:
    return {key: value for changes in chosen.values() for key, value in changes.items()}
