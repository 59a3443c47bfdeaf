"""Which engine is taken, and what is said when it can't be had."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from agentgym.errors import UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.native.engine import NativeEngine
from agentgym.generators.select import build_engine, engine_name

with_vllm = importlib.util.find_spec("vllm") is not None


def test_auto_takes_native_on_a_cpu(old_model):
    config = GeneratorConfig(engine="auto", device="cpu", max_model_len=64)
    assert engine_name(config) == "native"
    assert isinstance(build_engine(config, str(old_model.folder)), NativeEngine)


@pytest.mark.skipif(with_vllm, reason="vllm is installed")
def test_asking_for_vllm_without_it_says_how_to_get_it(old_model):
    with pytest.raises(UserError, match="pip install vllm"):
        build_engine(GeneratorConfig(engine="vllm"), str(old_model.folder))


def test_asking_which_engine_imports_none():
    code = (
        "import sys\n"
        "from agentgym.generators.config import GeneratorConfig\n"
        "from agentgym.generators.select import engine_name\n"
        "engine_name(GeneratorConfig(engine='native'))\n"
        "assert not {'torch', 'vllm'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
