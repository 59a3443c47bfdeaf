"""What a run's folder needs of its filesystem: to append to files, to rename folders, and locks."""

from __future__ import annotations

import errno
import fcntl
import secrets
import shutil
from pathlib import Path

from agentgym.errors import UserError

OBJECT_STORES = ("gcsfuse", "rclone", "s3fs", "goofys", "geesefs", "mountpoint-s3", "blobfuse", "blobfuse2")
"""Types of mounts whose files are objects of a bucket, some of which pretend to what they lose at a preemption."""

UNFIT = (errno.EPERM, errno.EINVAL, errno.EIO, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EXDEV, errno.ENOTEMPTY)
"""What a filesystem says to what it cannot do; a full or read-only disk says something else."""


def check_filesystem(folder: Path) -> None:
    """Raises UserError for a folder on a filesystem on which a run would lose what it saves, OSError of the disk."""
    if kind := object_store_at(folder, Path("/proc/self/mountinfo").read_text()):
        raise _unfit(folder, f"is a bucket ({kind})")
    probe = folder / f".probe-{secrets.token_hex(8)}"
    doing = "make a folder"
    try:
        probe.mkdir()
        try:
            doing = "append to a file"
            for _ in range(2):
                with (probe / "file").open("ab") as file:
                    file.write(b"a")
            if (probe / "file").read_bytes() != b"aa":
                raise OSError(errno.EIO, "what was appended is missing")
            doing = "lock a file"
            with (probe / "file").open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            doing = "rename a folder"
            probe = probe.rename(probe.with_name(f"{probe.name}-renamed"))
        finally:
            shutil.rmtree(probe, ignore_errors=True)
    except OSError as error:
        if error.errno not in UNFIT:
            raise
        raise _unfit(folder, f"cannot {doing} ({error.strerror or error})") from None


def object_store_at(folder: Path, mountinfo: str) -> str:
    """The type of the mount that the folder is on, if it is of an object store; else nothing."""
    where, found = Path("/"), ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        if folder.absolute().is_relative_to(point) and len(point.parts) >= len(where.parts):
            where, found = point, after.split()[0]
    return found if found.removeprefix("fuse.") in OBJECT_STORES else ""


def _unfit(folder: Path, why: str) -> UserError:
    return UserError(
        f"the filesystem of {str(folder)!r} {why}; runs append, rename and lock: choose a folder of a disk, of NFS or "
        "another shared filesystem with logging.runs_dir or --runs-dir, and copy what shall be in a bucket"
    )
