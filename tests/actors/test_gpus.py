"""A process that was given some of a machine's GPUs gives away no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.actors import gpus
from agentgym.actors.gpus import HIP_VISIBLE, gpu_names, gpus_of_machine, listed_gpus
from agentgym.actors.options import ActorOptions
from agentgym.actors.runtime import Runtime
from agentgym.errors import UserError
from tests.actors.counting import Counting

VISIBLE = "CUDA_VISIBLE_DEVICES"
LONG_S = 60.0


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("4,5", ("4", "5")),
        (" 2 , 0", ("2", "0")),
        ("GPU-8f2f6ba6,MIG-1c", ("GPU-8f2f6ba6", "MIG-1c")),
        ("", ()),
        ("-1", ()),
        ("1,-1,0", ("1",)),
        ("NoDevFiles", ()),
    ],
)
def test_what_cuda_reads_is_read(given: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, given)
    assert listed_gpus() == gpus_of_machine() == found


@pytest.mark.parametrize(("given", "twice"), [("0,0", "0"), ("GPU-1c,3, GPU-1c", "GPU-1c")])
def test_a_gpu_that_is_listed_twice_is_refused_as_cuda_would(
    given: str, twice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, given)
    with pytest.raises(UserError, match=rf"{VISIBLE}={given} lists {twice} twice"):
        gpus_of_machine()


def test_numbers_are_those_of_what_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    assert listed_gpus() is None and gpu_names((3, 1)) == ("3", "1")
    monkeypatch.setenv(VISIBLE, "4,GPU-8f2f6ba6,6")
    assert gpu_names((2, 1)) == ("6", "GPU-8f2f6ba6")
    beside = ActorOptions(with_gpus=True, gpus=(1,), peer_gpus=(0, 1))
    assert beside.environment(0)[VISIBLE] == "GPU-8f2f6ba6,4", "its own first, then the peer's"
    assert ActorOptions(with_gpus=True, gpus=(1,)).environment(0, gpus=("7",))[VISIBLE] == "7", "a host's are named"
    with pytest.raises(UserError, match=r"GPU 3 is asked for, and CUDA_VISIBLE_DEVICES=4,.* leaves 3 to this process"):
        ActorOptions(with_gpus=True, gpus=(3,)).environment(0)


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A processor and three of AMD's GPUs, one of which this container may not open."""
    for node, gpu in enumerate(("0", "21232", "9210", "", "47501")):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "gpu_id").write_text(f"{gpu}\n")
    monkeypatch.setattr(gpus, "_KFD", tmp_path)
    for variable in (VISIBLE, HIP_VISIBLE):
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


def test_amds_gpus_are_given_out_by_the_variable_that_rocm_reads_first(amd: pytest.MonkeyPatch) -> None:
    assert gpus_of_machine() == ("0", "1", "2")
    own = ActorOptions(with_gpus=True, gpus=(1,))
    assert {name: own.environment(0)[name] for name in (VISIBLE, HIP_VISIBLE)} == {VISIBLE: "1", HIP_VISIBLE: "1"}
    assert ActorOptions().environment(0)[HIP_VISIBLE] == "-1", "an empty one hides none"
    amd.setenv(VISIBLE, "2,0")
    assert gpu_names((0,)) == ("2",), "ROCm reads CUDA's where its own is not set"
    amd.setenv(HIP_VISIBLE, "1,2")
    assert own.environment(0)[VISIBLE] == own.environment(0)[HIP_VISIBLE] == "2"
    assert gpus_of_machine() == ("1", "2")
    amd.setenv(HIP_VISIBLE, "1,1")
    with pytest.raises(UserError, match=r"HIP_VISIBLE_DEVICES=1,1 lists 1 twice"):
        listed_gpus()


def test_without_amds_gpus_its_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_KFD", Path("/nowhere"))
    monkeypatch.delenv(HIP_VISIBLE, raising=False)
    assert HIP_VISIBLE not in ActorOptions().environment(0)
    monkeypatch.setenv(HIP_VISIBLE, "1")
    monkeypatch.setenv(VISIBLE, "4,5")
    assert listed_gpus() == ("4", "5")


@pytest.mark.slow
async def test_an_actors_process_sees_the_gpu_that_its_number_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "5,GPU-8f2f6ba6")
    async with Runtime(log_dir=tmp_path):
        group = await Counting.options(procs=2, with_gpus=True, gpus=(1, 0)).as_actor(0)
        assert await group.call(Counting.variable, VISIBLE, timeout_s=LONG_S) == ["GPU-8f2f6ba6", "5"]
        rest = await Counting.options(with_gpus=True).as_actor(0)
        assert await rest.call(Counting.variable, VISIBLE, timeout_s=LONG_S) == ["5,GPU-8f2f6ba6"]
