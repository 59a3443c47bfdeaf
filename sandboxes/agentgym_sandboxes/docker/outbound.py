"""Connections out of a container: its agent takes them on the loopback interface, frames carry their bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from agentgym.sandbox import SandboxLost
from agentgym_sandboxes.agent.frames import Frame, Header
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.network.streams import PIECE_BYTES, ByteStream

log = logging.getLogger(__name__)

WINDOW_BYTES = 1 << 18  # that may be under way in each direction of a connection
LISTEN_TIMEOUT_S = 10.0


class Outbound:
    """The connections to one port of a container. serve: has each in a task of its own. name: of its operations."""

    def __init__(
        self,
        container: Container,
        serve: Callable[[ByteStream], Awaitable[None]],
        max_connections: int,
        name: str = "proxy",
    ) -> None:
        self._container = container
        self._name = name
        self._serve = serve
        self._max_connections = max_connections
        self._streams: dict[int, OutboundStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def listen(self) -> int:
        """Take connections from now on; the port on 127.0.0.1 in the container. Raises SandboxLost."""
        self._container.on_event(self._name, self._on_event)
        header: Header = {"window": WINDOW_BYTES, "connections": self._max_connections}
        frame = await self._container.ask(f"{self._name}.listen", header, (), LISTEN_TIMEOUT_S)
        port = frame.header.get("port")
        if type(port) is not int or not 0 < port < 1 << 16:
            raise SandboxLost("a container's agent reported no port for its connections")
        return port

    async def close(self) -> None:
        """End every connection."""
        self._closed = True
        for stream in list(self._streams.values()):
            stream.abort()
            stream.lose()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_event(self, frame: Frame) -> None:
        """A frame of the agent's. What belongs to no connection is late, and dropped."""
        number, what = frame.header.get("connection"), frame.header.get("what")
        if self._closed or type(number) is not int:
            return
        stream = self._streams.get(number)
        if what == "open" and stream is None:
            self._open(number)
        elif stream is None:
            return
        elif what == "data":
            stream.receive(b"".join(frame.blobs))
        elif what == "end":
            stream.receive(b"")
        elif what == "credit":
            stream.add_credit(frame.header.get("bytes"))
        elif what == "close":
            del self._streams[number]
            stream.lose()

    def _open(self, number: int) -> None:
        if len(self._streams) >= self._max_connections:
            self._container.notify(f"{self._name}.close", {"connection": number, "now": True})
            return
        stream = self._streams[number] = OutboundStream(self._container, number, self._name)
        task = asyncio.create_task(self._run(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, stream: OutboundStream) -> None:
        try:
            await self._serve(stream)
        except Exception:  # the end of a connection does not end its session
            log.exception("serving a connection of a sandbox failed")
            stream.abort()


class OutboundStream:
    """One connection of a container's, as a ByteStream."""

    def __init__(self, container: Container, number: int, name: str) -> None:
        self._container = container
        self._number = number
        self._name = name
        self._received = bytearray()
        self._room = WINDOW_BYTES  # that the agent may still send
        self._credit = WINDOW_BYTES  # that it still takes
        self._changed = asyncio.Event()
        self._has_ended = self._is_lost = self._is_closed = False

    async def read(self) -> bytes:
        while not self._received:
            if self._is_lost:
                raise ConnectionResetError("the connection ended")
            if self._has_ended:
                return b""
            await self._change()
        piece = bytes(self._received[:PIECE_BYTES])
        del self._received[:PIECE_BYTES]
        self._room += len(piece)
        self._notify("credit", {"bytes": len(piece)})
        return piece

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            while self._credit <= 0 and not self._is_lost:
                await self._change()
            if self._is_lost or self._is_closed:
                raise ConnectionResetError("the connection ended")
            piece = view[: min(self._credit, PIECE_BYTES)]
            self._credit -= len(piece)
            self._notify("data", {}, (bytes(piece),))
            view = view[len(piece) :]

    def end(self) -> None:
        self._notify("end", {})

    def close(self) -> None:
        self._notify("close", {})
        self._is_closed = True

    def abort(self) -> None:
        self._notify("close", {"now": True})
        self._is_closed = True

    def receive(self, data: bytes) -> None:
        """data: of the client's, empty at its end."""
        self._room -= len(data)
        if self._room < 0 or self._is_closed:
            self.abort()  # an agent of ours respects the window
            self.lose()
            return
        if data:
            self._received += data
        else:
            self._has_ended = True
        self._changed.set()

    def add_credit(self, num_bytes: object) -> None:
        if type(num_bytes) is int and num_bytes > 0:
            self._credit = min(WINDOW_BYTES, self._credit + num_bytes)
            self._changed.set()

    def lose(self) -> None:
        """The agent has closed it, or is gone."""
        self._is_lost = self._is_closed = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _notify(self, op: str, header: Header, blobs: Sequence[bytes] = ()) -> None:
        if not self._is_closed:
            self._container.notify(f"{self._name}.{op}", {**header, "connection": self._number}, blobs)
