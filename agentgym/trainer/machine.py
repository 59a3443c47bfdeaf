"""What the numbers of a training step depend on besides its data and settings."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import torch


def describe_machine(device: torch.device, processes: int) -> dict[str, str]:
    """Two trainers with equal descriptions compute the same from the same, bit for bit on a CPU."""
    is_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_gpu else "cpu",
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "processes": str(processes),
        "torch": str(torch.__version__),  # else whoever is told imports torch
        "torchtitan": version("torchtitan"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def release_memory() -> None:
    """Give back what torch keeps of a GPU's memory for the next tensors."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
