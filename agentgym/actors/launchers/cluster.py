"""Machines on which a cluster runs `agentgym host`: the pods of a Kubernetes Job, the nodes of a SkyPilot task."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from agentgym.actors.launchers.attach import attached
from agentgym.actors.launchers.launcher import LaunchedHost, Launcher
from agentgym.actors.launchers.remote import transport_towards
from agentgym.errors import UserError

NODE_IPS = "SKYPILOT_NODE_IPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesLauncher(Launcher):
    """The pods of an indexed Job with its headless Service's name, as the command `launch kubernetes` writes both."""

    job: str = ""
    """The name of the Job and its Service."""
    num_hosts: int = 1
    """Pods of the Job, the controller's included."""
    wait_s: float = 1800.0
    """Seconds that a pod may take to be scheduled."""

    def __post_init__(self) -> None:
        if self.num_hosts < 1:
            raise ValueError(f"launcher.num_hosts is {self.num_hosts}; give at least 1")

    @property
    def pods(self) -> list[str]:
        return [f"{self.job}-{index}.{self.job}" for index in range(self.num_hosts)]

    def transport(self) -> str:
        if not self.job or "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise UserError(
                "the launcher kubernetes is for a controller in a pod of the Job launcher.job, and this is none: "
                "`agentgym launch kubernetes RECIPE` makes one. Pods that you started yourself, with `agentgym host`, "
                "are used by the launcher attach"
            )
        return transport_towards(socket.gethostname())

    def hosts(self, log_dir: Path | None) -> AbstractAsyncContextManager[Sequence[LaunchedHost]]:
        return attached(self.pods, self.wait_s, named_later=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyPilotLauncher(Launcher):
    """The nodes of the SkyPilot task that the controller is in."""

    wait_s: float = 1800.0
    """Seconds that a node may take to be set up."""

    def transport(self) -> str:
        return transport_towards(self.nodes()[-1])

    def nodes(self) -> list[str]:
        nodes = os.environ.get(NODE_IPS, "").split()
        if not nodes:
            raise UserError(
                f"the launcher skypilot is for a controller in a task of SkyPilot, and {NODE_IPS} is not set here: "
                "`agentgym launch skypilot RECIPE` makes one"
            )
        return nodes

    def hosts(self, log_dir: Path | None) -> AbstractAsyncContextManager[Sequence[LaunchedHost]]:
        return attached(self.nodes(), self.wait_s)
