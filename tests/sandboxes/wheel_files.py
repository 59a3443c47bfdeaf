"""Wheels made by hand, for an index that is a folder."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    needs: Sequence[str] = (),
    tags: Sequence[str] = ("py3-none-any",),
) -> None:
    """A wheel with these files, by path; pip asks for no hashes in its record."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Dist: {need}\n" for need in needs]
    about = ["Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n", *(f"Tag: {tag}\n" for tag in tags)]
    parts = {**files, f"{info}/METADATA": "".join(metadata), f"{info}/WHEEL": "".join(about)}
    record = "".join(f"{path},,\n" for path in (*parts, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{stem}-{tags[0]}.whl", "w") as archive:
        for path, text in {**parts, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
