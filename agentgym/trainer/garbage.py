"""When Python collects reference cycles: after each step, and not whenever enough objects were made.

Tensors in a cycle keep their memory until then. Python looks at all objects only when those that are new are a quarter
of them, which takes many steps in a process with torch and its compiler; a GPU may be full before. TorchTitan collects
by the step for another reason, which holds here too: no rank is held up by a collection of its own.

C's allocator keeps what is freed between blocks that are still used. Batches of many sizes leave more and more of that,
10 KiB a step on a CPU, so now and then it is asked to give it back.
"""

from __future__ import annotations

import ctypes
import gc

FIRST = 3  # steps, in which most is built and compiled
EVERY = 100  # steps
_give_back = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)  # glibc's alone


class Garbage:
    """What a full collection leaves is not looked at by the next ones, until one that looks at everything again."""

    def __init__(self) -> None:
        self._steps = 0

    def after_step(self) -> None:
        self._steps += 1
        if self._steps > FIRST and self._steps % EVERY:
            gc.collect()
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _give_back(0)
