"""A launcher of a third party: Monarch's jobs (Slurm, Kubernetes, SSH and so on) are used like this one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from monarch.actor import HostMesh

from agentgym.actors.launchers import Launcher


@dataclass(frozen=True, kw_only=True)
class JobLauncher(Launcher):
    """Monarch's ProcessJob."""

    mesh_name: str = "workers"

    @asynccontextmanager
    async def hosts(self, log_dir: Path | None) -> AsyncIterator[Sequence[HostMesh]]:
        from monarch.job import ProcessJob

        logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)
        job = ProcessJob({self.mesh_name: 1})
        try:
            yield [getattr(job.state(cached_path=None), self.mesh_name)]
        finally:
            await asyncio.to_thread(job.kill)
