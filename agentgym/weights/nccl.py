"""A weight store for GPUs of several hosts: broadcast by NCCL from the trainer's memory to the generators'.

Nothing passes through the hosts' memory. Between CPUs the same code uses gloo. A directory in the controller knows
where the publisher is; connections are made by who reads, so a process that comes back needs nothing from the others.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import secrets
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from agentgym.actors import owned_folder
from agentgym.actors.network import own_address
from agentgym.actors.owned_folder import MEMORY, PREFIX
from agentgym.errors import InfraError
from agentgym.weights.flat import BUCKET_BYTES
from agentgym.weights.listening import Listening, connect
from agentgym.weights.publisher import Contents, Publisher
from agentgym.weights.receiver import Source, receiver
from agentgym.weights.store import SENT_SUFFIX

KEPT_FILES = 2  # of versions that were asked for, in each reading process


class Directory:
    """The controller's directory: knows where the publishing process is."""

    def __init__(self, address: str, token: bytes) -> None:
        self._publisher: tuple[str, int] | None = None
        self._listening = Listening(address, token, self._answer)
        self.port = self._listening.listens_at[1]
        self.close = self._listening.close

    def _answer(self, line: Connection) -> None:
        what, *values = line.recv()
        if what == "here":
            self._publisher = values[0]
        line.send(self._publisher)
        line.close()


class SentWeights:
    """A version in the trainer's memory, which is received when it is gone through."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError when the file of the version is gone."""
        self.path = path
        self._source, self._version, self._contents = cast(
            tuple[Source, int, Contents], pickle.loads(path.read_bytes())
        )

    def entries(self) -> Iterator[tuple[str, Tensor]]:
        layout = self._contents.layout
        return ((n, torch.empty(e.shape, dtype=e.dtype, device="meta")) for n, e in layout.items())

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return receiver(self._source).receive(self._version, self._contents)


class NcclStore:
    """Made by its owner, whose copies in other processes read, and in one of them publish."""

    process_imports: tuple[str, ...] = ()

    def __init__(
        self,
        run: str,
        *,
        keep: int,
        address: str,
        backend: str = "auto",
        timeout_s: float = 30.0,
        bucket_bytes: int = BUCKET_BYTES,
        root: Path = MEMORY,
    ) -> None:
        """address: of this host, where all processes of the run reach it. backend: of all messages; auto is NCCL where
        every member has a GPU of its own, and gloo where not. timeout_s: of silence. bucket_bytes: of a message.
        """
        token = secrets.token_bytes(32)
        self._directory: Directory | None = Directory(address, token)
        self._source = Source(address=address, port=self._directory.port, token=token, timeout_s=timeout_s)
        self._keep, self._backend, self._bucket_bytes, self._root = keep, backend, bucket_bytes, root
        self._slug = re.sub(r"[^A-Za-z0-9_.]+", "-", run).strip("-") or "run"
        self._publisher: Publisher | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_directory": None, "_publisher": None}

    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        if self._publisher is None:
            address, token = own_address(self._source.address), self._source.token
            self._publisher = Publisher(
                address,
                token,
                keep=self._keep,
                backend=self._backend,
                timeout_s=self._source.timeout_s,
                bucket_bytes=self._bucket_bytes,
            )
            with connect((self._source.address, self._source.port), token) as directory:
                directory.send(("here", self._publisher.listens_at))
                directory.recv()
        self._publisher.put(version, weights)

    async def get(self, version: int) -> SentWeights:
        """What `weights/reading.py` receives by its path, in any process of this host."""
        contents = await self._asked("contents", version)
        if not isinstance(contents, Contents):
            raise KeyError(f"no weights of version {version}; the store holds {contents or []}")
        folder = self._root / f"{PREFIX}{self._slug}-{os.getpid()}-received"
        if not folder.exists():
            owned_folder.sweep(self._root)
            owned_folder.claim(folder)
        path = folder / f"{version}{SENT_SUFFIX}"
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps((self._source, version, contents)))
        part.rename(path)
        for old in sorted(folder.glob(f"*{SENT_SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)[:-KEPT_FILES]:
            old.unlink(missing_ok=True)
        return SentWeights(path)

    async def delete(self, version: int) -> None:
        await self._asked("delete", version)

    async def versions(self) -> list[int]:
        return cast(list[int], await self._asked("versions")) or []

    async def close(self) -> None:
        if self._directory is not None:
            self._directory.close()
            owned_folder.sweep(self._root)

    async def _asked(self, *request: object) -> object:
        """None where nobody publishes: whoever did is gone, and its versions with it."""
        try:
            return await asyncio.to_thread(self._source.ask, *request)
        except TimeoutError as error:  # it is there, and busy
            raise InfraError(str(error)) from error
        except (OSError, EOFError):
            return None
