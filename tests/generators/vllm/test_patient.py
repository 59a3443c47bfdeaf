"""vLLM's worker looks at the memory of its GPU when the trainer is done with it."""

from __future__ import annotations

import importlib.util
import threading

import pytest

from agentgym.actors.gpu_turn import HeldGpus
from agentgym.generators.config import GeneratorConfig

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vllm is not installed; docs/services.md says how to get it"
    ),
    pytest.mark.filterwarnings("ignore"),  # vllm's own
]
VISIBLE = "CUDA_VISIBLE_DEVICES"


def test_a_worker_waits_for_its_own_gpu_alone(old_model, tmp_path, monkeypatch):
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.worker.gpu_worker import Worker

    from agentgym.generators.vllm.settings import engine_arguments

    name = engine_arguments(GeneratorConfig(), old_model.folder, gpu=True).worker_cls
    kind, looked = resolve_obj_by_qualname(name), threading.Event()
    worker = kind.__new__(kind)
    monkeypatch.setattr(Worker, "init_device", lambda _: looked.set())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(VISIBLE, "0")
    held = HeldGpus()

    monkeypatch.setenv(VISIBLE, "5,0")  # its own, then the trainer's, which it copies weights from
    worker.local_rank = 0
    worker.init_device()
    assert looked.is_set()

    looked.clear()
    worker.local_rank = 1
    waiting = threading.Thread(target=worker.init_device)
    waiting.start()
    assert not looked.wait(0.3)
    held.release()
    waiting.join(60)
    assert looked.is_set()


def test_a_worker_of_the_users_own_stays_and_a_cpu_has_vllms(old_model):
    from agentgym.generators.vllm.settings import engine_arguments

    own = engine_arguments(GeneratorConfig(), old_model.folder, gpu=True, worker_cls="theirs.Worker")
    assert own.worker_cls == "theirs.Worker"
    assert engine_arguments(GeneratorConfig(), old_model.folder, gpu=False).worker_cls == "auto"
