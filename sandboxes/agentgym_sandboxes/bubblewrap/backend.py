"""The bubblewrap sandbox: for machines without a container engine, run by an ordinary user."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
from collections.abc import Callable
from typing import ClassVar

from agentgym.errors import InfraError
from agentgym.sandbox import Capabilities, SandboxUnavailable
from agentgym_sandboxes.bubblewrap.cgroups import find_parent, remove_stale
from agentgym_sandboxes.bubblewrap.config import BubblewrapConfig
from agentgym_sandboxes.bubblewrap.enclosure import BubblewrapEnclosure, Setting, mount_command
from agentgym_sandboxes.bubblewrap.trial import try_walls
from agentgym_sandboxes.host.command import run_command
from agentgym_sandboxes.host.seccomp_filter import filter_program
from agentgym_sandboxes.local.backend import LocalBackend
from agentgym_sandboxes.local.python import find_python

log = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 20.0
NOT_COUNTED = "; the number of files is limited by memory only: `unshare` may not mount here"
OLDEST = (0, 8)  # the first that can forbid user namespaces inside


class BubblewrapBackend(LocalBackend):
    """See `BubblewrapConfig` for what can be set."""

    name: ClassVar[str] = "bubblewrap"

    def __init__(self, config: BubblewrapConfig | None = None) -> None:
        self.config = config or BubblewrapConfig()
        super().__init__(self.config)
        self._setting: Setting | None = None

    async def probe(self) -> Capabilities:
        """What it enforces here, tried in a sandbox. Raises SandboxUnavailable with the way to get it."""
        trial = BubblewrapBackend(dataclasses.replace(self.config, spares=2, slots=2))
        async with trial:
            setting = trial._ready()
            await try_walls(trial.run, files_mib=setting.work_mib, most_mib=setting.most_memory_mib)
        files = "" if setting.counts_files else NOT_COUNTED
        return Capabilities(
            backend=self.name,
            detail=f"{setting.bwrap} with Python {setting.python.version_text} of {setting.python.path}, "
            f"control groups (version {setting.parent.version}) in {setting.parent.memory}{files}",
            isolated=True,
            full_python=True,
            network_off=True,
            memory_limit=True,
            process_limit=True,
            seccomp=True,
            disk_limit=True,
        )

    async def clean(self, say: Callable[[str], None]) -> int:
        """Remove what dead owners left; how many sandboxes that were."""
        return remove_stale(find_parent(self.config.cgroup), say)

    async def _prepare(self) -> str:
        if os.geteuid() == 0:
            raise SandboxUnavailable(
                "bubblewrap must not be started by root: the host's settings under /proc/sys stay writable inside. "
                "Start agentgym as an ordinary user."
            )
        bwrap = await _find_bwrap(self.config.bwrap)
        parent = find_parent(self.config.cgroup)
        self._meter.counts["reaped_total"] += remove_stale(parent, log.info)
        self._setting = Setting(
            bwrap=bwrap,
            python=await find_python(self.config.python),
            parent=parent,
            program=filter_program(),
            work_mib=self.config.work_mib,
            tmp_mib=self.config.tmp_mib,
            memory_mib=self.config.memory_mib,
            counts_files=await _can_mount(),
        )
        return self._setting.python.path

    def _new_enclosure(self) -> BubblewrapEnclosure:
        try:
            return BubblewrapEnclosure(self._ready())
        except OSError as error:
            raise SandboxUnavailable(f"no control group could be made: {error}") from error

    def _ready(self) -> Setting:
        assert self._setting is not None
        return self._setting


async def _find_bwrap(wanted: str | None) -> str:
    """Its path. Raises SandboxUnavailable when it is missing or too old."""
    path = shutil.which(wanted or "bwrap")
    if path is None:
        raise SandboxUnavailable(
            f"there is no command {wanted or 'bwrap'!r}. Install bubblewrap, on Debian with `apt install bubblewrap`."
        )
    try:
        said = await run_command([path, "--version"], COMMAND_TIMEOUT_S)
    except InfraError as error:
        raise SandboxUnavailable(str(error)) from error
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        raise SandboxUnavailable(
            f"{path} reports the version {said.strip()!r}; bubblewrap {OLDEST[0]}.{OLDEST[1]} or later is needed"
        )
    return path


async def _can_mount() -> bool:
    """Whether this user may mount file systems of their own, which some distributions forbid all but bubblewrap."""
    try:
        await run_command([*mount_command(1, 1), "true"], COMMAND_TIMEOUT_S)
    except (OSError, InfraError):
        return False
    return True
