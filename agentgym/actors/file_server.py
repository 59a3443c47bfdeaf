"""Hands out the files of a folder to other hosts, to who knows a token.

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


async def serve_files(root: Path, token: str, port: int = 0) -> asyncio.Server:
    """port: 0 is a free one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):
            await _answer(root, token, reader, writer)
        writer.close()

    return await asyncio.start_server(answer, port=port, limit=MAX_LINE_BYTES, family=socket.AF_INET)


async def _answer(root: Path, token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    given, _, name = (await reader.readline()).decode().strip().partition(" ")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return
    names = await asyncio.to_thread(_files, root)
    if not name:
        writer.write(("\n".join(names) + "\n\n").encode())
        await writer.drain()
    elif name in names:
        with (root / name).open("rb") as file:
            writer.write(f"{os.fstat(file.fileno()).st_size}\n".encode())
            await writer.drain()
            await asyncio.get_running_loop().sendfile(writer.transport, file)


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
