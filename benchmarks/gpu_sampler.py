"""Memory and load of GPUs as nvidia-smi reports them, sampled while something else runs."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence

from agentgym.actors.gpus import gpu_names

COMMAND = ("nvidia-smi", "--query-gpu=index,uuid,memory.used,utilization.gpu", "--format=csv,noheader,nounits", "-i")
Reading = list[tuple[float, float]]  # of each GPU: GiB taken, share of the last sampling period with a kernel running


class UnreadGpus(Exception):
    """nvidia-smi has no figures of a GPU, as of a MIG slice."""


class GpuSampler:
    """gpus: as torch counts them in this process, which CUDA_VISIBLE_DEVICES renumbers."""

    def __init__(self, gpus: Sequence[int], every_s: float = 0.5) -> None:
        self.names = gpu_names(gpus)
        self.before = self.read()
        self.readings: list[tuple[float, Reading]] = [(time.time(), self.before)]
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def read(self) -> Reading:
        """Raises UnreadGpus."""
        done = subprocess.run([*COMMAND, ",".join(self.names)], capture_output=True, text=True, check=False)
        lines = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
        rows = [row for row in lines if len(row) == 4 and "[N/A]" not in row]
        found: Reading = []
        for name in self.names:
            matching = [row for row in rows if name == row[0] or row[1].startswith(name)]
            if not matching:
                raise UnreadGpus(
                    f"nvidia-smi does not answer for GPU {name}: {done.stdout.strip()} {done.stderr.strip()}"
                )
            found.append((float(matching[0][2]) / 1024, float(matching[0][3]) / 100))
        return found

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            with contextlib.suppress(UnreadGpus):
                self.readings.append((time.time(), self.read()))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def taken_gib(self) -> list[float]:
        """The most that each has held, less what was taken before."""
        most = [max(gib for gib, _ in of_gpu) for of_gpu in zip(*(row for _, row in self.readings), strict=True)]
        return [peak - gib for peak, (gib, _) in zip(most, self.before, strict=True)]

    def load(self, begin: float, end: float) -> list[float]:
        """The mean share of each, between two times in seconds since the epoch; empty without a reading there."""
        rows = [row for at, row in self.readings if begin <= at <= end]
        return [statistics.fmean(share for _, share in of_gpu) for of_gpu in zip(*rows, strict=True)]


def has_nvidia_smi() -> bool:
    return shutil.which(COMMAND[0]) is not None
