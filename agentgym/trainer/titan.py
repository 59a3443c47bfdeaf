"""The only module that imports torchtitan: it makes it importable on a CPU, and names what we use of it.

torchtitan 0.3.0 assumes CUDA and triton where it is imported. Both assumptions are undone here, before any
other module of it is loaded. Its API moves fast, so the rest of this package uses these names.
"""

from __future__ import annotations

import sys
import types
import warnings

import torch
import torchtitan.tools.utils as titan_utils
from torch.utils._triton import has_triton_package

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
    import torch._inductor.compile_fx  # looks for triton, so it comes before the stand-in


class _Anything:
    """Answers every attribute, call and index with itself; as a decorator it returns the function."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: object) -> _Anything:
        return self

    def __call__(self, *args: object, **options: object) -> object:
        return args[0] if len(args) == 1 and callable(args[0]) and not options else self


def _stand_in_for_triton() -> list[str]:
    """Let `import triton` and `triton.language` succeed; returns the names to remove again.

    torchtitan defines GPU kernels at import (for expert parallelism) that we never run without a GPU.
    """
    has_triton_package()  # cached: torch will not look for it again
    anything = _Anything()

    def attribute(name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything

    package, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    for module in (package, language):
        module.__getattr__ = attribute  # type: ignore[method-assign]
    package.language = language  # type: ignore[attr-defined]
    modules = {"triton": package, "triton.language": language}
    sys.modules.update(modules)
    return [*modules]


if not torch.cuda.is_available():
    titan_utils.device_type, titan_utils.device_module = "cpu", torch.cpu
try:
    import triton  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

    _stood_in: list[str] = []
except ImportError:
    _stood_in = _stand_in_for_triton()
try:
    from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, default_adamw
    from torchtitan.config import TORCH_DTYPE_MAP, CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as distributed
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.models import qwen3
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.models.qwen3.model import Qwen3Model
    from torchtitan.protocols.module import Module
finally:
    for _name in _stood_in:
        del sys.modules[_name]

__all__ = [
    "TORCH_DTYPE_MAP",
    "CompileConfig",
    "CosSinRoPE",
    "Embedding",
    "FlexAttention",
    "FullAC",
    "LRSchedulersContainer",
    "Linear",
    "Module",
    "OptimizersContainer",
    "ParallelDims",
    "ParallelismConfig",
    "Qwen3Model",
    "SelectiveAC",
    "TrainingConfig",
    "default_adamw",
    "disable_flex_autotune",
    "distributed",
    "qwen3",
    "set_device",
]


def set_device(device_type: str) -> None:
    """Make torchtitan use "cpu" or "cuda" from here on, regardless of what it found at import.

    Its modules copy the name when they are imported, so each copy is set.
    """
    device_module = torch.cpu if device_type == "cpu" else torch.cuda
    for name, module in list(sys.modules.items()):
        if name.startswith("torchtitan.") and hasattr(module, "device_type"):
            module.device_type = device_type  # type: ignore[attr-defined]
            if hasattr(module, "device_module"):
                module.device_module = device_module  # type: ignore[attr-defined]


def disable_flex_autotune() -> None:
    """Compile flex attention without trying kernels: seconds instead of minutes at the first step."""
    FlexAttention.inductor_configs["max_autotune"] = False
    FlexAttention.inductor_configs["coordinate_descent_tuning"] = False
    FlexAttention._compiled_flex_attn = torch.compile(
        torch.nn.attention.flex_attention.flex_attention, options=FlexAttention.inductor_configs
    )
