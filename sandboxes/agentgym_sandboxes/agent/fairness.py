"""Equal shares of the processor for calls beside each other: where much runs, each part of it yields more."""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Collection

FIRST_NICE, LAST_NICE = 5, 19  # of a call that runs alone; the agent itself has 0
_STEP = 1.25  # a nice more is so much less of the processor


def nice_of(num_running: int) -> int:
    """The niceness with which so many together weigh about as much as one with the first."""
    return min(LAST_NICE, FIRST_NICE + math.ceil(math.log(max(1, num_running), _STEP)))


def count_running(uids: Collection[int]) -> collections.Counter[int]:
    """How many processes and threads of each uid run, or would if they had the processor."""
    counts: collections.Counter[int] = collections.Counter()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            uid = _real_uid(name)
            if uid in uids:
                counts[uid] += sum(_runs(name, thread) for thread in os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended
    return counts


def _real_uid(pid: str) -> int:
    with open(f"/proc/{pid}/status", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Uid:")), -1)


def _runs(pid: str, thread: str) -> bool:
    try:
        with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return False
    return line[line.rindex(b")") + 2 :][:1] == b"R"
