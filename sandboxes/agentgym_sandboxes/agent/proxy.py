"""Takes connections on the loopback interface and carries their bytes to the host, which decides about them.

Nothing here reads what goes by. Each direction of a connection has a window: no side sends more than the other
has said it will take.
"""

from __future__ import annotations

import collections
import select
import socket
import time
from typing import Callable, cast

from .frames import Frame, Header, OnFrame
from .reactor import Reactor

PIECE_BYTES = 1 << 16
BACKLOG = 128
READ_PAUSE_S, ACCEPT_PAUSE_S = 0.002, 0.005  # each frame and each connection costs the host time
SMALL_BYTES = 1 << 14
DRAIN_S = 30.0  # what a client does not take by then, after the host closed, is dropped


def register(reactor: Reactor) -> dict[str, OnFrame]:
    """The operations `proxy.*`: to hosts of an allow list."""
    return operations(reactor, "proxy")


def operations(reactor: Reactor, name: str) -> dict[str, OnFrame]:
    """The operations of one listening socket: `name.*`. What the agent sends unasked are events of that name."""
    relay = Relay(reactor, name)
    return {
        f"{name}.listen": relay.listen,
        f"{name}.data": relay.on_connection(Connection.send),
        f"{name}.end": relay.on_connection(Connection.end),
        f"{name}.credit": relay.on_connection(Connection.take_credit),
        f"{name}.close": relay.on_connection(Connection.close),
    }


class Relay:
    """The listening socket and its connections. More than `max_connections` wait in the kernel's queue."""

    def __init__(self, reactor: Reactor, name: str) -> None:
        self.reactor = reactor
        self.name = name
        self.window = 0
        self._connections: dict[int, Connection] = {}
        self._max_connections = 0
        self._last_number = 0
        self._pausing = False
        self._socket: socket.socket | None = None

    def listen(self, frame: Frame) -> None:
        """Answers with the port. A second time it answers with the same."""
        if self._socket is None:
            self.window = cast(int, frame.header["window"])
            self._max_connections = cast(int, frame.header["connections"])
            try:
                listening = socket.socket()
                listening.bind(("127.0.0.1", 0))
                listening.listen(BACKLOG)
                listening.setblocking(False)
            except OSError as error:
                self.reactor.send({"id": frame.header["id"], "error": str(error)})
                return
            self._socket = listening
            self._watch()
        self.reactor.send({"id": frame.header["id"], "port": self._socket.getsockname()[1]})

    def on_connection(self, method: Callable[[Connection, Frame], None]) -> Callable[[Frame], None]:
        """The operation that calls a method of the connection that a frame names; late frames find none."""

        def operation(frame: Frame) -> None:
            connection = self._connections.get(cast(int, frame.header["connection"]))
            if connection is not None:
                method(connection, frame)

        return operation

    def forget(self, number: int) -> None:
        """A connection has ended: there is room for another, after the pause."""
        del self._connections[number]
        if not self._pausing:
            self._watch()

    def _watch(self) -> None:
        listening = cast(socket.socket, self._socket)
        self.reactor.watch(listening.fileno(), self._accept)

    def _accept(self) -> None:
        listening = cast(socket.socket, self._socket)
        if len(self._connections) >= self._max_connections:
            self.reactor.unwatch(listening.fileno())
            return
        try:
            accepted, _ = listening.accept()
        except OSError:  # none there, or gone again; or no descriptor is left, then the next round tries again
            return
        accepted.setblocking(False)
        self.reactor.unwatch(listening.fileno())
        self._pausing = True
        self.reactor.call_at(time.monotonic() + ACCEPT_PAUSE_S, self._resume)
        self._last_number += 1
        self._connections[self._last_number] = Connection(self, accepted, self._last_number)

    def _resume(self) -> None:
        self._pausing = False
        self._watch()


class Connection:
    """One connection of a client's. It ends when both directions have, when one breaks, or at the host's word."""

    def __init__(self, relay: Relay, accepted: socket.socket, number: int) -> None:
        self._relay = relay
        self._socket = accepted
        self._number = number
        self._credit = relay.window  # what the host still takes
        self._unsent: collections.deque[memoryview] = collections.deque()
        self._reading = True
        self._pausing = False  # more may come: small pieces go together
        self._host_ended = False  # the host has no more
        self._closing = False  # the host wants it closed
        self._shut = False
        self._events = 0
        self._say("open")
        self._update()

    def send(self, frame: Frame) -> None:
        if not self._host_ended:
            self._unsent.extend(memoryview(blob) for blob in frame.blobs if blob)
        self._update()

    def end(self, frame: Frame) -> None:
        self._host_ended = True
        self._update()

    def take_credit(self, frame: Frame) -> None:
        self._credit += cast(int, frame.header["bytes"])
        self._update()

    def close(self, frame: Frame) -> None:
        """Once the client has what was sent, or at once when the frame says `now`."""
        self._host_ended = self._closing = True
        if frame.header.get("now"):
            self._unsent.clear()
        elif self._unsent:
            self._relay.reactor.call_at(time.monotonic() + DRAIN_S, self._drop)
        self._update()

    def _ready(self) -> None:
        self._read()
        self._update()

    def _read(self) -> None:
        if not (self._reading and self._credit > 0 and not self._closing) or self._pausing:
            return
        try:
            data = self._socket.recv(min(self._credit, PIECE_BYTES))
        except BlockingIOError:
            return
        except OSError:
            self._drop()
            return
        if data:
            self._credit -= len(data)
            self._say("data", data)
            if len(data) < SMALL_BYTES:
                self._pausing = True
                self._relay.reactor.call_at(time.monotonic() + READ_PAUSE_S, self._resume)
        else:
            self._reading = False
            self._say("end")

    def _resume(self) -> None:
        self._pausing = False
        self._update()

    def _write(self) -> None:
        num_written = 0
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent[0])
                num_written += sent
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop()
            return
        if num_written and not self._closing:
            self._say("credit", num_bytes=num_written)
        if self._host_ended and not self._unsent and not self._shut:
            self._shut = True
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self._drop()

    def _update(self) -> None:
        """Write what can be written, end what has ended, and watch for what is wanted, for nothing else."""
        if self._number < 0:
            return
        self._write()
        if self._number < 0:
            return
        if self._shut and (self._closing or not self._reading):
            self._drop()
            return
        wants_more = self._reading and self._credit > 0 and not self._closing and not self._pausing
        events = (select.POLLIN if wants_more else 0) | (select.POLLOUT if self._unsent else 0)
        if events == self._events:
            return
        if events:
            self._relay.reactor.watch(self._socket.fileno(), self._ready, events)
        else:
            self._relay.reactor.unwatch(self._socket.fileno())
        self._events = events

    def _drop(self) -> None:
        if self._number < 0:
            return
        if self._events:
            self._relay.reactor.unwatch(self._socket.fileno())
        self._socket.close()
        self._unsent.clear()
        self._say("close")
        number, self._number = self._number, -1
        self._relay.forget(number)

    def _say(self, what: str, data: bytes = b"", num_bytes: int = 0) -> None:
        header: Header = {"event": self._relay.name, "what": what, "connection": self._number}
        if num_bytes:
            header["bytes"] = num_bytes
        self._relay.reactor.send(header, [data] if data else [])
