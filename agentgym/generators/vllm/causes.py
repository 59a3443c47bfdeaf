"""Why vLLM did not start, or ended: its engine is another process, which only prints the reason."""

from __future__ import annotations

import re
from pathlib import Path

from agentgym.models.out_of_memory import gpu_lines

_ERROR = re.compile(r"(?:^|[\]\s])([\w.]*(?:Error|Exception): \S.*)$", re.MULTILINE)
# what is said because of it
_FOLLOWS = ("RuntimeError: Engine core initialization failed", "vllm.v1.engine.exceptions.EngineDeadError")
_MEMORY = re.compile(r"out of memory|Free memory on device|No available memory|available KV cache memory")
_TAIL = 2**16  # bytes


def last_error(log: Path) -> str:
    """The last error that a log names; empty without one, or where there is no such file.

    log: where this process and those that it starts write, as /proc/self/fd/2 names it.
    """
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        text = file.read().decode(errors="replace")
    found = [line for line in _ERROR.findall(text) if not line.startswith(_FOLLOWS)]
    return found[-1] if found else ""


def with_holders(cause: str) -> str:
    """The cause; where it is a lack of memory, also who holds the GPUs' memory, and the fields that decide it."""
    if not _MEMORY.search(cause):
        return cause
    lower = "Change generator.engine.gpu_memory_utilization, or lower generator.max_batch or generator.max_model_len"
    return "\n  ".join([cause, *gpu_lines(), lower])
