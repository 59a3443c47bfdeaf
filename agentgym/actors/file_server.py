"""Serves a folder's files to other hosts that present the token.

`TOKEN NAME` is answered with the file's size in a line, and its bytes; without a name, with the names.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from agentgym.actors.owned_folder import OWNER_FILE

MAX_LINE_BYTES = 4096
MAX_CONNECTIONS = 256  # at once; a host has one for each version that it fetches
ASK_S = 15.0  # from the connection to the end of its line
PIECE_BYTES, PIECE_S = 4 * 2**20, 60.0  # so long a reader may take for so much


async def serve_files(root: Path, token: str, port: int = 0, *, ask_s: float = ASK_S) -> asyncio.Server:
    """port: 0 is a free one. Raises OSError where it cannot listen."""
    num_open = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_open
        num_open += 1
        try:
            if num_open <= MAX_CONNECTIONS:
                with suppress(OSError, ValueError):  # TimeoutError is an OSError
                    async with asyncio.timeout(ask_s):
                        asked = await reader.readline()
                    await _answer(root, token, asked, writer)
        finally:
            num_open -= 1
            writer.close()

    return await asyncio.start_server(answer, port=port, limit=MAX_LINE_BYTES, family=socket.AF_INET)


async def _answer(root: Path, token: str, asked: bytes, writer: asyncio.StreamWriter) -> None:
    given, _, name = asked.decode().strip().partition(" ")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return
    names = await asyncio.to_thread(_files, root)
    if not name:
        writer.write(("\n".join(names) + "\n\n").encode())
        await writer.drain()
    elif name in names:
        with (root / name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            writer.write(f"{size}\n".encode())
            await writer.drain()
            for start in range(0, size, PIECE_BYTES):
                async with asyncio.timeout(PIECE_S):
                    await asyncio.get_running_loop().sendfile(writer.transport, file, start, PIECE_BYTES)


def _files(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name != OWNER_FILE]


def list_files(address: str, port: int, token: str, *, timeout_s: float) -> list[str]:
    """The names of the files that a host serves. Raises OSError when it does not answer."""
    with socket.create_connection((address, port), timeout=timeout_s) as connection:
        connection.sendall(f"{token}\n".encode())
        with connection.makefile("r") as lines:
            return [line.strip() for line in lines if line.strip()]


def fetch(address: str, port: int, token: str, name: str, target: Path, *, timeout_s: float) -> None:
    """Copy a file that a host serves. timeout_s: of silence. Raises OSError when it has none, or stops half-way."""
    with socket.create_connection((address, port), timeout=timeout_s) as connection:
        connection.sendall(f"{token} {name}\n".encode())
        with connection.makefile("rb") as source, target.open("wb") as file:
            size = source.readline()
            if not size:
                raise FileNotFoundError(f"{address} has no file {name!r}")
            shutil.copyfileobj(source, file, 2**20)
            if file.tell() != int(size):
                raise ConnectionError(f"{address} sent {file.tell()} of {int(size)} bytes of {name!r}")
