"""Which GPUs a process may use: CUDA_VISIBLE_DEVICES, of its own and of those that it starts.

With AMD's GPUs HIP_VISIBLE_DEVICES comes first, where it is set: ROCm and torch read it before the other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentgym.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIP_VISIBLE = "HIP_VISIBLE_DEVICES"
_KFD = Path("/sys/class/kfd/kfd/topology/nodes")  # AMD's driver: a folder for each GPU, and for each processor


def listed_gpus() -> tuple[str, ...] | None:
    """What the variable lists: numbers, UUIDs or MIG slices; None where it is not set, and all are to be seen.

    As CUDA has it, an entry that is none, like -1, ends the list. Raises UserError for one that is listed twice, with
    which CUDA gives none.
    """
    variable = _variable()
    given = os.environ.get(variable)
    if given is None:
        return None
    found: list[str] = []
    for entry in (one.strip() for one in given.split(",")):
        if not entry.startswith(("GPU-", "MIG-")) and not entry.isdecimal():
            break
        if entry in found:
            raise UserError(
                f"{variable}={given} lists {entry} twice, and CUDA then gives no GPU at all; list each once"
            )
        found.append(entry)
    return tuple(found)


def left_to(names: Iterable[str]) -> dict[str, str]:
    """The variables of a process that is to see these GPUs, in this order, and no others."""
    listed = ",".join(names)
    if not (HIP_VISIBLE in os.environ or any(_amd_gpus())):
        return {VISIBLE: listed}
    return {VISIBLE: listed, HIP_VISIBLE: listed or "-1"}  # ROCm takes an empty one as not set


def gpu_names(numbers: Iterable[int]) -> tuple[str, ...]:
    """What the variable calls the GPUs that have these numbers here: torch counts those it sees, from 0.

    Raises UserError for one that the variable hides.
    """
    visible = listed_gpus()
    if visible is None:
        return tuple(map(str, numbers))
    wanted = tuple(numbers)
    if hidden := [number for number in wanted if number >= len(visible)]:
        raise UserError(
            f"GPU {hidden[0]} is asked for, and {_variable()}={os.environ[_variable()]} leaves {len(visible)} to this "
            "process, which are counted from 0. Set the recipe's `gpus` accordingly, or leave them out to have them "
            "planned"
        )
    return tuple(visible[number] for number in wanted)


def gpus_of_machine() -> tuple[str, ...]:
    """Names of the GPUs that a process of this machine may be given, without asking a driver."""
    visible = listed_gpus()
    if visible is not None:
        return visible
    numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(map(str, sorted(map(int, numbers)))) or tuple(str(number) for number, _ in enumerate(_amd_gpus()))


def _variable() -> str:
    return HIP_VISIBLE if HIP_VISIBLE in os.environ and any(_amd_gpus()) else VISIBLE


def _amd_gpus() -> Iterator[str]:
    """The ids of those that this process may open."""
    for path in _KFD.glob("*/gpu_id"):
        with contextlib.suppress(OSError):
            if (gpu := path.read_text().strip()) not in ("", "0"):  # 0 is a processor
                yield gpu
