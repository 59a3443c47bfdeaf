"""Which engine is taken, and what the error says when it is unavailable."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace

import pytest
from plain_model import make_model

from agentgym.errors import UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.native.engine import NativeEngine
from agentgym.generators.select import (
    AutoEngine,
    NativeEngineConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
    at_once,
    settle_engine,
)
from agentgym.generators.transformers.engine import TransformersEngine
from agentgym.models.tiny import policy_path

with_vllm = importlib.util.find_spec("vllm") is not None


def test_auto_takes_native_on_a_cpu(old_model):
    config = GeneratorConfig(device="cpu", max_model_len=64)
    assert AutoEngine().choose(config, str(old_model.folder)) == NativeEngineConfig()
    assert isinstance(config.engine.build(config, str(old_model.folder)), NativeEngine)
    assert settle_engine(config, str(old_model.folder), pytest.fail).engine == NativeEngineConfig()


def test_auto_takes_transformers_for_what_native_refuses_and_says_why(tmp_path):
    folder = make_model(tmp_path, seed=0, family="gpt2").folder
    config = GeneratorConfig(device="cpu", max_model_len=64)
    notes = []
    assert settle_engine(config, str(folder), notes.append).engine == TransformersEngineConfig()
    assert len(notes) == 1 and "transformers, which is slow" in notes[0] and "model_type is 'gpt2'" in notes[0]
    assert isinstance(config.engine.build(config, str(folder)), TransformersEngine)
    asked = replace(config, engine=NativeEngineConfig())
    assert settle_engine(asked, str(folder), pytest.fail) == asked
    with pytest.raises(UserError, match=r"generator\.engine=transformers"):
        asked.engine.build(asked, str(folder))


def test_auto_passes_on_what_is_wrong_with_the_folder(tmp_path):
    with pytest.raises(UserError, match=r"there is no .*config\.json"):
        AutoEngine().choose(GeneratorConfig(device="cpu"), str(tmp_path))


@pytest.mark.skipif(with_vllm, reason="vllm is installed")
def test_asking_for_vllm_without_it_says_how_to_get_it(old_model):
    with pytest.raises(UserError, match="pip install vllm"):
        VllmEngineConfig().build(GeneratorConfig(), str(old_model.folder))


def test_at_once_changes_nothing_but_the_waiting_for_each_other():
    vllm = VllmEngineConfig(tensor_parallel=2, options={"quantization": "fp8"})
    assert vllm.joins_together and not at_once(vllm).joins_together
    assert replace(at_once(vllm), join_together=True) == vllm
    assert at_once(NativeEngineConfig()) == NativeEngineConfig() and not NativeEngineConfig().joins_together


def test_asking_which_engine_imports_none():
    code = (
        "import sys\n"
        "from agentgym.generators.config import GeneratorConfig\n"
        "GeneratorConfig(device='cpu').engine.choose(GeneratorConfig(device='cpu'), sys.argv[1])\n"
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code, str(policy_path())], check=True, timeout=60)


def test_an_argument_of_vllm_that_another_field_decides_is_refused() -> None:
    with pytest.raises(ValueError, match=r"options\.max_model_len can't be set: it follows from generator\."):
        VllmEngineConfig(options={"max_model_len": 10})
    with pytest.raises(ValueError, match=r"gpu_memory_utilization 1\.5 is a share"):
        VllmEngineConfig(gpu_memory_utilization=1.5)
    with pytest.raises(ValueError, match=r"2 replicas of 2 GPU\(s\) take 4\. Leave generator\.gpus out"):
        GeneratorConfig(replicas=2, gpus=(0, 1), engine=VllmEngineConfig(tensor_parallel=2))
