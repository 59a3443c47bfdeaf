"""Folders in memory that belong to a process: who comes next there removes those whose process was killed."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from agentgym.actors.process_id import ProcessId

log = logging.getLogger(__name__)

MEMORY = Path("/dev/shm")
PREFIX = "agentgym-"
OWNER_FILE = "owner.json"


def claim(folder: Path, *, exist_ok: bool = False) -> None:
    """Make the folder, for this process."""
    folder.mkdir(mode=0o700, exist_ok=exist_ok)
    (folder / OWNER_FILE).write_text(json.dumps(asdict(ProcessId.of(os.getpid()))))


def sweep(root: Path = MEMORY) -> list[Path]:
    """Remove the folders of runs whose owner is dead, which only SIGKILL leaves; returns them."""
    removed = []
    for folder in root.glob(f"{PREFIX}*"):
        try:
            owner = ProcessId(**json.loads((folder / OWNER_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            continue  # not ours, or just being made
        if owner.is_gone:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
            log.info("removed %s, left by process %d", folder, owner.pid)
    return removed
