"""Filesystems that a run's folder may be on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.runs.filesystem import object_store_at

MOUNTS = r"""
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 21 0:50 / /runs rw,nosuid - fuse.rclone bucket rw,user_id=0
41 40 0:51 / /runs/disk rw - ext4 /dev/sdb rw
42 21 0:52 / /with\040space rw master:3 - fuse.gcsfuse bucket rw
43 21 0:53 / /nfs rw shared:7 - nfs4 server:/ rw
""".strip()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/runs/one", "fuse.rclone"),
        ("/with space/one", "fuse.gcsfuse"),
        ("/runs/disk/one", ""),
        ("/runs-of-mine", ""),
        ("/nfs/one", ""),
    ],
)
def test_the_mount_that_a_folder_is_on_decides(folder: str, kind: str) -> None:
    assert object_store_at(Path(folder), MOUNTS) == kind
