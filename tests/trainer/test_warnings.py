"""Warnings that are expected, in a process of several engines."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

from agentgym.trainer.parallel import expected_warnings_off


def test_of_two_threads_none_takes_back_what_the_other_needs() -> None:
    inside, left = threading.Event(), threading.Event()

    def load() -> None:
        with expected_warnings_off():
            inside.set()
            left.wait()
            warnings.warn("torch.distributed is disabled", stacklevel=1)

    with ThreadPoolExecutor(1) as pool:
        with expected_warnings_off():
            loaded = pool.submit(load)
            inside.wait(0.2)  # for one that does not wait for this one
        left.set()
        loaded.result()
