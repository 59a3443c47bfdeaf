"""Which GPUs a process may use: CUDA_VISIBLE_DEVICES, of its own and of those that it starts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from agentgym.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def listed_gpus() -> tuple[str, ...] | None:
    """What CUDA_VISIBLE_DEVICES lists: numbers, UUIDs or MIG slices; None where it is not set, and all are to be seen.

    As CUDA has it, an entry that is none, like -1, ends the list. Raises UserError for one that is listed twice, with
    which CUDA gives none.
    """
    given = os.environ.get(VISIBLE)
    if given is None:
        return None
    found: list[str] = []
    for entry in (one.strip() for one in given.split(",")):
        if not entry.startswith(("GPU-", "MIG-")) and not entry.isdecimal():
            break
        if entry in found:
            raise UserError(f"{VISIBLE}={given} lists {entry} twice, and CUDA then gives no GPU at all; list each once")
        found.append(entry)
    return tuple(found)


def gpu_names(numbers: Iterable[int]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs that have these numbers here: torch counts those it sees, from 0.

    Raises UserError for one that CUDA_VISIBLE_DEVICES hides.
    """
    visible = listed_gpus()
    if visible is None:
        return tuple(map(str, numbers))
    wanted = tuple(numbers)
    if hidden := [number for number in wanted if number >= len(visible)]:
        raise UserError(
            f"GPU {hidden[0]} is asked for, and {VISIBLE}={os.environ[VISIBLE]} leaves {len(visible)} to this process, "
            "which are counted from 0. Set the recipe's `gpus` accordingly, or leave them out to have them planned"
        )
    return tuple(visible[number] for number in wanted)


def gpus_of_machine() -> tuple[str, ...]:
    """Names of the GPUs that a process of this machine may be given, without asking a driver."""
    numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    visible = listed_gpus()
    return tuple(map(str, sorted(map(int, numbers)))) if visible is None else visible
