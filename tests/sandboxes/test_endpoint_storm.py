"""A session sends the endpoint header lines without end: our process does not grow, and other calls are answered."""

from __future__ import annotations

import asyncio

import httpx
import psutil
import pytest
from handlers import FakeHandler
from test_session_network import value

from agentgym.sandbox import RunStatus
from agentgym.serve.endpoint import Endpoint
from agentgym_sandboxes.docker.backend import DockerBackend

STORM = """
import socket, threading
LINES = b''.join(b'x-%d: %s\\r\\n' % (n, b'1' * 90) for n in range(600))
def storm(port, total):
    sent, opened = [0], [0]
    def one():
        while sent[0] < total:
            opened[0] += 1
            try:
                with socket.create_connection(('127.0.0.1', port)) as made:
                    made.sendall(b'POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\n')
                    while sent[0] < total:
                        made.sendall(LINES)
                        sent[0] += len(LINES)
            except OSError:
                pass
    threads = [threading.Thread(target=one) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return opened[0]
"""
GROWTH_BYTES = 5_000_000


@pytest.mark.docker
@pytest.mark.hostile
@pytest.mark.asyncio(loop_scope="session")
async def test_header_lines_without_end_from_a_session_fill_nothing_and_stop_nobody(docker: DockerBackend) -> None:
    async with Endpoint() as endpoint, docker.session() as session:
        handler = FakeHandler()
        headers = {"x-api-key": endpoint.admit(handler)}
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert (await session.run(STORM)).status is RunStatus.OK
        port = await session.forward(endpoint.url)
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers) as client:
            for total in (20_000_000, 60_000_000):  # the first is for buffers that are made once
                storm = asyncio.create_task(value(session, f"storm({port}, {total})"))
                before = psutil.Process().memory_info().rss
                num_answered, sizes = 0, []
                while not storm.done():
                    answer = await client.post("/v1/chat/completions", json=body)
                    assert answer.status_code == 200
                    handler.requests.clear()
                    num_answered += not storm.done()
                    sizes.append(psutil.Process().memory_info().rss)
                num_opened = await storm
        assert num_answered > 0
        assert num_opened > 8, "its connections were ended, and it opened others"
        assert max(sizes) - before < GROWTH_BYTES
