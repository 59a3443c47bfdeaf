"""The real server of the view on a free port, in a thread: what the page's tests and its pictures are made with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from agentgym.tables.roots import Roots
from agentgym.view.app import View
from agentgym.view.server import listen, serve


@contextmanager
def viewing(*folders: Path, cache: Path | None = None) -> Iterator[str]:
    """The address of a view of the folders."""
    addresses: SimpleQueue[str] = SimpleQueue()
    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(folders, cache, addresses, ended)))
    thread.start()
    try:
        yield addresses.get(timeout=30)
    finally:
        ended.set()
        thread.join()


async def _serve(
    folders: tuple[Path, ...], cache: Path | None, addresses: SimpleQueue[str], ended: threading.Event
) -> None:
    view = View(roots=Roots.of(folders), cache=cache)
    serving = asyncio.create_task(serve(view, "127.0.0.1", listen("127.0.0.1", 0), addresses.put))
    waiting = asyncio.create_task(asyncio.to_thread(ended.wait))
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    ended.set()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
