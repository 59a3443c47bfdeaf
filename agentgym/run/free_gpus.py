"""A GPU of which others hold too much is refused before anything starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from agentgym.errors import UserError
from agentgym.models.gpu_memory import holders_by_gpu
from agentgym.planning.machine import Machine, this_machine
from agentgym.planning.memory import CONTEXT_GIB
from agentgym.planning.placement import USABLE, Placement

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
    for number in sorted({seat.gpu for seat in placement.seats if seat.gpu is not None}):
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
    for seat in placement.seats:
        if seat.gpu == gpu:
            by_phase[seat.phase] = by_phase.get(seat.phase, 0.0) + seat.gib
    return by_phase.pop("", 0.0) + max(by_phase.values(), default=0.0)
