"""The system call filter: an allow list of names, and what depends on the arguments of a call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources

from agentgym.types import Json

_UNIX, _INET, _INET6 = 1, 2, 10
_PROTOCOLS = (0, 6, 17)  # none, TCP, UDP
_SOCKET, _IP, _TCP, _UDP, _IPV6 = 1, 0, 6, 17, 41  # levels of options
_BUFFERS = {7: "SO_SNDBUF", 8: "SO_RCVBUF"}
_FILTERS = (26, 50, 51, 52)  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF
_TCP_ULP, _IPV6_FLOWLABEL_MGR = 31, 32
_CORE = 4
_HUGE_MAP, _HUGE_FILE, _MS_SYNC = 0x40000, 4, 4
_ENOMEM = 12
_REGISTER = (1 << 64) - 1
_OPTION_BITS, _RESOURCE_BITS = 10, 6

Condition = dict[str, Json]


@cache
def seccomp_text() -> str:
    """The engine's default profile less what a program has no use for here.

    Less ptrace, process_vm_*, keyctl, userfaultfd, perf_event_open, bpf, mounts, namespaces, memfd_secret,
    io_uring, System V and POSIX message IPC (it outlives its process) and more; sockets of few families and
    protocols.
    """
    text = resources.files("agentgym_sandboxes.host").joinpath("seccomp.json").read_text(encoding="utf-8")
    profile = json.loads(text)
    profile["syscalls"] += [*_sockets(), *_options(), *_memory(), *_limits()]
    return json.dumps(profile)


def _sockets() -> Iterator[Json]:
    """Each other protocol is more of the kernel, which loads it when it is asked for."""
    yield _allow(["socket"], _equal(0, _UNIX))
    for family in (_INET, _INET6):
        for protocol in _PROTOCOLS:
            yield _allow(["socket"], _equal(0, family), _equal(2, protocol))


def _options() -> Iterator[Json]:
    """Socket options, without those that take host memory which no container limit counts, or outlive the process.

    Filters are machine code in the kernel. A label of IPv6 flows holds any 20 bytes, for a minute and for everyone.
    """
    for level in (_IP, _UDP):
        yield _allow(["setsockopt"], _equal(1, level))
    for level, values in ((_SOCKET, (*_BUFFERS, *_FILTERS)), (_TCP, (_TCP_ULP,)), (_IPV6, (_IPV6_FLOWLABEL_MGR,))):
        for condition in _others(2, values, _OPTION_BITS):
            yield _allow(["setsockopt"], _equal(1, level), condition)
    for value, name in _BUFFERS.items():  # programs take it badly when they can't be set
        yield _answer(["setsockopt"], 0, f"{name}: done, to no effect", _equal(1, _SOCKET), _equal(2, value))


def _memory() -> Iterator[Json]:
    """Files are in memory. What asks for disks to be written asks the host's, and can't be killed until they are.

    Huge pages are a stock of the host's that no limit counts.
    """
    ranges = ("sync_file_range", "sync_file_range2", "arm_sync_file_range")
    names = ["sync", "syncfs", "fsync", "fdatasync", *ranges]
    yield _answer(names, 0, "done: there is nothing to write")
    yield _allow(["msync"], _masked(2, _MS_SYNC, 0))
    yield _answer(["msync"], 0, "as fsync", _masked(2, _MS_SYNC, _MS_SYNC))
    for names, index, flag in ((["mmap", "mmap2"], 3, _HUGE_MAP), (["memfd_create"], 1, _HUGE_FILE)):
        yield _allow(names, _masked(index, flag, 0))
        yield _answer(names, _ENOMEM, "no huge pages", _masked(index, flag, flag))


def _limits() -> Iterator[Json]:
    """All but the size of dumps: 1 is the only one at which the kernel runs no program of the host's for a crash."""
    for condition in _others(0, (_CORE,), _RESOURCE_BITS):
        yield _allow(["setrlimit"], condition)
    yield _answer(["setrlimit"], 0, "RLIMIT_CORE: done, to no effect", _equal(0, _CORE))
    for condition in _others(1, (_CORE,), _RESOURCE_BITS):
        yield _allow(["prlimit64"], condition)
    yield _allow(["prlimit64"], _equal(1, _CORE), _equal(2, 0))
    unequal: Condition = {"index": 2, "value": 0, "op": "SCMP_CMP_NE"}
    yield _answer(["prlimit64"], 0, "RLIMIT_CORE: done, to no effect", _equal(1, _CORE), unequal)


def _others(index: int, values: Sequence[int], num_bits: int) -> Iterator[Condition]:
    """Conditions for all numbers of so many bits but these.

    The kernel takes an int and drops the upper half of the register: a number with anything there meets none.
    """

    def blocks(start: int, bits: int) -> Iterator[Condition]:
        if not any(start <= value < start + (1 << bits) for value in values):
            yield _masked(index, _REGISTER ^ ((1 << bits) - 1), start)
        elif bits:
            half = 1 << (bits - 1)
            yield from (*blocks(start, bits - 1), *blocks(start + half, bits - 1))

    return blocks(0, num_bits)


def _equal(index: int, value: int) -> Condition:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _masked(index: int, mask: int, value: int) -> Condition:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _allow(names: Sequence[str], *conditions: Condition) -> Json:
    return {"names": [*names], "action": "SCMP_ACT_ALLOW", "args": [*conditions]}


def _answer(names: Sequence[str], error: int, comment: str, *conditions: Condition) -> Json:
    """An error, or 0: done, to no effect."""
    return {"names": [*names], "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": [*conditions], "comment": comment}
