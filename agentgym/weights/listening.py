"""A port where processes of a run are met: each shows that it knows the run's secret before a byte of it is read."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge


def connect(address: tuple[str, int], token: bytes) -> Connection:
    """Connects to such a port. Raises OSError, EOFError, AuthenticationError."""
    line = Client(address, authkey=token)
    with socket.socket(fileno=os.dup(line.fileno())) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or the first request waits 40 ms for an ACK
    return line


class Listening:
    """Threads of this process. listens_at: the address and port."""

    def __init__(self, address: str, token: bytes, welcome: Callable[[Connection], None]) -> None:
        """welcome: called in a thread of each connection's own, so that one that says nothing stops no other."""
        self._token, self._welcome = token, welcome
        self._listener = Listener((address, 0))
        self.listens_at: tuple[str, int] = self._listener.address
        self._closed = False
        threading.Thread(target=self._accept, name="weights-listening", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                line = self._listener.accept()
            except OSError:  # it left at once, or this is closed
                continue
            threading.Thread(target=self._admit, args=(line,), name="weights-admit", daemon=True).start()

    def _admit(self, line: Connection) -> None:
        try:
            deliver_challenge(line, self._token)
            answer_challenge(line, self._token)
            self._welcome(line)
        except (OSError, EOFError, AuthenticationError):
            line.close()
