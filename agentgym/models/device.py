"""Whether there is a GPU to compute on."""

from __future__ import annotations


def has_gpu() -> bool:
    """What torch reports; False without torch."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
