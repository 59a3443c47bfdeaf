"""Archives laid into a container: every path is below the folder that was named."""

from __future__ import annotations

import io
import tarfile

from agentgym_envs.harbor.restoring import _selected
from agentgym_sandboxes.docker.archives import packed

NAMES = ["plain", "ü.pth", f"{'long' * 30}/{'name' * 30}"]


def archive_of(names: list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


def test_paths_that_are_long_or_not_ascii_stay_below_the_folder_that_they_are_laid_into() -> None:
    selected = _selected(archive_of(NAMES), lambda name: True, "package/")
    archive = packed("/tests", selected, replace=False, owner=0)
    with tarfile.open(fileobj=io.BytesIO(archive)) as read:
        assert read.getnames() == ["tests/package", *(f"tests/package/{name}" for name in NAMES)]
