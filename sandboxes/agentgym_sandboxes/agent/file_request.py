"""Answers one request about a session's files, in a child of its own that a session's processes can't touch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from . import files
from .frames import write_all, write_line

MAX_BYTES = 64 << 20  # of one file or one snapshot: it has to fit into a frame and into our memory


def answer_file_request(request: dict[str, object], data: bytes, reply: int, out: int) -> int:
    """request: `do` and what it needs. On `out` the bytes asked for; then a line on `reply`: done or refused."""
    work, path = str(request["work"]), str(request.get("path", "."))
    if request["anywhere"] and request["do"] in ("read", "write"):
        work = files.base_of(path, work)
    try:
        root = files.open_root(work)
        names = files.components(path, work)
        _do(str(request["do"]), root, names, request, data, out)
    except files.Refused as error:
        write_line(reply, ["refused", str(error)])
        return 0
    write_line(reply, ["done"])
    return 0


def _do(do: str, root: int, names: Sequence[str], request: dict[str, object], data: bytes, out: int) -> None:
    if do == "read":
        write_all(out, files.read(root, names, min(int(str(request["max_bytes"])), MAX_BYTES)))
    elif do == "write":
        files.write(root, names, data)
    elif do == "list":
        found = [[entry.path, entry.size, entry.is_folder] for entry in files.entries(root, names)]
        write_all(out, json.dumps(found).encode())
    else:
        from . import archive  # with tarfile, which takes its time

        if do == "snapshot":
            archive.pack(root, out, MAX_BYTES)
        elif do == "check":
            needs, room = archive.check(data, MAX_BYTES), os.fstatvfs(root)
            archive.check_room(needs, block_bytes=room.f_frsize, num_blocks=room.f_blocks, num_files=room.f_files)
        elif do == "restore":
            archive.unpack(root, data)
        else:
            raise ValueError(f"no file request {do!r}")
    os.close(root)
