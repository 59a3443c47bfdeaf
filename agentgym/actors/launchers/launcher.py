"""What a launcher is: it gives the hosts on which the processes of a run are started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.actor import HostMesh

CHILD_MODULE = "agentgym.actors.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedHost:
    """A launcher's host by name, as a recipe's `hosts` name it. mesh: of this host alone.

    again: called after the host was lost, until it is back; its new mesh. Raises an error for one that is still away.
    None: it is lost for the run.
    """

    name: str
    mesh: HostMesh
    again: Callable[[], Awaitable[HostMesh]] | None = None


class Launcher(ABC):
    """What `launcher` chooses. Inherit it as a frozen dataclass: the fields are the launcher's own settings."""

    __slots__ = ()

    def transport(self) -> str:
        """How this process and its hosts reach each other, in Monarch's words; empty for those of one machine.

        Asked before anything starts. Raises UserError where it is already known that the hosts are unavailable.
        """
        return ""

    @abstractmethod
    def hosts(self, log_dir: Path | None) -> AbstractAsyncContextManager[Sequence[HostMesh | LaunchedHost]]:
        """Monarch's hosts, each a mesh of one, or with its name; leaving gives them back, after their processes were
        stopped.

        log_dir: for what the hosts themselves print; None where nobody reads it. A group of processes is spawned
        on one host, the next group on the next one. Raises UserError for hosts that are unavailable.
        """
