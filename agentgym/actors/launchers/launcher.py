"""What a launcher is: it gives the hosts on which the processes of a run are started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.actor import HostMesh

CHILD_MODULE = "agentgym.actors.child"


class Launcher(ABC):
    """What `launcher` chooses. Inherit it as a frozen dataclass: the fields are the launcher's own settings."""

    __slots__ = ()

    def transport(self) -> str:
        """How this process and its hosts reach each other, in Monarch's words; empty for those of one machine.

        Asked before anything starts. Raises UserError where it is already known that the hosts are unavailable.
        """
        return ""

    @abstractmethod
    def hosts(self, log_dir: Path | None) -> AbstractAsyncContextManager[Sequence[HostMesh]]:
        """Monarch's hosts, each a mesh of one; leaving gives them back, after their processes were stopped.

        log_dir: for what the hosts themselves print; None where nobody reads it. A group of processes is spawned
        on one host, the next group on the next one. Raises UserError for hosts that are unavailable.
        """
