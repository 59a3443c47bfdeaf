"""A registry of images on this machine, which engines pull from without TLS."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class Registry(ThreadingHTTPServer):
    """contents: manifests by name and tag or digest, blobs by digest. pulled: the paths of manifests that were sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents: dict[str, tuple[str, bytes]] = {}
        self.pulled: list[str] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, busybox: Path, files: Mapping[str, bytes], architecture: str = "amd64") -> str:
        """An image of busybox and files, named `host/name`; its digest. name: with a tag."""
        with io.BytesIO() as layer:
            with tarfile.open(fileobj=layer, mode="w") as archive:
                archive.add(busybox, "bin/busybox")
                archive.add(busybox, "bin/sh")
                for path, data in files.items():
                    info = tarfile.TarInfo(path)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
            plain = layer.getvalue()
        packed = gzip.compress(plain, 1)
        rootfs = {"type": "layers", "diff_ids": [_digest(plain)]}
        config = json.dumps({"architecture": architecture, "os": "linux", "config": {"Env": ["PATH=/bin"]},
                             "rootfs": rootfs, "history": [{"created_by": "a test"}]}).encode()  # fmt: skip
        described = [
            {"mediaType": f"application/vnd.docker.{kind}", "size": len(data), "digest": _digest(data)}
            for kind, data in (("container.image.v1+json", config), ("image.rootfs.diff.tar.gzip", packed))
        ]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described[0], "layers": described[1:]}
        text = json.dumps(manifest).encode()
        repository, _, tag = name.partition(":")
        for end in (tag, _digest(text)):
            self.contents[f"/v2/{repository}/manifests/{end}"] = (MANIFEST, text)
        for data in (config, packed):
            self.contents[f"/v2/{repository}/blobs/{_digest(data)}"] = ("application/octet-stream", data)
        return _digest(text)


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        missing = b"" if self.path == "/v2/" else b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "not found"}]}'
        kind, data = self.server.contents.get(self.path, ("application/json", missing))
        if "/manifests/" in self.path and self.command == "GET":
            self.server.pulled.append(self.path)
        self.send_response(404 if data is missing and data else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if kind == MANIFEST:
            self.send_header("Docker-Content-Digest", _digest(data))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET  # of the standard library

    def log_message(self, format: str, *args: object) -> None:
        """It is asked much."""


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextmanager
def serve_registry() -> Iterator[Registry]:
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()
