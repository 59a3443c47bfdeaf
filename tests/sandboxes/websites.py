"""Web servers of this machine for the tests, plain and with TLS."""

from __future__ import annotations

import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class _Site(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked, and keeps its connections open, as real servers do."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(body)

    def do_GET(self) -> None:
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        data = b"x" * int(self.path[7:]) if self.path.startswith("/bytes/") else b"hello " + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that break off are the point of some tests."""


class Site:
    """A web server of this machine. seen: (method, path, headers, body) of each request."""

    def __init__(self, server: http.server.ThreadingHTTPServer) -> None:
        self.port: int = server.server_address[1]
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.certificate: Path | None = None
        server.seen = self.seen  # type: ignore[attr-defined]


@contextmanager
def serve_site(certificate: Path | None = None) -> Iterator[Site]:
    """certificate: a PEM file that holds the key, too; then the server speaks TLS."""
    server = _Server(("127.0.0.1", 0), _Site)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        site = Site(server)
        site.certificate = certificate
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(host: str, path: str = "/", extra: str = "", method: str = "GET") -> bytes:
    """A request to a proxy."""
    return f"{method} http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode()


def client_hello(name: str | None, extra: bytes = b"") -> bytes:
    """What a TLS client would send first."""

    def field(size: int, data: bytes) -> bytes:
        return len(data).to_bytes(size) + data

    extensions = extra
    if name is not None:
        entry = b"\x00" + field(2, name.encode())
        extensions += b"\x00\x00" + field(2, field(2, entry))
    hello = b"\x03\x03" + bytes(32) + field(1, b"") + field(2, b"\x13\x01") + field(1, b"\x00")
    message = b"\x01" + field(3, hello + field(2, extensions))
    return b"\x16\x03\x01" + field(2, message)


def make_certificate(folder: Path) -> Path:
    """A self-signed certificate with its key, for localhost and 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    path, key = folder / "site.pem", folder / "site.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key,
         "-out", path],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path
