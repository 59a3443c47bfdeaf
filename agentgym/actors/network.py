"""This machine's addresses."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def own_address(towards: str) -> str:
    """This machine's address, as the other one sees it. Raises OSError for one to which there is no route."""
    [(family, _, _, _, address), *_] = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The network interface with this address; empty for an address that is not this machine's."""
    import psutil  # here: commands without a run need no extra

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return str(name)
    return ""


def free_port(address: str) -> int:
    """One that was free a moment ago."""
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        return int(probe.getsockname()[1])


def meet_at(address: str, port: int) -> dict[str, str]:
    """The variables with which torch.distributed finds rank 0, and its own interface towards it."""
    interface = interface_of(own_address(address))
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    # Otherwise gloo resolves the host name, which fails on many laptops, and NCCL guesses.
    return found | ({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {})
