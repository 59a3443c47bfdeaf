"""The ways to share a machine's GPUs between training and generating, and how fast each would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agentgym.errors import UserError
from agentgym.planning.advice import check
from agentgym.planning.layout import refuse_impossible
from agentgym.planning.machine import Machine
from agentgym.planning.placement import Placement, Wanted, assign
from agentgym.planning.rates import Rates, tokens_of
from agentgym.planning.simulation import Forecast, Layout, simulate
from agentgym.rl.config import LoopConfig

SIMULATED = 6  # splits, of the promising ones
MANY_GPUS = 64  # above which fewer are simulated, for fewer steps
FEW_GPUS = 8  # up to which every split is looked at
SHARES = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)  # of more GPUs, for the trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """procs: of the trainer. given: it is the recipe's own. placement: with trainer.check_memory off it may not fit.

    layout, steps: what was simulated.
    """

    procs: int
    replicas: int
    given: bool
    placement: Placement
    layout: Layout
    steps: int
    forecast: Forecast


def layout_of(wanted: Wanted, placement: Placement) -> Layout:
    assert wanted.trainer is not None and wanted.generator is not None
    gpus, each = placement.generator_gpus, wanted.generator.engine.gpus_per_replica
    count = wanted.generator.replicas
    return Layout(
        trainer=placement.trainer_gpus,
        trainer_procs=wanted.trainer.procs,
        replicas=tuple(gpus[number * each : (number + 1) * each] for number in range(count)),
        gpus=len(placement.machine.gpus),
        cores=placement.machine.cores,
        max_batch=wanted.generator.max_batch,
        join_together=wanted.generator.engine.joins_together,
    )


def best_splits(
    wanted: Wanted,
    loop: LoopConfig,
    rates: Rates,
    machine: Machine,
    *,
    steps: int = 10,
    note: Callable[[str], None] = lambda text: None,
) -> list[Split]:
    """The recipe's own split where it fits, and the most promising others; the fastest first.

    With trainer.check_memory off those that do not fit are looked at too, and come after those that do. Otherwise
    UserError is raised where none fits into the memory, with what would.
    """
    assert wanted.trainer is not None and wanted.generator is not None
    machine = replace(machine, cores=rates.cores or machine.cores)
    own, each = (wanted.trainer.procs, wanted.generator.replicas), wanted.generator.engine.gpus_per_replica
    found: list[tuple[float, tuple[int, int], Wanted, Placement]] = []
    refuse_impossible(wanted.model, wanted.trainer, wanted.generator)
    for procs, replicas in dict.fromkeys([own, *_pairs(wanted, machine)]):
        trainer = replace(wanted.trainer, procs=procs, data_parallel_shard=-1, gpus=())
        one = replace(
            wanted,
            trainer=wanted.trainer if (procs, replicas) == own else trainer,
            generator=replace(
                wanted.generator,
                replicas=replicas,
                min_replicas=None,
                max_replicas=None,
                gpus=wanted.generator.gpus[: replicas * each] if (procs, replicas) == own else (),
            ),
        )
        placement = assign(one, machine)
        if placement.fits or (placement.procs and not wanted.trainer.check_memory):
            found.append((_bound_s(loop, rates, procs, replicas, one), (procs, replicas), one, placement))
    if not found:
        check(wanted, assign(wanted, machine))
        raise UserError("no split of the GPUs fits")  # the recipe's own is one of them
    found.sort(key=lambda entry: entry[0])
    many = len(machine.gpus) > MANY_GPUS
    most, steps = (SIMULATED // 2, min(steps, SIMULATED)) if many else (SIMULATED, steps)
    kinds = ([entry for entry in found if entry[3].fits is fits] for fits in (True, False))
    chosen = [entry for kind in kinds for at, entry in enumerate(kind) if at < most or entry[1] == own]
    splits = []
    for number, (_, (procs, replicas), one, placement) in enumerate(chosen, start=1):
        note(f"simulating split {number} of {len(chosen)}: {procs} trainer process(es), {replicas} replica(s)")
        layout = layout_of(one, placement)
        splits.append(
            Split(
                procs=procs,
                replicas=replicas,
                given=(procs, replicas) == own,
                placement=placement,
                layout=layout,
                steps=steps,
                forecast=simulate(rates, loop, layout, steps=steps),
            )
        )
    return sorted(splits, key=lambda split: (not split.placement.fits, -split.forecast.tokens_per_s))


def _pairs(wanted: Wanted, machine: Machine) -> Iterator[tuple[int, int]]:
    """Numbers of trainer processes and of replicas that use all GPUs; on a host without any only the recipe's."""
    assert wanted.trainer is not None and wanted.generator is not None
    count, each, tensor = len(machine.gpus), wanted.generator.engine.gpus_per_replica, wanted.trainer.tensor_parallel
    if count == 1:
        yield 1, 1
    some = range(1, count) if count <= FEW_GPUS else sorted({round(count * share) for share in SHARES})
    for procs in some:
        replicas = (count - procs) // each
        if replicas and procs % tensor == 0:
            yield procs, replicas


def _bound_s(loop: LoopConfig, rates: Rates, procs: int, replicas: int, wanted: Wanted) -> float:
    """About the least time of a step: the slower of its two halves, each at its best."""
    assert wanted.generator is not None
    episodes = loop.groups_per_step * loop.group_size
    mean = sum(map(tokens_of, rates.turns)) / len(rates.turns)
    sampled = sum(tokens for turns in rates.turns for _, tokens in turns) / len(rates.turns)
    at_once = max(1, min(wanted.generator.max_batch, episodes * (loop.max_staleness + 1) // replicas))
    generate = episodes * sampled / rates.signal / (replicas * rates.decode_rate(at_once))
    return max(generate, rates.train_fixed_s + episodes * mean / (rates.train * procs))
