"""An endpoint, a handler behind it, and clients with keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import pytest_asyncio
from handlers import FakeHandler

from agentgym.serve.endpoint import Endpoint


@pytest.fixture
def handler() -> FakeHandler:
    return FakeHandler()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint(keep_alive_s=0.01, max_body_bytes=100_000) as endpoint:
        yield endpoint


@pytest_asyncio.fixture(loop_scope="module")
async def connect(endpoint) -> AsyncIterator[Callable[[str], httpx.AsyncClient]]:
    """A client with a key."""
    clients: list[httpx.AsyncClient] = []

    def make(key: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        clients.append(httpx.AsyncClient(base_url=endpoint.url, headers=headers, verify=False))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def client(endpoint, connect, handler) -> httpx.AsyncClient:
    return connect(endpoint.admit(handler))
