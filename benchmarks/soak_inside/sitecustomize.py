"""Runs in each Python process of a soak: more heartbeats than a run has, a count of the live tensors, small caches.

Python imports this file by its name when its folder is on PYTHONPATH (soak.py). The heartbeats are the run's own code,
every few milliseconds, so that many of them meet a forward pass. Each thread of a tokenizer may remember 10,000 words,
at 2 KiB each with the tiny policy's, which takes hours to fill: here it remembers few.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from collections import _count_elements
from itertools import chain
from pathlib import Path

FOLDER = "AGENTGYM_SOAK_FOLDER"  # PID.json is written there
BEAT_S = "AGENTGYM_SOAK_BEAT_S"
COUNTED = 8  # beats from one count to the next
CACHED = 64  # words of a tokenizer
LAST = 10  # counts, of which the lowest is written: a trainer is at rest in one of them, a step has memory of its own


def watch(folder: Path, every_s: float) -> None:
    while not any(thread.name == "heartbeat" for thread in threading.enumerate()):
        time.sleep(every_s)
    from agentgym.runs.heartbeat import Heartbeat

    extra, path = Heartbeat(Path(os.devnull), "soak", held_s=0), folder / f"{os.getpid()}.json"
    counts, sizes = [], []
    beats, met = 0, 0
    while True:
        time.sleep(every_s)
        beats += 1
        met += any(words.startswith("forward ") for one in extra.beat()["busy"] for words, *_ in one["frames"])
        if beats % COUNTED == 0:
            counts, sizes = [*counts[1 - LAST :], live_tensors()], [*sizes[1 - LAST :], resident_kib()]
            told = {"beats": beats, "met": met, "tensors": min(counts), "heap": heap_bytes(), "KiB": min(sizes)}
            path.with_suffix(".new").write_text(json.dumps(told))
            path.with_suffix(".new").rename(path)


def keep_few_words() -> None:
    """From their making: a run sets its own objects apart from `gc.get_objects` when its actors have started."""
    from agentgym.text.tokenizer import HuggingFaceTokenizer

    make = HuggingFaceTokenizer.__init__

    def made(self: HuggingFaceTokenizer, *args: str, **named: str) -> None:
        make(self, *args, **named)
        self._inner.backend_tokenizer.model._resize_cache(CACHED)

    HuggingFaceTokenizer.__init__ = made  # type: ignore[method-assign]


class Heap(ctypes.Structure):
    """C's `struct mallinfo2`, of all arenas."""

    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(10)]


ALLOCATOR = ctypes.CDLL(None)  # once: each is a class of its own, 3.4 KiB that wait for the collector
ALLOCATOR.mallinfo2.restype = Heap


def heap_bytes() -> int:
    """What C's allocator has given out: memory that grows beyond it is in pieces that are free."""
    found = ALLOCATOR.mallinfo2()
    return found.field4 + found.field7  # mapped alone, and in arenas


def resident_kib() -> int:
    """What the process has when C's allocator has given back what is free, all of it only where there is one arena."""
    ALLOCATOR.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def live_tensors() -> int:
    """Counts the tensors that Python can see, none without torch; what was frozen at the start is left out.

    All in one call into C: no other thread runs while `gc.get_objects` holds its objects. Half-made tuples are among
    them, which Python refuses to grow when somebody else holds them.
    """
    if not hasattr(sys.modules.get("torch"), "Tensor"):
        return 0
    kinds: dict[type, int] = {}
    _count_elements(kinds, map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    tensor = sys.modules["torch"].Tensor
    return sum(number for kind, number in kinds.items() if issubclass(kind, tensor))


if FOLDER in os.environ:
    keep_few_words()
    threading.Thread(
        target=watch, args=(Path(os.environ[FOLDER]), float(os.environ[BEAT_S])), name="soak", daemon=True
    ).start()
