"""torchtitan can be imported without a GPU and without triton, and the stand-in for triton is removed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

PROGRAM = """
import importlib.abc, sys

class NoTriton(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTriton())
from agentgym.trainer import titan
import torch
from torch.utils._triton import has_triton_package
assert "triton" not in sys.modules and not has_triton_package()
titan.set_device("cpu")
import torchtitan.distributed.utils as utils
assert utils.device_type == "cpu" and utils.device_module is torch.cpu
assert "torch._inductor.compile_fx" not in sys.modules  # seconds of a start that does not compile
assert torch.compile.__module__ == "torch"

class Config:
    def update_from_config(self, config):
        from torchtitan.trainer import Trainer
        self.found = isinstance(config, Trainer.Config), config.parallelism

made = Config()
titan.lay_out(made, 3)
assert made.found == (False, 3) and "torchtitan.trainer" not in sys.modules and "pandas" not in sys.modules
later = titan._compiled_when_called(lambda x: x + 1, backend="eager")
assert later(torch.ones(1)).item() == 2 and "torch._inductor.compile_fx" in sys.modules
"""


@pytest.mark.slow
def test_torchtitan_imports_without_triton_and_leaves_no_stand_in() -> None:
    result = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_refused() -> None:
    from agentgym.errors import UserError
    from agentgym.models.device import pick_device

    assert pick_device("auto", "trainer") == "cpu"
    with pytest.raises(UserError, match="torch sees no GPU"):
        pick_device("cuda", "trainer")
