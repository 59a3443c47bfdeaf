"""A network that loses an answer."""

from __future__ import annotations

import asyncio


class CuttingProxy:
    """Passes connections on, but cuts the first in its answer, after `answered` of the engine's completions."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.num_connections = 0
        self._clients: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for client in self._clients:  # a program may keep its connections; since Python 3.12 their ends are waited for
            client.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader, writer) -> None:
        self.num_connections += 1
        self._clients.append(writer)
        cut = self.num_connections == 1
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def forward(source, sink) -> None:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
            sink.close()

        asking = asyncio.create_task(forward(reader, inner_writer))
        if cut:
            await inner_reader.read(10)  # the answer is on its way, and lost
        else:
            await forward(inner_reader, writer)
        for one in (writer, inner_writer):
            one.close()
        await asyncio.wait([asking])
