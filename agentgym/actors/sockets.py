"""Whether sockets fit where temporary files go: the kernel takes paths of 107 bytes."""

from __future__ import annotations

import os

from agentgym.errors import UserError

MAX_BYTES = 107  # of a Unix socket's path, on Linux
OF_MONARCH = len("/.tmp123456/12345678901")  # what it adds to the folder, for each process
DEFAULT = "/tmp"


def check_socket_folder(added: int = OF_MONARCH) -> None:
    """Raises UserError where no socket can be made in the folder of temporary files. added: bytes of its path below."""
    folder = os.environ.get("TMPDIR") or DEFAULT  # as Monarch's Rust has it; Python would take another where it fails
    fix = f"give a short one on a local disk, as in `export TMPDIR={DEFAULT}`"
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"TMPDIR is {folder!r}, where no file can be made; {fix}")
    size = len(os.fsencode(folder.rstrip("/")))
    if size + added > MAX_BYTES:
        raise UserError(
            f"TMPDIR is {folder!r}, {size} bytes long: at most {MAX_BYTES - added} are allowed, because the processes' "
            f"sockets are made below it and the kernel limits their paths; {fix}"
        )
