"""The real server of the view on a free port, in a thread: what the page's tests and its pictures are made with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from agentgym.tables.roots import Roots
from agentgym.view.app import View
from agentgym.view.server import listen, serve


@contextmanager
def viewing(*folders: Path, **fields: Any) -> Iterator[str]:
    """The address of a view of the folders; fields are the view's."""
    addresses: SimpleQueue[str] = SimpleQueue()
    ended = threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(View(roots=Roots.of(folders), **fields), addresses, ended))
    )
    thread.start()
    try:
        yield addresses.get(timeout=30)
    finally:
        ended.set()
        thread.join()


async def _serve(view: View, addresses: SimpleQueue[str], ended: threading.Event) -> None:
    serving = asyncio.create_task(serve(view, "127.0.0.1", listen("127.0.0.1", 0), addresses.put))
    waiting = asyncio.create_task(asyncio.to_thread(ended.wait))
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    ended.set()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
