"""Matrix products of the layers in float8, by torchtitan's converter; weights and optimizer stay as they are.

Both factors of a product are cast just before it, with scales for a whole tensor (`tensorwise`) or for each row
(`rowwise`; with `rowwise_with_gw_hp` the products that give the weights' gradients stay in bfloat16). The head, and
layers with a dimension that 16 does not divide, stay in bfloat16. `emulated` rounds as `tensorwise` does and
multiplies in bfloat16, on any device.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from agentgym.errors import UserError
from agentgym.trainer import titan
from agentgym.trainer.config import TrainerConfig

LEAST_CAPABILITY = (8, 9)
TORCHAO = "torchao==0.18.0"


def with_float8(config: Any, trainer: TrainerConfig) -> Any:
    """torchtitan's configuration of the model, changed. Raises UserError where float8 can't be computed."""
    has_gpu = torch.cuda.is_available() and trainer.device != "cpu"
    capability = torch.cuda.get_device_capability() if has_gpu else None
    check(trainer, installed=find_spec("torchao") is not None, capability=capability)
    emulate = trainer.float8 == "emulated"
    settings = titan.Float8LinearConverter.Config(
        recipe_name="tensorwise" if emulate else trainer.float8,
        filter_fqns=["lm_head"],
        model_compile_enabled=trainer.compile,
        emulate=emulate,
    )
    return titan.Float8LinearConverter(settings).convert(config)


def check(trainer: TrainerConfig, *, installed: bool, capability: tuple[int, int] | None) -> None:
    """installed: whether torchao is. capability: of the trainer's GPU. Raises UserError for what is missing."""
    name = f"trainer.float8 is {trainer.float8!r}"
    if not installed:
        raise UserError(f"{name} and torchao is not installed: `pip install {TORCHAO}`, or set trainer.float8 to off")
    if trainer.float8 == "emulated" or torch.version.hip:  # torchtitan checks AMD's
        return
    if capability is None or capability < LEAST_CAPABILITY:
        here = "the trainer is on a CPU" if capability is None else "this GPU has {}.{}".format(*capability)
        raise UserError(
            f"{name}, which needs a GPU of compute capability {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} or more "
            f"(Ada, Hopper, Blackwell); {here}. Set trainer.float8 to off, or to emulated to see its rounding"
        )
