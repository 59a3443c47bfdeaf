"""Which engine is taken, and what the error says when it is unavailable."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from agentgym.errors import UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.native.engine import NativeEngine
from agentgym.generators.select import AutoEngine, NativeEngineConfig, VllmEngineConfig

with_vllm = importlib.util.find_spec("vllm") is not None


def test_auto_takes_native_on_a_cpu(old_model):
    config = GeneratorConfig(device="cpu", max_model_len=64)
    assert AutoEngine().choose(config) == NativeEngineConfig()
    assert isinstance(config.engine.build(config, str(old_model.folder)), NativeEngine)


@pytest.mark.skipif(with_vllm, reason="vllm is installed")
def test_asking_for_vllm_without_it_says_how_to_get_it(old_model):
    with pytest.raises(UserError, match="pip install vllm"):
        VllmEngineConfig().build(GeneratorConfig(), str(old_model.folder))


def test_asking_which_engine_imports_none():
    code = (
        "import sys\n"
        "from agentgym.generators.config import GeneratorConfig\n"
        "GeneratorConfig(device='cpu').engine.choose(GeneratorConfig(device='cpu'))\n"
        "assert not {'torch', 'vllm'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
