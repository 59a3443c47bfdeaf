"""Small images of the tests' own: one static busybox, and what a test adds."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

APPLETS = "cat chmod env id kill ls mkdir nc ps pwd setsid sh sleep su touch wget yes"


def static_busybox(folder: Path) -> Path | None:
    """A busybox that needs no library: this machine's, or Debian's package; None where there is neither."""
    ours = shutil.which("busybox")
    if ours is not None and b"/ld-" not in Path(ours).read_bytes()[:4096]:  # it would name its loader there
        return Path(ours)
    try:
        subprocess.run(["apt-get", "download", "busybox-static"], cwd=folder, check=True, capture_output=True)
        [package] = folder.glob("busybox-static*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "busybox")], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return next(path for path in (folder / "busybox").rglob("busybox") if path.is_file() and path.stat().st_mode & 0o1)


@contextmanager
def image_of(busybox: Path, changes: Sequence[str], files: Mapping[str, str] | None = None) -> Iterator[str]:
    """The id of a new image: busybox in /bin, its applets as links. changes: as in a Dockerfile. files: further ones.

    It is removed at the end, so nothing of it may run any more.
    """
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(busybox, "bin/busybox")
            for name in APPLETS.split():
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
            for name, text in (files or {}).items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                archive.addfile(info, io.BytesIO(text.encode()))
        packed.seek(0)
        words = [word for change in changes for word in ("-c", change)]
        command = ["docker", "import", *words, "-"]
        image = subprocess.run(command, stdin=packed, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield image
    finally:
        subprocess.run(["docker", "rmi", "-f", image], check=True, capture_output=True)
