"""Control groups of both versions, on folders that look like the kernel's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.bubblewrap import cgroups
from agentgym_sandboxes.bubblewrap.cgroups import Group, Parent, find_parent, remove_stale

MIB = 1 << 20


def make_files(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def version_2(root: Path, path: str = "run.scope", handed: str = "", controllers: str = "cpu memory pids") -> Path:
    """A delegated group as systemd makes it, with two processes inside."""
    make_files(root, {"cgroup.controllers": controllers})
    folder = root / path
    make_files(
        folder, {"cgroup.controllers": controllers, "cgroup.subtree_control": handed, "cgroup.procs": "11\n12\n"}
    )
    return folder


def version_1(root: Path, path: str = "agentgym") -> None:
    for name in ("memory", "pids"):
        make_files(root / name / path, {"cgroup.procs": ""})


def test_version_2_is_divided_once_its_own_processes_have_moved_below(tmp_path: Path) -> None:
    folder = version_2(tmp_path)
    make_files(folder / cgroups.OURS, {"cgroup.procs": ""})
    parent = find_parent("/run.scope", tmp_path)
    assert parent == Parent(2, folder, folder)
    assert (folder / cgroups.OURS / "cgroup.procs").read_text() == "12"  # the last that was written
    assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_version_2_is_not_divided_twice(tmp_path: Path) -> None:
    folder = version_2(tmp_path, handed="memory pids")
    inside = version_2(tmp_path, path=f"run.scope/{cgroups.OURS}")
    assert find_parent(f"/run.scope/{cgroups.OURS}", tmp_path) == Parent(2, folder, folder)
    assert (inside / "cgroup.subtree_control").read_text() == ""


def test_a_missing_controller_is_named(tmp_path: Path) -> None:
    version_2(tmp_path, controllers="cpu memory")
    with pytest.raises(SandboxUnavailable, match=r"no controller pids(.|\n)*Delegate=yes"):
        find_parent("/run.scope", tmp_path)


def test_version_1_takes_a_group_of_each_controller(tmp_path: Path) -> None:
    version_1(tmp_path)
    assert find_parent("/agentgym", tmp_path) == Parent(
        1, tmp_path / "memory" / "agentgym", tmp_path / "pids" / "agentgym"
    )


def test_a_group_that_is_not_there_is_named_with_the_way_to_make_it(tmp_path: Path) -> None:
    version_1(tmp_path)
    with pytest.raises(SandboxUnavailable, match=r"no control group .*/memory/other(.|\n)*sudo mkdir -p"):
        find_parent("/other", tmp_path)


def test_the_way_to_get_a_group_is_that_of_the_version(tmp_path: Path) -> None:
    for make, path, way, other in ((version_1, "1", "sudo chown", "systemd-run"),
                                   (version_2, "2", "systemd-run", "sudo")):  # fmt: skip
        make(tmp_path / path)
        with pytest.raises(SandboxUnavailable) as caught:
            find_parent("/other", tmp_path / path)
        assert f"`{way}" in str(caught.value) and other not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_group_of_someone_elses_is_refused(tmp_path: Path) -> None:
    version_1(tmp_path)
    (tmp_path / "memory" / "agentgym").chmod(0o555)
    with pytest.raises(SandboxUnavailable, match="not ours to change"):
        find_parent("/agentgym", tmp_path)


@pytest.mark.parametrize("swap", [{"memory.swap.max": "0"}, {}], ids=["counted", "not counted"])
def test_a_group_of_version_2_limits_memory_without_swap_and_processes(tmp_path: Path, swap: dict[str, str]) -> None:
    group = Group(Parent(2, tmp_path, tmp_path))
    (folder,) = tmp_path.iterdir()
    limits = {"memory.max": str(100 * MIB), **swap, "pids.max": "7"}
    make_files(folder, dict.fromkeys([*limits, "cgroup.kill"], ""))
    group.limit(100, 7)
    assert {name: (folder / name).read_text() for name in limits} == limits
    group.kill()
    assert (folder / "cgroup.kill").read_text() == "1"


@pytest.mark.parametrize("version", [1, 2])
def test_kills_and_the_most_memory_are_read(tmp_path: Path, version: int) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "memory").mkdir()
    parent = Parent(2, tmp_path / "memory", tmp_path / "memory")
    names = ("memory.events", "memory.peak", "memory.max")
    if version == 1:
        parent = Parent(1, tmp_path / "memory", tmp_path / "pids")
        names = ("memory.oom_control", "memory.max_usage_in_bytes", "memory.limit_in_bytes")
    group = Group(parent)
    (folder,) = (tmp_path / "memory").iterdir()
    assert (group.num_oom_kills(), group.memory_mib()) == (0, None)
    texts = ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", str(90 * MIB), str(100 * MIB))
    make_files(folder, dict(zip(names, texts, strict=True)))
    assert (group.num_oom_kills(), group.memory_mib()) == (3, (90.0, 100.0))


def test_only_groups_of_dead_owners_are_removed(tmp_path: Path) -> None:
    code = "from agentgym_sandboxes.host.reaper import owner_label; print(owner_label())"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parent = Parent(2, tmp_path, tmp_path)
    mine = Group(parent)
    (kept,) = tmp_path.iterdir()
    label = dead.stdout.strip().replace("/", "+")
    for name in (f"agentgym.0.{label}", f"agentgym.1.{label}", "other"):
        (tmp_path / name).mkdir()
    said: list[str] = []
    assert remove_stale(parent, said.append) == len(said) == 2
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, "other"}
    assert mine.remove()
