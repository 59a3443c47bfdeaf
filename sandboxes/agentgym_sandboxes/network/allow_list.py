"""The hosts that a session may reach, as a task names them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.errors import UserError
from agentgym_sandboxes.network.hosts import Address, address_of, canonical_host, is_own, is_public, split_port

DEFAULT_PORTS = (80, 443)
MAX_ENTRIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the list. host: in its canonical form; subdomains: those of the host, not the host itself."""

    host: str
    ports: tuple[int, ...]
    subdomains: bool

    def names(self, host: str, port: int) -> bool:
        if port not in self.ports:
            return False
        return host.endswith("." + self.host) if self.subdomains else host == self.host

    @property
    def is_any_protocol(self) -> bool:
        """Whether a tunnel may carry other things than TLS: the entry gives a port of its own choice."""
        return self.ports != DEFAULT_PORTS


class AllowList:
    """Entries as `pypi.org`, `*.example.org` (below it, not itself), `host:8080`, `10.0.0.7`, `[::1]:8000`.

    Without a port they are for 80 and 443. Raises UserError for an entry that is not a host.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        if isinstance(entries, str) or len(entries) > MAX_ENTRIES:
            raise UserError(f"an allow list is a sequence of at most {MAX_ENTRIES} hosts")
        self.entries = tuple(_parse(entry) for entry in entries)
        self._text = ", ".join(entries)

    def __str__(self) -> str:
        return self._text if len(self._text) <= 300 else self._text[:297] + "..."

    def entry_for(self, host: str, port: int) -> Entry | None:
        """The first entry that allows a canonical host with a port."""
        return next((entry for entry in self.entries if entry.names(host, port)), None)

    def permits_address(self, address: Address, port: int) -> bool:
        """Whether an allowed name may lead to it. Private addresses, and ours, must be in the list themselves:
        else whoever owns a name could point it at our own network."""
        return (is_public(address) and not is_own(address)) or any(
            address_of(entry.host) == address and port in entry.ports for entry in self.entries
        )


class PublicHosts(AllowList):
    """Every host of the public internet, at any port; no private address, and none of this machine's."""

    def __init__(self) -> None:
        super().__init__(())
        self._text = "every public host"

    def entry_for(self, host: str, port: int) -> Entry | None:
        """An entry for that host and port alone, so that any protocol may be spoken."""
        return Entry(host=host, ports=(port,), subdomains=False)


def _parse(text: str) -> Entry:
    try:
        if not isinstance(text, str):
            raise ValueError("it is not a string")
        if "/" in text or "@" in text:
            raise ValueError("give a host only: no scheme, user, path or network")
        subdomains = text.startswith("*.")
        authority = text.removeprefix("*.")
        if "*" in authority:
            raise ValueError("a * is allowed at the start only, as in *.example.org")
        ports: tuple[int, ...] = DEFAULT_PORTS
        if authority.count(":") > 1 and not authority.startswith("["):  # a bare address of IPv6
            host = canonical_host(f"[{authority}]")
        elif re.search(r":[^\]]*$", authority):
            host, port = split_port(authority, None)
            ports = (port,)
        else:
            host = canonical_host(authority)
        if subdomains and address_of(host) is not None:
            raise ValueError("an address has no subdomains")
        if subdomains and "." not in host:
            raise ValueError("it would allow a whole top-level domain")
    except ValueError as error:
        raise UserError(
            f"network entry {text!r}: {error}. Allowed are `pypi.org`, `*.example.org` (subdomains only), "
            "`host:8080`, `10.0.0.7` and `[::1]:8000`"
        ) from error
    return Entry(host=host, ports=ports, subdomains=subdomains)
