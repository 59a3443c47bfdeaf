"""A weight store for one host: a file of safetensors layout per version, in memory, mapped by its readers."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.actors import owned_folder
from agentgym.actors.owned_folder import MEMORY, PREFIX
from agentgym.errors import InfraError
from agentgym.models.safetensors import WeightFile, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

ROOT = MEMORY
HEADER_BYTES = 256 * 1024  # space that is kept for the header: it is known only after the last tensor


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
        owned_folder.sweep(root)
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", run).strip("-") or "run"
        self.folder = root / f"{PREFIX}{slug}-{os.getpid()}"
        self._keep = keep
        self._owns = True
        self._header_bytes = HEADER_BYTES
        owned_folder.claim(self.folder)

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
            self._delete_old()
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
        return self._here()

    def _here(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob(f"*{self.suffix}"))

    def _delete_old(self) -> None:
        if self._keep is not None:
            for version in self._here()[: -self._keep]:
                self._path(version).unlink(missing_ok=True)

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
