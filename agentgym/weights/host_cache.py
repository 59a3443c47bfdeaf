"""A weight store for several hosts: each keeps the versions in its own memory, and fetches each of them once.

The process that publishes writes to the memory of its host, whose agent hands the file out (one copy over the network
for each host, whatever the number of replicas there); readers map it, as on one host.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path

from agentgym.actors.file_server import fetch, list_files
from agentgym.actors.hosts import Hosts
from agentgym.actors.owned_folder import PREFIX
from agentgym.actors.runtime import Runtime
from agentgym.models.safetensors import WeightFile
from agentgym.weights.shared_memory import HEADER_BYTES, ROOT, SharedMemoryStore

log = logging.getLogger(__name__)

ASK_S = 5.0  # for a host to answer; one that is lost does not
SILENCE_S = 60.0  # while weights are on their way


@dataclass(frozen=True, slots=True)
class Source:
    """A host that hands out its versions."""

    host: str
    address: str
    port: int


class HostCacheStore(SharedMemoryStore):
    """Made by `open`. The folder has one path on all hosts, and on each belongs to its agent."""

    def __init__(self, folder: Path, *, keep: int | None, sources: list[Source], token: str) -> None:
        self.folder = folder
        self._keep = keep
        self._owns = False
        self._header_bytes = HEADER_BYTES
        self._sources = sources
        self._token = token
        self._hosts: Hosts | None = None  # the controller's

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_hosts": None}

    @classmethod
    async def open(cls, run: str, *, keep: int | None, runtime: Runtime, root: Path = ROOT) -> HostCacheStore:
        folder, token = root / f"{PREFIX}{run}-{secrets.token_hex(4)}", secrets.token_hex(16)
        sources: list[Source] = []
        for host in [*runtime.hosts.of("trainer"), *runtime.hosts.all]:  # the trainer's are asked first
            if host.keeper is not None and all(source.host != host.name for source in sources):
                sources.append(Source(host.name, host.address, await host.keeper.serve(str(folder), token)))
        store = cls(folder, keep=keep, sources=sources, token=token)
        store._hosts = runtime.hosts
        return store

    async def get(self, version: int) -> WeightFile:
        path = self._path(version)
        if not path.exists():
            await asyncio.to_thread(self._fill, version)
            self._delete_old()
        try:
            return WeightFile(path)
        except FileNotFoundError:
            raise KeyError(f"no weights of version {version}; the hosts hold {await self.versions()}") from None

    async def versions(self) -> list[int]:
        """The versions that any host holds, of the hosts that are not lost."""
        lost = {host.name for host in self._hosts.all if host.lost} if self._hosts is not None else set()
        sources = [source for source in self._sources if source.host not in lost]
        asked = await asyncio.gather(*(asyncio.to_thread(self._held, source) for source in sources))
        return sorted({version for held in asked for version in held})

    async def delete(self, version: int) -> None:
        """Deletes a version on this host: the others drop it when they fetch a later one."""
        self._path(version).unlink(missing_ok=True)

    def _fill(self, version: int) -> None:
        """Fetch a version unless another process of this host does so already."""
        path = self._path(version)
        with (self.folder / ".filling").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            part = path.with_suffix(".part")
            for source in self._sources:
                if path.exists():
                    return
                if version not in self._held(source):
                    continue
                try:
                    fetch(source.address, source.port, self._token, path.name, part, timeout_s=SILENCE_S)
                    part.rename(path)
                except OSError as error:
                    log.warning("version %d could not be copied from host %s: %s", version, source.host, error)
                    part.unlink(missing_ok=True)

    def _held(self, source: Source) -> set[int]:
        try:
            names = list_files(source.address, source.port, self._token, timeout_s=ASK_S)
        except OSError:
            return set()
        return {int(Path(name).stem) for name in names if name.endswith(self.suffix)}
