"""A Docker engine that only pretends: its API on a unix socket, as slow and as odd as a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.profile import OWNER_LABEL


class FakeDocker:
    """States of containers by name in `containers`; those in `stuck` can't be removed.

    wait_status: of its answer to who waits for a removal; 200 waits. create, delete: cleared, such requests hang.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.containers: dict[str, str] = {}
        self.stuck: set[str] = set()
        self.owner = "elsewhere:1:1"
        self.wait_status = 200
        self.image = True  # whether it has the image
        self.create, self.delete, self.info = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for event in (self.create, self.delete, self.info):
            event.set()
        self.asked: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    async def end(self, name: str) -> None:
        """As an engine that removes what has ended."""
        async with self._changed:
            del self.containers[name]
            self._changed.notify_all()

    async def until_asked(self, what: str, count: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.asked[what] < count:
                await asyncio.sleep(0.01)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head.lower())
                await reader.readexactly(int(length[1]) if length else 0)
                method, path, _ = head.split("\r\n", 1)[0].split()
                await self._answer(writer, method, re.sub(r"^/v[\d.]+", "", path))
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, path: str) -> None:
        place, _, query = path.partition("?")
        parts = place.strip("/").split("/")
        status, body = 200, b"{}"
        if parts == ["version"]:
            body = b'{"ApiVersion": "1.41"}'
        elif parts == ["info"]:
            await self.info.wait()
            body = json.dumps({"ID": str(self.path), "NCPU": 2}).encode()
        elif place == "/containers/json":
            labels = {OWNER_LABEL: self.owner}
            found = [
                {"Id": name, "Names": [f"/{name}"], "State": state, "Created": 1, "Labels": labels}
                for name, state in self.containers.items()
            ]
            body = json.dumps(found).encode()
        elif place == "/containers/create":
            self.asked["create"] += 1
            await self.create.wait()
            name = query.removeprefix("name=")
            if self.image:
                self.containers[name] = "created"
                status, body = 201, json.dumps({"Id": name}).encode()
            else:
                status, body = 404, b'{"message": "No such image: sha256:12ab"}'
        elif parts[0] == "containers":
            status, body = await self._on_container(method, parts[1], parts[2:], writer)
        if status:
            reply = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(reply.encode() + body)
            await writer.drain()

    async def _on_container(
        self, method: str, name: str, what: list[str], writer: asyncio.StreamWriter
    ) -> tuple[int, bytes]:
        missing = 404, b'{"message": "No such container"}'
        if what == ["wait"]:
            self.asked["wait"] += 1
            if self.wait_status != 200:
                return self.wait_status, b'{"message": "unknown condition removed"}'
            if name not in self.containers:
                return missing
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")  # as Docker: at once
            async with self._changed:
                await self._changed.wait_for(lambda: name not in self.containers)
            writer.write(b'11\r\n{"StatusCode": 0}\r\n0\r\n\r\n')
            return 0, b""
        if method == "DELETE":
            self.asked["delete"] += 1
            await self.delete.wait()
            if name in self.stuck:
                return 400, b'{"message": "device or resource busy"}'
            if name not in self.containers:
                return missing
            await self.end(name)
            return 204, b""
        if name not in self.containers:
            return missing
        return 200, json.dumps({"Id": name, "State": {"Status": self.containers[name]}}).encode()


@contextlib.asynccontextmanager
async def fake_docker(folder: Path) -> AsyncIterator[tuple[FakeDocker, Engine]]:
    """The engine, and a client of ours that is connected to it."""
    folder.mkdir(exist_ok=True)
    docker = FakeDocker(folder / "docker.sock")
    server = await asyncio.start_unix_server(docker.serve, docker.path)
    engine = await Engine.connect(docker.url, 20.0)
    try:
        yield docker, engine
    finally:
        for event in (docker.create, docker.delete, docker.info):
            event.set()
        await engine.close()
        server.close()
