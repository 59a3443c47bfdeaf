"""The only module that imports torchtitan. It names what the trainer uses of it, and has all that is not public there.

torchtitan 0.3.0 assumes CUDA and triton where it is imported. What is done about it, and each other place that its
authors may change without notice, is in `PRIVATE`: read them again before another version is installed.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any, NoReturn

import torch

from agentgym.trainer.dynamic import of_any_length

READ_IN = "0.3.0"
"""The version in which `PRIVATE` was read."""
_KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"
LORA_SCALE = "_lora_scaling"
"""The attribute of a matrix with an adapter that has alpha / rank."""
PRIVATE = (
    f"{_KERNELS} (imports triton, which a CPU lacks)",
    "torchtitan.distributed.parallel_dims.device_type (of its meshes: set at import)",
    f"LoRALinear.{LORA_SCALE}",
    "torch.compile at import (by torchtitan.models.common.attention)",
    "torchtitan.models.common.attention._compiled_create_block_mask",
)


def check_version(installed: str) -> None:
    """Raises RuntimeError for another version than the one whose private parts are used here."""
    if installed != READ_IN:
        raise RuntimeError(
            f"torchtitan {installed} is installed, and agentgym/trainer/titan.py was written for {READ_IN}. Install "
            f"torchtitan=={READ_IN}; or read what it uses that is not public in the new version, and set READ_IN: "
            + "; ".join(PRIVATE)
        )


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


def _with_any_rows(create: Callable[..., Any]) -> Callable[..., Any]:
    """create_block_mask, compiled once for all numbers of rows: a number is compiled for as it is at first, so the
    rows are given as those of a tensor.
    """

    def of_rows(allowed: Callable[..., Any], rows_R: torch.Tensor, *sizes: object, **options: object) -> Any:
        return create(allowed, len(rows_R), *sizes, **options)

    compiled = _compiled_when_called(of_rows)

    def call(allowed: Callable[..., Any], rows: int, *sizes: object, **options: object) -> Any:
        rows_R = torch.empty(rows)
        of_any_length(rows, rows_R, allowed)
        return compiled(allowed, rows_R, *sizes, **options)

    return call


def _no_kernels(name: str) -> Callable[..., NoReturn]:
    """Any of the kernels by which experts on several GPUs exchange tokens; nothing here calls one."""
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"{_KERNELS}.{name} needs triton, which is not installed")

    return kernel


check_version(version("torchtitan"))
try:
    import triton  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
except ImportError:
    sys.modules[_KERNELS] = ModuleType(_KERNELS)
    sys.modules[_KERNELS].__getattr__ = _no_kernels  # type: ignore[method-assign]
_compile, torch.compile = torch.compile, _compiled_when_called  # type: ignore[assignment]
try:
    from torchtitan.components.lora import LoRAConverter as LoRAConverter
    from torchtitan.components.optimizer import LRSchedulersContainer as LRSchedulersContainer
    from torchtitan.components.optimizer import default_adamw as default_adamw
    from torchtitan.components.quantization import Float8LinearConverter as Float8LinearConverter
    from torchtitan.config import CompileConfig as CompileConfig
    from torchtitan.config import ParallelismConfig as ParallelismConfig
    from torchtitan.config import TrainingConfig as TrainingConfig
    from torchtitan.distributed import ParallelDims as ParallelDims
    from torchtitan.distributed import parallel_dims as _parallel_dims
    from torchtitan.distributed.activation_checkpoint import FullAC as FullAC
    from torchtitan.distributed.activation_checkpoint import SelectiveAC as SelectiveAC
    from torchtitan.distributed.compile import apply_compile as apply_compile
    from torchtitan.distributed.fsdp import apply_fsdp_to_decoder as apply_fsdp_to_decoder
    from torchtitan.distributed.utils import clip_grad_norm_ as clip_grad_norm_
    from torchtitan.distributed.utils import set_spmd_backend as set_spmd_backend
    from torchtitan.models.common import CosSinRoPE as CosSinRoPE
    from torchtitan.models.common import Embedding as Embedding
    from torchtitan.models.common import Linear as Linear
    from torchtitan.models.common import RMSNorm as RMSNorm
    from torchtitan.models.common import attention as _attention
    from torchtitan.models.common.attention import FlexAttention as FlexAttention
    from torchtitan.models.common.attention import QKVLinear as QKVLinear
    from torchtitan.models.common.attention import create_attention_mask as create_attention_mask
    from torchtitan.models.common.config_utils import make_ffn_config as make_ffn_config
    from torchtitan.models.common.config_utils import make_gqa_config as make_gqa_config
    from torchtitan.models.common.moe import GroupedExperts as GroupedExperts
    from torchtitan.models.common.moe import MoE as MoE
    from torchtitan.models.common.moe import RoutedExperts as RoutedExperts
    from torchtitan.models.common.moe import TokenChoiceTopKRouter as TokenChoiceTopKRouter
    from torchtitan.models.common.param_init import skip_param_init as skip_param_init
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher as AllToAllTokenDispatcher
    from torchtitan.models.qwen3.model import Qwen3Model as Qwen3Model
    from torchtitan.models.qwen3.model import Qwen3TransformerBlock as Qwen3TransformerBlock
    from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config as set_qwen3_sharding_config
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter as Qwen3StateDictAdapter
    from torchtitan.protocols.module import Module as Module
finally:
    torch.compile = _compile
_attention._compiled_create_block_mask = _with_any_rows(_attention.create_block_mask)


def set_device(device_type: str) -> None:
    """Make torchtitan's meshes of "cpu" or "cuda" devices from here on, regardless of what it found at import."""
    _parallel_dims.device_type = device_type
