"""Which hosts a container may reach: `network_mode` and `allowed_hosts` of task.toml."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Literal

from agentgym.errors import UserError
from agentgym_envs.harbor.reading import Table

Network = tuple[str, ...] | Literal["public"]
"""The hosts that a container may reach; "public" for all of the public internet."""

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def read_network(table: Table) -> Network | None:
    """None where the table does not say."""
    mode = table.choice("network_mode", ("public", "no-network", "allowlist"), "")
    hosts = table.texts("allowed_hosts")
    if mode == "allowlist":
        return tuple(_host(table, host) for host in hosts)
    if hosts or (not mode and table.has("allowed_hosts") and table.where != "environment"):
        raise table.refuse("allowed_hosts", f"it needs {table.name('network_mode')} = 'allowlist'")
    return {"public": "public", "no-network": ()}.get(mode)  # type: ignore[return-value]


def _host(table: Table, given: str) -> str:
    host = given.strip().lower().rstrip(".")
    bad = UserError(
        f"{table.name('allowed_hosts')} has {given!r}; give host names, '*.' and a suffix, or IP addresses, "
        "without scheme, port and path"
    )
    if "/" in host:
        raise UserError(f"{table.name('allowed_hosts')} has {given!r}; ranges of addresses are not supported")
    try:
        return ipaddress.ip_address(host).compressed if "%" not in host else ""
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise bad
    if host.startswith("*."):
        try:
            ipaddress.ip_address(host[2:])
        except ValueError:
            return host
        raise bad
    return host
