"""A weight store for one host: a file of safetensors layout per version, in memory, mapped by its readers."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.actors.process_id import ProcessId
from agentgym.errors import InfraError
from agentgym.models.safetensors import WeightFile, write_tensors
from agentgym.weights.store import delete_old

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

ROOT = Path("/dev/shm")
PREFIX = "agentgym-"
OWNER_FILE = "owner.json"
HEADER_BYTES = 256 * 1024  # space that is kept for the header: it is known only after the last tensor


def sweep(root: Path = ROOT) -> list[Path]:
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


class SharedMemoryStore:
    """Made by its owner; copies that travel to other processes read and write but never remove the folder.

    A version is written under another name and then renamed, so readers see all of it or nothing.
    """

    process_imports: tuple[str, ...] = ()
    suffix = ".safetensors"

    def __init__(self, run: str, *, keep: int | None = None, root: Path = ROOT) -> None:
        """keep: the newest versions that stay when another is stored; None keeps all."""
        if not root.is_dir():
            raise InfraError(f"{root} is not there to keep weights in; set weights.store to torchstore")
        sweep(root)
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", run).strip("-") or "run"
        self.folder = root / f"{PREFIX}{slug}-{os.getpid()}"
        self._keep = keep
        self._owns = True
        self._header_bytes = HEADER_BYTES
        self.folder.mkdir(mode=0o700)
        (self.folder / OWNER_FILE).write_text(json.dumps(asdict(ProcessId.of(os.getpid()))))

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_owns": False}

    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        path = self._path(version)
        if path.exists():
            raise ValueError(f"version {version} is stored already and versions don't change")
        temporary = path.with_suffix(".part")
        try:
            with temporary.open("w+b") as file:
                self._header_bytes = write_tensors(file, weights, header_bytes=self._header_bytes)
            temporary.rename(path)
            await delete_old(self, self._keep)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise InfraError(self._full(version, temporary)) from error
            raise
        finally:
            temporary.unlink(missing_ok=True)

    async def get(self, version: int) -> WeightFile:
        """The tensors are private copy-on-write maps of the file; they outlive its deletion."""
        try:
            return WeightFile(self._path(version))
        except FileNotFoundError:
            held = await self.versions()
            raise KeyError(f"no weights of version {version}; the store holds {held}") from None

    async def delete(self, version: int) -> None:
        self._path(version).unlink(missing_ok=True)

    async def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob(f"*{self.suffix}"))

    async def close(self) -> None:
        if self._owns:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, version: int) -> Path:
        return self.folder / f"{version}{self.suffix}"

    def _full(self, version: int, temporary: Path) -> str:
        written = temporary.stat().st_size // 2**20 if temporary.exists() else 0
        usage = shutil.disk_usage(self.folder)
        return (
            f"{self.folder.parent} is full: version {version} did not fit after {written} MiB; "
            f"it has {usage.total // 2**20} MiB in all and {usage.free // 2**20} MiB were free. Make it "
            "larger (containers: --shm-size), lower weights.keep, or set weights.store to torchstore"
        )
