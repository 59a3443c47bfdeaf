"""How much more two cores compute than one: matrix products in one process, then in two at the same time.

    python benchmarks/cores.py

The ratio is below 2 when cores share a floating-point unit or the host is busy. Overlapping generation and training
on the CPU cannot gain more than this ratio.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.queues import Queue


def products(seconds: float, counts: Queue[int]) -> None:
    import torch

    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            matrix @ matrix
        count += 20
    counts.put(count)


def total(processes: int, seconds: float = 3.0) -> int:
    context = multiprocessing.get_context("spawn")
    counts: Queue[int] = context.Queue()
    running = [context.Process(target=products, args=(seconds, counts)) for _ in range(processes)]
    for process in running:
        process.start()
    done = sum(counts.get() for _ in running)
    for process in running:
        process.join()
    return done


def main() -> None:
    one, two = total(1), total(2)
    print(f"one process: {one} products, two: {two}, ratio {two / one:.2f}")


if __name__ == "__main__":
    main()
