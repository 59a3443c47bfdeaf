"""The receiving side of the store `nccl`: one connection and one communicator for the process, made again when lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from agentgym.actors.network import own_address
from agentgym.errors import InfraError
from agentgym.weights.collective import Communicator, join, own_gpu
from agentgym.weights.flat import checksum
from agentgym.weights.listening import connect
from agentgym.weights.publisher import CPU, Contents, Lost

ATTEMPTS = 5  # without a further bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the publisher can be found: at the controller's directory, which outlasts it."""

    address: str
    port: int
    token: bytes
    timeout_s: float

    def ask(self, *request: object) -> object:
        """Asks the publisher. Raises OSError, EOFError where there is none."""
        with self.connect() as line:
            line.send(request)
            if not line.poll(self.timeout_s):
                raise TimeoutError(f"the trainer's process did not answer within {self.timeout_s:g} s")
            return line.recv()

    def connect(self) -> Connection:
        with connect((self.address, self.port), self.token) as directory:
            directory.send(("where",))
            address = directory.recv()
        if address is None:
            raise ConnectionRefusedError("nobody publishes weights yet")
        return connect(address, self.token)


class Receiver:
    """Receives weights in this process, one version at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._busy = threading.Lock()
        self._line: Connection | None = None
        self._group: Communicator | None = None

    def receive(self, version: int, contents: Contents) -> Iterator[tuple[str, Tensor]]:
        """The weights, each bucket in memory of its own. Raises InfraError when they do not arrive whole."""
        if not self._busy.acquire(timeout=self._source.timeout_s):
            raise InfraError(f"another version was still being received after {self._source.timeout_s:g} s")
        try:
            yield from self._received(version, contents)
        except BaseException:
            self._reset()
            raise
        finally:
            self._busy.release()

    def _received(self, version: int, contents: Contents) -> Iterator[tuple[str, Tensor]]:
        done, failures = 0, 0
        while done < len(contents.buckets):
            try:
                for data in self._rest(version, contents, done):
                    yield from self._checked(data, contents, done)
                    done, failures = done + 1, 0
            except InfraError:
                raise
            except (Lost, OSError, EOFError, RuntimeError) as error:
                self._reset()
                failures += 1
                if failures == ATTEMPTS:
                    raise InfraError(f"the weights of version {version} did not arrive: {error}") from error

    def _checked(self, data: Tensor, contents: Contents, index: int) -> Iterator[tuple[str, Tensor]]:
        if checksum(data) != contents.checksums[index]:
            raise InfraError(f"part {index} of the weights arrived damaged: its checksum differs from the trainer's")
        bucket = contents.buckets[index]
        for name in bucket.names:
            yield name, contents.layout[name].view(data, bucket.begin)

    def _rest(self, version: int, contents: Contents, done: int) -> Iterator[Tensor]:
        """The buckets from `done` on."""
        line = self._connected()
        line.send(("want", version, done))
        first = self._until_sent(line)

        def check() -> None:
            if line.poll():
                raise Lost("the sender gave up")

        group = self._group
        assert group is not None
        device = "cuda" if group.backend == "nccl" else "cpu"
        for index, bucket in enumerate(contents.buckets[first:], start=first):
            data = torch.empty(bucket.end - bucket.begin, dtype=torch.uint8, device=device)
            group.broadcast(data, check, timeout_s=self._source.timeout_s)
            if index >= done:
                yield data

    def _until_sent(self, line: Connection) -> int:
        """Follow the publisher until it sends; returns the first bucket that it sends."""
        while line.poll(self._source.timeout_s):
            what, *values = line.recv()
            if what == "send":
                return int(values[0])
            if what == "gone":
                raise InfraError(f"the version was deleted before it was sent; the trainer holds {values[0]}")
            if what == "again":
                raise Lost(str(values[0]))
            self._join(*values)
        raise TimeoutError(f"the sender was silent for {self._source.timeout_s:g} s")

    def _join(self, backend: str, address: str, port: int, rank: int, size: int) -> None:
        self._leave()
        timeout_s = self._source.timeout_s
        store = join(address, port, timeout_s=timeout_s)
        own = own_address(address)
        self._group = Communicator(backend, store, rank, size, address=own, timeout_s=timeout_s)

    def _connected(self) -> Connection:
        if self._line is None:
            self._line = self._source.connect()
            self._line.send(("hello", own_gpu() or CPU))
        return self._line

    def _leave(self) -> None:
        if self._group is not None:
            group, self._group = self._group, None
            group.abort()

    def _reset(self) -> None:
        self._leave()
        if self._line is not None:
            self._line.close()
            self._line = None


receiver: Callable[[Source], Receiver] = cache(Receiver)
