"""The only module that imports torchtitan: it makes it importable on a CPU, and names what we use of it.

torchtitan 0.3.0 assumes CUDA and triton where it is imported. Both assumptions are undone here, before any
other module of it is loaded. Its API moves fast, so the rest of this package uses these names.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torchtitan.tools.utils as titan_utils
from torch.utils._triton import has_triton_package


def load_compiler() -> None:
    """Takes seconds, so it is done where something is compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own use of torch.jit
        importlib.import_module("torch._inductor.compile_fx")


def _compiled_when_called(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiles at the first call: torch.compile loads the compiler before it is known whether anything will be
    compiled.
    """

    @functools.cache
    def compiled() -> Callable[..., Any]:
        load_compiler()
        return _compile(function, **options)

    return lambda *arguments, **named: compiled()(*arguments, **named)


_compile = torch.compile
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch._functorch.partitioners  # looks for triton, so it comes before the stand-in

if not torch.cuda.is_available():
    titan_utils.device_type, titan_utils.device_module = "cpu", torch.cpu
_stood_in: dict[str, MagicMock] = {}
try:
    import triton  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
except ImportError:
    # torchtitan defines GPU kernels at import (for expert parallelism) that never run without a GPU.
    has_triton_package()  # cached: torch will not look for it again
    _stood_in |= {"triton": MagicMock(), "triton.language": MagicMock()}
    sys.modules.update(_stood_in)
    torch.compile = _compiled_when_called  # type: ignore[assignment]
else:
    load_compiler()  # torchtitan compiles where it is imported
try:
    from torchtitan.components.lora import LoRAConverter as LoRAConverter
    from torchtitan.components.optimizer import LRSchedulersContainer as LRSchedulersContainer
    from torchtitan.components.optimizer import default_adamw as default_adamw
    from torchtitan.components.quantization import Float8LinearConverter as Float8LinearConverter
    from torchtitan.config import CompileConfig as CompileConfig
    from torchtitan.config import ParallelismConfig as ParallelismConfig
    from torchtitan.config import TrainingConfig as TrainingConfig
    from torchtitan.distributed import ParallelDims as ParallelDims
    from torchtitan.distributed.activation_checkpoint import FullAC as FullAC
    from torchtitan.distributed.activation_checkpoint import SelectiveAC as SelectiveAC
    from torchtitan.distributed.utils import clip_grad_norm_ as clip_grad_norm_
    from torchtitan.distributed.utils import set_spmd_backend as set_spmd_backend
    from torchtitan.models import qwen3 as qwen3
    from torchtitan.models.common import CosSinRoPE as CosSinRoPE
    from torchtitan.models.common import Embedding as Embedding
    from torchtitan.models.common import Linear as Linear
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.models.common.attention import QKVLinear as QKVLinear
    from torchtitan.models.common.attention import create_attention_mask as create_attention_mask
    from torchtitan.models.qwen3.model import Qwen3Model as Qwen3Model
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter as Qwen3StateDictAdapter
    from torchtitan.protocols.module import Module as Module
finally:
    torch.compile = _compile
    for _name in _stood_in:
        del sys.modules[_name]


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


def lay_out(config: Any, parallelism: ParallelismConfig) -> None:
    """Set what a layout needs of a model's configuration.

    It asks whether the settings are those of torchtitan's own trainer. They are not, and to import that one takes
    seconds: it brings datasets, pandas and clients of hubs.
    """
    name = "torchtitan.trainer"
    stood_in = name not in sys.modules
    if stood_in:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].Trainer = _NoTrainer  # type: ignore[attr-defined]
    try:
        config.update_from_config(config=SimpleNamespace(parallelism=parallelism))  # all that it reads
    finally:
        if stood_in:
            del sys.modules[name]


class _NoTrainer:
    class Config:
        pass


def share_rows_by(wrap: Callable[[Sequence[Any], Any], None]) -> None:
    """What is done to the inner attentions where ranks share rows. wrap: gets them, and the mesh of these ranks."""
    sys.modules[qwen3.parallelize_qwen3.__module__].apply_cp_to_forward = wrap  # type: ignore[attr-defined]


def disable_flex_autotune() -> None:
    """Compile flex attention without trying kernels: seconds instead of minutes at the first step."""
    FlexAttention.inductor_configs["max_autotune"] = False
    FlexAttention.inductor_configs["coordinate_descent_tuning"] = False
    FlexAttention._compiled_flex_attn = torch.compile(
        torch.nn.attention.flex_attention.flex_attention, options=FlexAttention.inductor_configs
    )
