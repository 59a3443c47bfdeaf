"""Connections that must end with this process, though a child that was forked from it goes on."""

from __future__ import annotations

import asyncio
import os
import weakref
from pathlib import Path

_held: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()


def end_with_us(transport: asyncio.Transport) -> None:
    """A child that is forked later does not keep this connection open."""
    _held.add(transport)


def _let_go() -> None:
    """Lets go in the child. Its descriptors stay occupied, so that whoever believes to own one closes no other."""
    with Path(os.devnull).open("rb") as nothing:
        for transport in list(_held):
            end = transport.get_extra_info("socket")
            if end is not None and end.fileno() >= 0:
                os.dup2(nothing.fileno(), end.fileno(), inheritable=False)


os.register_at_fork(after_in_child=_let_go)
