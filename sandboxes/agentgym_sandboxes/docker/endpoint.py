"""Where an engine listens, and how it is reached: a unix socket, a port, or a port with TLS."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from agentgym.errors import UserError

log = logging.getLogger(__name__)

HOW_TO_NAME = "give unix:///path/to/docker.sock, tcp://host:port or ssh://user@host"
PORT, TLS_PORT = 2375, 2376
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files in PEM: the authority that signed the engine's certificate, our own certificate and its key."""

    ca: str
    cert: str
    key: str

    def context(self) -> ssl.SSLContext:
        """Raises UserError when a file can't be used."""
        self.check()
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"the TLS files {self.ca}, {self.cert}, {self.key} can't be used: {error}. They must be PEM, "
                "and the key must be the certificate's."
            ) from error
        return context

    def check(self) -> None:
        """Raises UserError for files that are not there."""
        missing = [path for path in (self.ca, self.cert, self.key) if not Path(path).is_file()]
        if missing:
            raise UserError(
                f"no file {', '.join(missing)}: TLS to a Docker engine takes an authority, a certificate and a "
                "key (sandbox.options tls_ca, tls_cert, tls_key, or ca.pem, cert.pem and key.pem in "
                "DOCKER_CERT_PATH)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A place to connect to. path: of a unix socket; else host and port."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: Tls | None = None

    @property
    def base_url(self) -> str:
        """The base URL as the docker SDK takes it."""
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    def check_listening(self, timeout_s: float) -> None:
        """Raises OSError when nothing listens at a unix socket. The SDK leaks its own socket then."""
        if self.path:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(timeout_s)
                probe.connect(self.path)

    async def open(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """A new connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path:
            return (await loop.create_unix_connection(protocol, self.path))[0]
        context = self.tls.context() if self.tls else None
        return (await loop.create_connection(protocol, self.host, self.port, ssl=context))[0]


def endpoint_of(url: str, tls: Tls | None = None) -> Endpoint:
    """The endpoint that a unix:// or tcp:// address names. Raises UserError."""
    parts = check_url(url)
    if parts.scheme == "unix":
        return Endpoint(path=parts.path)
    tls = tls or usual_tls()
    if tls is None and parts.hostname not in LOOPBACK:
        log.warning(
            "the Docker engine at %s is reached without TLS: whoever reaches that port is root there. Use its TLS "
            "port with sandbox.options tls_ca, tls_cert and tls_key, or ssh://user@host",
            url,
        )
    return Endpoint(host=parts.hostname or "", port=parts.port or (TLS_PORT if tls else PORT), tls=tls)


def check_url(url: str) -> SplitResult:
    """Refuse an address that names no engine."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UserError(f"the Docker engine's address {url!r} can't be read: {error}; {HOW_TO_NAME}") from error
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return parts
    host = parts.hostname or ""
    # A host that looks like an option would be one to ssh.
    if parts.scheme in ("tcp", "ssh") and host and not host.startswith("-") and port != 0:
        return parts
    raise UserError(f"the Docker engine's address is {url!r}; {HOW_TO_NAME}")


def usual_urls() -> list[str]:
    """Where engines listen: what the docker command's own variable names, else the usual sockets."""
    named = os.environ.get("DOCKER_HOST")  # Docker's own convention: its users expect it to be used
    if named:
        return [named]
    home, runtime = Path.home(), os.environ.get("XDG_RUNTIME_DIR")
    paths: Iterable[Path] = [Path("/var/run/docker.sock")]
    if runtime:
        paths = [*paths, Path(runtime, "docker.sock")]
    paths = [*paths, home / ".docker/run/docker.sock", home / ".docker/desktop/docker.sock"]
    return [f"unix://{path}" for path in paths]


def usual_tls() -> Tls | None:
    """The TLS files that the docker command would use, by its own variables; None when they ask for no TLS.

    Unlike there, the engine's certificate is always verified.
    """
    folder = os.environ.get("DOCKER_CERT_PATH")
    if not folder and not os.environ.get("DOCKER_TLS_VERIFY"):
        return None
    place = Path(folder) if folder else Path.home() / ".docker"
    return Tls(ca=str(place / "ca.pem"), cert=str(place / "cert.pem"), key=str(place / "key.pem"))
