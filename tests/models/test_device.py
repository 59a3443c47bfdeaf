"""A GPU that is there and can't be used is named with the reason, and no run goes on without it in silence."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from agentgym.errors import UserError
from agentgym.models import device
from agentgym.models.device import gpu_identity, pick_device, visible_gpus, why_no_gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
OLD = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def gpu_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(device, "_FOLDER", tmp_path)
    monkeypatch.setattr(device, "_DEVICE_FILES", (str(tmp_path / "nvidia0"),))
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia0").touch()
    return tmp_path / "nvidia0"


@pytest.fixture
def old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch warns of it at the first question only, and raises it at each."""
    warned: list[bool] = []

    def is_available() -> bool:
        if not warned:
            warnings.warn(f"{OLD} (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)", stacklevel=2)
        warned.append(True)
        return False

    def init() -> None:
        raise RuntimeError(OLD)

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "init", init)


@pytest.mark.usefixtures("old_driver")
@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_a_driver_that_is_too_old_is_the_reason_each_time(gpu_file: Path, wanted: str) -> None:
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"driver on your system is too old \(found version 11040\); fix that"
        ) as it:
            pick_device(wanted, "trainer")
    assert wanted == "cuda" or str(gpu_file) in str(it.value)
    assert visible_gpus() == [] and pick_device("cpu", "trainer") == "cpu"


@pytest.mark.usefixtures("old_driver", "gpu_file")
@pytest.mark.parametrize("hiding", ["", "-1", "NoDevFiles"])
def test_gpus_that_are_hidden_on_purpose_make_auto_the_cpu(hiding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, hiding)
    assert pick_device("auto", "generator") == "cpu"
    with pytest.raises(UserError, match=rf"generator\.device is 'cuda' .*{VISIBLE} is '{hiding}'"):
        pick_device("cuda", "generator")


@pytest.mark.usefixtures("old_driver", "gpu_file")
def test_a_number_that_is_no_gpu_hides_nothing_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "7")
    with pytest.raises(UserError, match=rf"can't use: .*{VISIBLE} is '7'.* trainer\.device to 'cpu'"):
        pick_device("auto", "trainer")


@pytest.mark.usefixtures("gpu_file")
def test_a_gpu_that_is_listed_twice_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0, 0")
    with pytest.raises(UserError, match=rf"\({VISIBLE} is '0, 0', which lists 0 twice\)"):
        pick_device("auto", "trainer")


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
@pytest.mark.usefixtures("gpu_file")
def test_a_torch_without_cuda_is_the_reason() -> None:
    assert "not compiled with CUDA" in why_no_gpu()
    with pytest.raises(UserError, match="not compiled with CUDA"):
        pick_device("auto", "trainer")


def test_a_machine_without_a_gpu_computes_on_its_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_FOLDER", tmp_path)
    assert pick_device("auto", "trainer") == "cpu"


@dataclass
class Properties:
    """torch's, of a build that may know no uuid."""

    pci_domain_id: int
    pci_bus_id: int
    pci_device_id: int = 0


def test_a_gpu_without_a_uuid_is_known_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [Properties(0, 3), Properties(0, 0xC1), Properties(1, 0xC1)]
    places[0].uuid = "8f2f6ba6"  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "get_device_properties", places.__getitem__)
    assert [gpu_identity(index) for index in range(3)] == ["8f2f6ba6", "0000:c1:00", "0001:c1:00"]
