"""Host names and addresses in the one form in which they are compared, and which addresses are public."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_NAME_CHARS = 253
_AMBIGUOUS = re.compile("[ßẞς\u200c\u200d]")  # IDNA 2003 and IDNA 2008 map these to different names
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NOT_PUBLIC = [  # Python's is_global counts these as global; the first is where a cloud keeps its metadata
    ipaddress.ip_network(text)
    for text in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2002::/16", "2001:db8::/32", "3fff::/20")
]


def canonical_host(text: str) -> str:
    """Lower case, no dot at the end, ASCII (IDNA); an address as Python writes it, without brackets.

    Raises ValueError for what is not a host. `127.1` and `0x7f000001` are refused: a resolver takes them for
    addresses, a list of names does not.
    """
    if text.startswith("[") and text.endswith("]"):
        return str(_address_v6(text[1:-1]))
    name = text[:-1] if text.endswith(".") else text
    if len(name) > MAX_NAME_CHARS:  # before it costs time
        raise ValueError(f"{text[:80]!r} is not a host name")
    if _AMBIGUOUS.search(name):
        raise ValueError(f"{text[:80]!r} means different hosts to different programs; give its xn-- form")
    try:
        ascii_name = name.encode("idna").decode("ascii").lower() if not name.isascii() else name.lower()
    except UnicodeError as error:
        raise ValueError(f"{text[:80]!r} is not a host name") from error
    labels = ascii_name.split(".")
    if len(ascii_name) > MAX_NAME_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text[:80]!r} is not a host name")
    if _NUMBER.fullmatch(labels[-1]):
        return str(ipaddress.IPv4Address(ascii_name))
    return ascii_name


def split_port(authority: str, default: int | None) -> tuple[str, int]:
    """`host`, `host:port`, `1.2.3.4:port` or `[::1]:port`, the host in its canonical form.

    Raises ValueError, also when there is no port and no default.
    """
    host, port = authority, ""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([0-9]{1,5}))?", authority)
    if match is None:
        raise ValueError(f"{authority[:80]!r} is not host:port")
    host, port = match.group(1), match.group(2) or ""
    number = int(port) if port else default
    if number is None or not 1 <= number <= 65535:
        raise ValueError(f"{authority[:80]!r} has no port between 1 and 65535")
    return canonical_host(host), number


def shown(host: str, port: int | None = None) -> str:
    """A canonical host, and its port, as a URL has them."""
    text = f"[{host}]" if ":" in host else host
    return text if port is None else f"{text}:{port}"


def address_of(host: str) -> Address | None:
    """The address that a canonical host is, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether it lies in the public internet: not private, loopback, link-local, multicast, reserved or such.

    An IPv6 address that embeds an IPv4 one counts as that one.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in _GLOBAL_V6 or address.scope_id is not None:
            return False
    if any(address.version == network.version and address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_own(address: Address) -> bool:
    """Whether it is an address of this machine, whose services no firewall guards from here."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == address
    except (OSError, ValueError):  # no route, or a link-local address
        return False


def _address_v6(text: str) -> Address:
    address = ipaddress.IPv6Address(text)
    if address.scope_id is not None:
        raise ValueError(f"{text[:80]!r} names an interface")
    return address
