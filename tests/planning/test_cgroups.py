"""The memory and cores of a container, read as the kernel lays its control groups out."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.planning.cgroups import core_limit, memory_limit
from agentgym.planning.machine import GIB, host_cores, host_memory_gib, this_machine


def process(folder: Path, groups: str, *mounts: tuple[str, Path, str, str]) -> Path:
    """Its folder below /proc. mounts: root in the file system, place, kind and options."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(groups)
    lines = [
        f"{number} 20 0:{number} {root} {str(place).replace(' ', chr(92) + '040')} rw,nosuid - {kind} cgroup {options}"
        for number, (root, place, kind, options) in enumerate(mounts, start=30)
    ]
    (proc / "mountinfo").write_text("\n".join(["22 1 254:0 / / rw - ext4 /dev/vda rw", *lines]) + "\n")
    return proc


def write(group: Path, **values: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (group / name.replace("__", ".")).write_text(value + "\n")


def test_version_2_as_a_container_sees_it(tmp_path: Path) -> None:
    root = tmp_path / "a cgroup"
    write(root, memory__max=str(3 * GIB), cpu__max="150000 100000")
    proc = process(tmp_path, "0::/\n", ("/", root, "cgroup2", "rw"))
    assert (memory_limit(proc), core_limit(proc)) == (3 * GIB, 1.5)
    assert (host_memory_gib(proc), host_cores(proc)) == (3.0, 1), "as long as this machine has as much"


def test_a_group_has_what_those_above_it_leave(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    write(root / "kubepods" / "pod" / "container", memory__max="max", cpu__max="max 100000")
    write(root / "kubepods" / "pod", memory__max=str(2 * GIB), cpu__max="50000 100000")
    write(root / "kubepods", memory__max=str(64 * GIB), cpu__max="800000 100000")
    proc = process(tmp_path, "0::/kubepods/pod/container\n", ("/", root, "cgroup2", "rw"))
    assert (memory_limit(proc), core_limit(proc), host_cores(proc)) == (2 * GIB, 0.5, 1)


@pytest.mark.parametrize("root", ["/", "/docker/some"])
def test_version_1_with_each_controller_at_a_place_of_its_own(tmp_path: Path, root: str) -> None:
    """Docker mounts the container's own group, of which /proc names the path on the host."""
    below = "docker/some" if root == "/" else ""
    memory, cpu, unified = (tmp_path / name for name in ("memory", "cpu,cpuacct", "unified"))
    write(memory / below, memory__limit_in_bytes=str(5 * GIB))
    write(cpu / below, cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    write(unified, memory__max="1")
    groups = "5:memory:/docker/some\n3:cpu,cpuacct:/docker/some\n2:cpuset:/\n1:name=systemd:/x\n"
    proc = process(
        tmp_path,
        groups,
        (root, tmp_path / "cpuset", "cgroup", "rw,cpuset"),
        (root, memory, "cgroup", "rw,memory"),
        (root, cpu, "cgroup", "rw,cpu,cpuacct"),
        ("/", unified, "cgroup2", "rw"),
    )
    assert (memory_limit(proc), core_limit(proc)) == (5 * GIB, 4.0)


def test_no_limit_is_none_and_then_the_machine_counts(tmp_path: Path) -> None:
    memory, cpu = tmp_path / "memory", tmp_path / "cpu"
    write(memory, memory__limit_in_bytes="9223372036854771712")
    write(cpu, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    mounts = (("/", memory, "cgroup", "rw,memory"), ("/", cpu, "cgroup", "rw,cpu"))
    proc = process(tmp_path, "2:memory:/\n1:cpu:/\n", *mounts)
    assert (memory_limit(proc), core_limit(proc)) == (None, None)
    nowhere = tmp_path / "nowhere"
    assert (memory_limit(nowhere), core_limit(nowhere)) == (None, None)
    here = this_machine()
    assert here.memory_gib == host_memory_gib() <= host_memory_gib(nowhere)
    assert here.cores == host_cores() <= host_cores(nowhere)
