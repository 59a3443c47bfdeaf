"""torchtitan is imported without a GPU and without triton, and what is private of it was read in its version."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
import torch
from torchtitan.distributed import parallel_dims

from agentgym.trainer import titan

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
from torchtitan.distributed import parallel_dims
assert parallel_dims.device_type == "cpu" and not any("Mock" in type(one).__name__ for one in sys.modules.values())
assert "torch._inductor.compile_fx" not in sys.modules  # seconds of a start that does not compile
assert torch.compile.__module__ == "torch"
assert "torchtitan.trainer" not in sys.modules and "pandas" not in sys.modules  # seconds, too
from torchtitan.distributed.minimal_async_ep import api
try:
    api.copy_rows_to_peers_kernel()
except RuntimeError as error:
    assert "needs triton" in str(error)
else:
    raise AssertionError("a kernel ran")
later = titan._compiled_when_called(lambda x: x + 1, backend="eager")
assert later(torch.ones(1)).item() == 2 and "torch._inductor.compile_fx" in sys.modules
"""


def test_another_version_of_torchtitan_is_refused_with_what_to_read_in_it() -> None:
    titan.check_version(version("torchtitan"))  # another one was installed: read titan.PRIVATE in it, set READ_IN
    with pytest.raises(RuntimeError, match=r"torchtitan 0\.4\.0 is installed.*parallel_dims\.device_type"):
        titan.check_version("0.4.0")
    assert hasattr(parallel_dims, "device_type") and titan.LORA_SCALE == "_lora_scaling"


@pytest.mark.slow
def test_torchtitan_imports_without_triton_and_without_mocks() -> None:
    result = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_refused() -> None:
    from agentgym.errors import UserError
    from agentgym.models.device import pick_device

    assert pick_device("auto", "trainer") == "cpu"
    with pytest.raises(UserError, match="torch sees no GPU"):
        pick_device("cuda", "trainer")
