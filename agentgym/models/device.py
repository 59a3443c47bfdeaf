"""Which device computes: the GPU where there is one."""

from __future__ import annotations

import contextlib
import os.path

from agentgym.errors import UserError

_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA's, AMD's, and those of Windows' Linux


def pick_device(wanted: str, section: str) -> str:
    """ "cpu" or "cuda". Without torch there is no GPU. Raises UserError where CUDA is asked for and missing."""
    available = False
    with contextlib.suppress(ImportError):
        import torch

        available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise UserError(f"{section}.device is 'cuda' but torch sees no GPU; use 'auto' or 'cpu'")
    return "cuda" if available and wanted != "cpu" else "cpu"


def visible_gpus() -> list[tuple[str, int]]:
    """Name and bytes of memory of each GPU that this process sees; none without torch.

    A machine without a GPU's device files is answered for without importing torch.
    """
    if not any(map(os.path.exists, _DEVICE_FILES)):
        return []
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
            return [(str(gpu.name), int(gpu.total_memory)) for gpu in found]
    return []
