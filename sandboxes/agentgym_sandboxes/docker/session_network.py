"""Lets a session reach the hosts of its allow list, through a proxy of ours, a server of ours, and nothing else."""

from __future__ import annotations

import collections
import resource
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Literal, TypeAlias

from agentgym.errors import pip_install
from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.outbound import Outbound
from agentgym_sandboxes.network.allow_list import AllowList, PublicHosts
from agentgym_sandboxes.network.forward import Forward
from agentgym_sandboxes.network.limits import ProxyLimits

FEWEST_CONNECTIONS, MOST_CONNECTIONS = 4, 32  # of a session, at a time
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


Hosts: TypeAlias = Sequence[str] | Literal["public"]
"""As `SandboxSpec.network` has them."""


def allowed_by(hosts: Hosts) -> AllowList:
    """Raises UserError for what is not a list of hosts."""
    return PublicHosts() if hosts == "public" else AllowList(hosts)


class SessionNetworks:
    """Opens the network of one session after another. metrics: where what they ask for is counted."""

    def __init__(self, max_bytes: int, metrics: collections.Counter[str], max_sessions: int = 1) -> None:
        max_connections = _fair_share(max_sessions)
        self._limits = ProxyLimits(max_bytes=max_bytes, max_connections=max_connections)
        self._metrics = metrics

    async def open(self, container: Container, hosts: Hosts, stack: AsyncExitStack) -> dict[str, str]:
        """Serve a container until the stack is closed; returns the environment variables that name the proxy.

        Raises UserError for what is not a list of hosts, SandboxUnavailable without h11, SandboxLost when the
        container is gone.
        """
        try:
            from agentgym_sandboxes.network.proxy import Proxy
        except ImportError as error:
            raise SandboxUnavailable(
                f"a session with an allow list needs a package that could not be imported ({error}). "
                f"Install it with `{pip_install('docker')}`."
            ) from error
        allowed = allowed_by(hosts)
        proxy = Proxy(container.name, allowed, self._limits, count=self._count)
        stack.callback(proxy.close)
        outbound = Outbound(container, proxy.serve, self._limits.max_connections)
        stack.push_async_callback(outbound.close)
        return proxy_environment(await outbound.listen(), allowed)

    async def forward(self, container: Container, target: str, stack: AsyncExitStack) -> int:
        """Lead a port of the container's loopback interface to one server of ours, until the stack is closed.

        Raises UserError for a target that is not on this machine, SandboxLost when the container is gone.
        """
        outbound = Outbound(container, Forward(target).serve, self._limits.max_connections, "forward")
        stack.push_async_callback(outbound.close)
        return await outbound.listen()

    def _count(self, what: str, number: int) -> None:
        self._metrics[counts.NETWORK[what]] += number


def _fair_share(max_sessions: int) -> int:
    """A session's share of a quarter of our descriptors: sessions that hold all would make the sandbox look broken."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else soft // 4 // max_sessions
    return max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, share))


def proxy_environment(port: int, allowed: AllowList) -> dict[str, str]:
    """The variables that clients look for. A session's own servers are reached without the proxy, unless the
    list names the same address: then the host's is meant."""
    url = f"http://127.0.0.1:{port}"
    listed = {entry.host for entry in allowed.entries}
    direct = ",".join(host for host in _LOOPBACK if host not in listed)
    lower = {"http_proxy": url, "https_proxy": url, "no_proxy": direct}
    return {**lower, **{name.upper(): value for name, value in lower.items()}}
