"""Which settings torch's allocator is given. What they do on a GPU: tests/weights/test_cuda_ipc.py."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from agentgym.models.gpu_segments import can_grow, let_segments_grow, mapped_memory

CPU = torch.device("cpu")
Said = list[str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What torch is told, in order."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    told: Said = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)

    def use(pool: str, device: torch.device) -> nullcontext[None]:
        told.append(f"{pool} on {device}")
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "MemPool", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    return told


def test_segments_grow_but_for_what_others_map(said: Said) -> None:
    let_segments_grow()
    memory = mapped_memory(12, CPU)
    assert said == ["expandable_segments:True", "expandable_segments:False", "pool on cpu", "expandable_segments:True"]
    assert memory.data.nbytes == 12 and memory.pool == "pool"


def test_a_full_gpu_leaves_them_growing(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(torch.OutOfMemoryError):
        mapped_memory(12, CPU)
    assert said[-1] == "expandable_segments:True"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:512, expandable_segments:False"),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
    ],
)
def test_what_the_environment_says_stays(said: Said, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    let_segments_grow()
    assert mapped_memory(12, CPU).pool is None
    assert not said


def test_other_settings_change_nothing(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:512")
    assert can_grow()
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not can_grow()
