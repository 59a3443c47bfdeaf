"""A command on GPUs that have no more than so much memory: a process of this script holds the rest of each.

    CUDA_VISIBLE_DEVICES=0 python benchmarks/within_memory.py 23 agentgym train RECIPE --runs-dir runs

What fits so also fits a GPU of that size, as far as memory goes; how fast that one is, this can't say. vLLM takes a
share of the whole GPU: `recipes_at_size.py --within 23` makes it one of what is left. The last line says what the
command took at most, looked at five times a second: its CUDA contexts are in it, and this script's is not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Sequence

import torch
from finished_arms import end, stoppable

GIB = 2**30
LOOK_EVERY_S = 0.2
GRACE_S = 30.0


def hold(gpus: int, gib: float) -> list[torch.Tensor]:
    """What fills each GPU up to `gib`, of bytes. Raises SystemExit where others have left less than that free."""
    held = []
    for gpu in range(gpus):
        torch.empty(1, device=gpu)  # this process's context takes memory too
        rest = free_bytes(gpu) - int(gib * GIB)
        if rest < 0:
            raise SystemExit(f"GPU {gpu} has {free_bytes(gpu) / GIB:.1f} GiB free: no {gib:g} GiB to leave")
        held.append(torch.empty(rest, dtype=torch.uint8, device=gpu))
    return held


def free_bytes(gpu: int) -> int:
    return torch.cuda.mem_get_info(gpu)[0]


def run_watched(command: Sequence[str], gpus: int) -> tuple[int, list[float]]:
    """Its exit code, and the most that was taken of each GPU since before it, in GiB."""
    before = [free_bytes(gpu) for gpu in range(gpus)]
    least = list(before)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_EVERY_S):
            least[:] = [min(free_bytes(gpu), known) for gpu, known in enumerate(least)]

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    process = subprocess.Popen(command)
    try:
        code = process.wait()
    finally:
        end(process, GRACE_S)
        ended.set()
        looking.join()
    return code, [(free - low) / GIB for free, low in zip(before, least, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gib", type=float, help="of each visible GPU that the command can use")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    gpus = torch.cuda.device_count()
    if not gpus or not given.command:
        parser.error("give a command" if gpus else "no GPU is visible")
    with stoppable():
        held = hold(gpus, given.gib)
        code, taken = run_watched(given.command, gpus)
        del held
    print(f"took at most {', '.join(f'{gib:.1f}' for gib in taken)} of {given.gib:g} GiB", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
