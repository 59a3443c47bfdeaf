"""Connections of a session to one server of ours, and to nothing else: bytes in both directions."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

from agentgym.errors import UserError
from agentgym_sandboxes.network.streams import PIECE_BYTES, ByteStream, SocketStream

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 15.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Forward:
    """Serves each connection by one of its own to the target, which the session can't choose.

    target: `unix:/path/of/a/socket`, or `http://127.0.0.1:PORT` of this machine. Raises UserError for all else.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._path, self._host, self._port = "", "", 0
        if target.startswith("unix:/"):
            self._path = target.removeprefix("unix:")
            return
        try:
            parts = urlsplit(target)
            self._host, self._port = parts.hostname or "", parts.port or 0
        except ValueError:
            self._port = 0
        if not self._port or parts.scheme != "http" or self._host not in LOOPBACK or parts.path not in ("", "/"):
            raise UserError(
                f"a session can be given a way to a server of this machine, unix:/path or http://127.0.0.1:PORT, "
                f"and not to {target!r}; other hosts are named in its network"
            )

    async def serve(self, client: ByteStream) -> None:
        """Serves until both directions have ended, or one breaks."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                server = await self._connect()
        except (OSError, TimeoutError) as error:
            log.warning("a session's connection to %s failed: %s", self.target, error)
            client.abort()
            return
        try:
            async with asyncio.TaskGroup() as copying:
                copying.create_task(_copy(client, server))
                copying.create_task(_copy(server, client))
        except* OSError as errors:
            log.debug("a session's connection to %s ended: %s", self.target, errors.exceptions)
        finally:
            server.abort()
            client.close()

    async def _connect(self) -> ByteStream:
        if self._path:
            return SocketStream(*await asyncio.open_unix_connection(self._path, limit=PIECE_BYTES))
        return SocketStream(*await asyncio.open_connection(self._host, self._port, limit=PIECE_BYTES))


async def _copy(source: ByteStream, target: ByteStream) -> None:
    while piece := await source.read():
        await target.write(piece)
    target.end()
