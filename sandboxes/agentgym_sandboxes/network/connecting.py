"""Connects to a host: resolves its name here, and opens only addresses that the allow list permits."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from agentgym_sandboxes.network.allow_list import AllowList
from agentgym_sandboxes.network.hosts import Address, address_of, shown
from agentgym_sandboxes.network.streams import PIECE_BYTES, ByteStream, SocketStream

MAX_FOUND = 32  # looked at, of one name: whoever owns it may give it thousands
MAX_ADDRESSES = 4  # tried of those

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


class Refused(Exception):
    """The connection ends here. status, with the text: the HTTP answer. counted_as: in the proxy's counts."""

    def __init__(self, status: int, why: str, counted_as: str = "failed") -> None:
        super().__init__(why)
        self.status = status
        self.counted_as = counted_as


class Connector:
    """Opens the connections of one session. resolve: in place of the system's resolver, for tests."""

    def __init__(self, allowed: AllowList, timeout_s: float, resolve: Resolve | None) -> None:
        self._allowed = allowed
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="resolve")
        self._resolve = resolve or self._look_up

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def connect(self, host: str, port: int) -> tuple[ByteStream, Address]:
        """A connection to an address that was checked after it was resolved: the name is not resolved twice.

        Raises Refused.
        """
        where = shown(host, port)
        try:
            async with asyncio.timeout(self._timeout_s) as clock:
                literal = address_of(host)
                found = [literal] if literal is not None else await self._resolve(host, port)
                permitted = [a for a in found[:MAX_FOUND] if self._allowed.permits_address(a, port)]
                if found and not permitted:
                    why = f"{where} leads to {found[0]}, which is not public and not on the allow list itself"
                    raise Refused(403, why, "refused")
                for address, share_s in _shares(permitted[:MAX_ADDRESSES], clock):
                    with contextlib.suppress(OSError):
                        async with asyncio.timeout(share_s):
                            pair = await asyncio.open_connection(str(address), port, limit=PIECE_BYTES)
                        return SocketStream(*pair), address
        except TimeoutError:
            raise Refused(504, f"{where} did not answer in time") from None
        except OSError as error:
            raise Refused(502, f"{where} could not be found: {error}") from error
        raise Refused(502, f"{where} could not be reached")

    async def _look_up(self, host: str, port: int) -> list[Address]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return [ipaddress.ip_address(entry[4][0]) for entry in found]


def _shares(addresses: Sequence[Address], clock: asyncio.Timeout) -> Iterator[tuple[Address, float | None]]:
    """Each address with the time that it may take: what is left, by those that are left; the last takes all."""
    for num_left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        left_s = (clock.when() or 0.0) - asyncio.get_running_loop().time()
        yield address, left_s / num_left if num_left > 1 else None
