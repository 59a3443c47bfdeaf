"""What a child may use: it gives up its rights and takes on the limits of its call, before any foreign code."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

from .fairness import FIRST_NICE

WORK = "/work"
MIB = 1 << 20


class ChildLimits(NamedTuple):
    """Limits of one call, as they come over the wire."""

    wall_s: float
    cpu_s: int
    memory_mib: int
    file_mib: int
    processes: int
    output_bytes: int
    answer_mib: int

    @classmethod
    def of(cls, fields: dict[str, float]) -> ChildLimits:
        return cls(
            wall_s=float(fields["wall_s"]),
            cpu_s=int(fields["cpu_s"]),
            memory_mib=int(fields["memory_mib"]),
            file_mib=int(fields["file_mib"]),
            processes=int(fields["processes"]),
            output_bytes=int(fields["output_bytes"]),
            answer_mib=int(fields["answer_mib"]),
        )

    @property
    def flood_bytes(self) -> int:
        """Output at which the call is killed."""
        return 128 * self.output_bytes

    @property
    def answer_bytes(self) -> int:
        """What a child may write into a pipe other than its output: the call is killed beyond that."""
        return self.answer_mib * MIB


def home(uid: int) -> str:
    return f"{WORK}/{uid}"


def make_home(uid: int) -> str:
    """Make a folder of the user's own, by root, before the user has a process; its path. Raises OSError.

    A call beside it may have taken the name, or all room.
    """
    folder = home(uid)
    os.setegid(uid)
    os.seteuid(uid)
    try:
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            folder = f"{folder}-{os.urandom(8).hex()}"
            os.mkdir(folder, 0o700)
    finally:
        os.seteuid(0)
        os.setegid(0)
    return folder


def drop_rights(uid: int, limits: ChildLimits, folder: str) -> None:
    """Become `uid` for good, with nothing of root left, in a folder of its own."""
    os.setsid()
    os.nice(FIRST_NICE)  # a busy child must not starve the supervisor
    with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"1000")  # when memory ends, a child goes first, never the agent
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.umask(0o077)
    lower(resource.RLIMIT_NPROC, limits.processes)
    set_rlimits(limits)
    os.chdir(folder)
    os.environ["HOME"] = folder  # /work is everyone's: a neighbour could leave start-up files there


def core_size() -> int:
    """1 byte, if it may be so much: at 0 a kernel still runs the host's program for crashes, where there is one."""
    return 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1


def set_rlimits(limits: ChildLimits) -> None:
    """Limits of this process and its children; not their number, which the kernel counts by uid."""
    for kind, amount in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_AS, limits.memory_mib * MIB),
        (resource.RLIMIT_FSIZE, limits.file_mib * MIB),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, core_size()),
    ):
        lower(kind, amount)


def lower(kind: int, amount: int) -> None:
    """Set a limit for good; one that is above what we have ourselves stays where it is."""
    hard = resource.getrlimit(kind)[1]
    most = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (most, most))
