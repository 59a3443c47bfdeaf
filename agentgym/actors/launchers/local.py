"""This host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.actors.launchers.launcher import Launcher

if TYPE_CHECKING:
    from monarch.actor import HostMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher(Launcher):
    """This host: the processes are children of the controller."""

    @asynccontextmanager
    async def hosts(self, log_dir: Path | None) -> AsyncIterator[Sequence[HostMesh]]:
        from monarch.actor import this_host

        yield [this_host()]
