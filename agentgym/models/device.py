"""Which device computes: the GPU where there is one."""

from __future__ import annotations

import os.path
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.errors import UserError
from agentgym.models.gpu_memory import free_by_gpu

_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA's, AMD's, and those of Windows' Linux
_FOLDER = Path("/dev")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_TRIGGERED_AT = re.compile(r" \(Triggered internally at [^)]*\)\.?")  # in torch's sources


class VisibleGpu(NamedTuple):
    """memory, free: bytes; free is None where neither nvidia-smi nor torch says it, as for a slice of a GPU."""

    name: str
    memory: int
    free: int | None = None
    uuid: str = ""


def pick_device(wanted: str, section: str) -> str:
    """ "cpu" or "cuda". Without torch there is no GPU.

    Raises UserError where CUDA is asked for and missing, and for "auto" where there is a GPU that torch can't use: a
    run that was meant for it would take forever. CUDA_VISIBLE_DEVICES that hides all GPUs makes "auto" the CPU.
    """
    if wanted == "cpu" or (wanted == "auto" and not _has_device_files()):
        return "cpu"
    reason = why_no_gpu()
    if not reason:
        return "cuda"
    if wanted == "cuda":
        raise UserError(f"{section}.device is 'cuda' but torch sees no GPU: {reason}; fix that, or use 'auto' or 'cpu'")
    if (files := gpu_files()) and not _hidden() and _torch_is_there():
        raise UserError(
            f"this machine has a GPU ({files[0]}) that torch can't use: {reason}; fix that, or set {section}.device to "
            f"'cpu' or the variable {_VISIBLE} to '' to compute on the CPU"
        )
    return "cpu"


def why_no_gpu() -> str:
    """Why torch can't compute on a GPU, in its own words where it has some; empty where it can."""
    if not _torch_is_there():
        return "torch is not installed"
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""
        reason = str(said[-1].message) if said else ""
        if not reason:
            try:
                torch.cuda.init()  # type: ignore[no-untyped-call]
            except (RuntimeError, AssertionError) as error:  # torch warns of it once, and raises it each time
                reason = str(error)
    reason = _TRIGGERED_AT.sub("", " ".join(reason.split())).rstrip(".") or "no reason is given"
    given = os.environ.get(_VISIBLE)
    if given is None:
        return reason
    entries = [one.strip() for one in given.split(",")]
    twice = next((f", which lists {one} twice" for one in entries if entries.count(one) > 1), "")
    return f"{reason} ({_VISIBLE} is {given!r}{twice})"


def visible_gpus() -> list[VisibleGpu]:
    """Each GPU that this process sees; none without torch."""
    if not _has_device_files() or why_no_gpu():
        return []
    import torch

    free = free_by_gpu()
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        VisibleGpu(name=str(gpu.name), memory=int(gpu.total_memory), free=free.get(uuid), uuid=uuid)
        for gpu in found
        for uuid in [str(getattr(gpu, "uuid", ""))]
    ]


def gpu_identity(index: int) -> str:
    """What all processes call the GPU that has this number here: its UUID, or its place on the bus where torch has
    none, as some builds for ROCm.
    """
    import torch

    gpu: Any = torch.cuda.get_device_properties(index)
    if uuid := str(getattr(gpu, "uuid", "")):
        return uuid
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}"


def _has_device_files() -> bool:
    """A machine without them has no GPU, which is known without importing torch."""
    return any(map(os.path.exists, _DEVICE_FILES)) or bool(gpu_files())


def _torch_is_there() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def gpu_files() -> list[str]:
    """The device files of NVIDIA's GPUs, including hidden ones."""
    return sorted(str(path) for path in _FOLDER.glob("nvidia[0-9]*"))


def _hidden() -> bool:
    """CUDA_VISIBLE_DEVICES begins with none: it is empty, or -1."""
    given = os.environ.get(_VISIBLE)
    return given is not None and not re.match(r"\s*(\d|GPU-|MIG-)", given)
