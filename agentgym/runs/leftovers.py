"""What a run that has ended left outside its folder: processes, shared memory, containers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from agentgym.runs.untrusted import Damaged, read_object, read_objects

SHARED_MEMORY = Path("/dev/shm")
CONTAINER_LABEL = "agentgym.owner"  # host:process:its start:...
DOCKER_TIMEOUT_S = 20.0


def left_outside(run: Path) -> Iterator[tuple[str, str]]:
    """Where, and what. run: of which no process should be left."""
    yield from _processes(run)
    owners = _owners(run)
    yield from _shared_memory(run, owners)
    yield from _containers(owners - {os.getpid()})  # ours may be another run's, in the same process


def _processes(run: Path) -> Iterator[tuple[str, str]]:
    """The run's actors, by the log file that each was started with."""
    logs = run.resolve() / "logs"
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error):  # it has just ended
            if any("/logs/" in word and Path(process.cwd(), word).parent == logs for word in words):
                yield f"process {process.pid}", f"{' '.join(words)[:200]}"


def _owners(run: Path) -> set[int]:
    """The processes that have written the run, by their numbers on this host."""
    found: list[object] = []
    with contextlib.suppress(FileNotFoundError, Damaged):
        found += [(row or {}).get("process") for _, row in read_objects(run / "starts.jsonl")]
    with contextlib.suppress(FileNotFoundError, Damaged):
        found.append(read_object(run / "status.json").get("process"))
    return {pid for pid in found if isinstance(pid, int)}


def _shared_memory(run: Path, owners: set[int]) -> Iterator[tuple[str, str]]:
    """Folders of the run's name whose owner wrote it: another run of that name has another owner."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", run.resolve().name).strip("-") or "run"
    for folder in SHARED_MEMORY.glob(f"agentgym-{slug}-*"):
        if folder.name.rpartition("-")[2] in map(str, owners):
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            yield str(folder), f"weights in memory, {size} bytes"


def _containers(owners: set[int]) -> Iterator[tuple[str, str]]:
    """The containers of sandboxes, by the process in their label."""
    docker = shutil.which("docker")
    if docker is None:
        return
    form = '{{.ID}} {{.State}} {{.Label "' + CONTAINER_LABEL + '"}}'
    command = [docker, "ps", "--all", "--filter", f"label={CONTAINER_LABEL}", "--format", form]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # no engine, no containers
        listed = subprocess.run(command, capture_output=True, text=True, timeout=DOCKER_TIMEOUT_S, check=True).stdout
        for line in listed.splitlines():
            name, state, label = line.split(" ", 2)
            parts = label.split(":")
            if len(parts) > 1 and parts[1].isdigit() and int(parts[1]) in owners:
                yield f"container {name}", state
