"""Read-only volumes: copies of folders that an engine keeps, each filled once and named by a hash of its contents."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from agentgym.errors import InfraError, UserError
from agentgym.types import Json
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.failures import EngineError
from agentgym_sandboxes.docker.profile import LABEL, OWNER_LABEL, VOLUME_LABEL
from agentgym_sandboxes.host.reaper import is_orphan

if TYPE_CHECKING:
    from docker import APIClient

PREFIX = "agentgym-volume-"
FILL_TIMEOUT_S = 600.0
FILL_AGAIN_S = 0.25
LIST_TIMEOUT_S = 30.0
INSIDE = "/volume"  # of the container that fills it, which is never started
COMPLETE = ".agentgym-complete"  # the last file of the archive


class Volumes:
    """The folders that every session of a backend has, by the absolute path at which it has them.

    owner: the label of the containers that fill them.
    """

    def __init__(self, folders: Mapping[str, str], owner: str) -> None:
        self._folders = folders
        self._owner = owner
        self._hashes: dict[str, str] = {}
        self._filled: dict[str, asyncio.Lock] = {}
        self._mounts: dict[str, list[dict[str, Json]]] = {}

    async def on(self, engine: Engine, image: str) -> list[dict[str, Json]]:
        """The mounts for a container's settings; what the engine lacks is filled first.

        image: any that the engine has. Raises UserError for a folder that is missing, InfraError.
        """
        if not self._folders:
            return []
        async with self._filled.setdefault(engine.url, asyncio.Lock()):
            known = self._mounts.get(engine.url)
            if known is None or not await are_kept(engine, {str(one["Source"]) for one in known}):
                self._hashes.clear()  # the folders may have changed since
                mounts = []
                for at, folder in self._folders.items():
                    if folder not in self._hashes:
                        self._hashes[folder] = await asyncio.to_thread(hash_of, Path(folder))
                    name = await fill(engine, Path(folder), self._hashes[folder], image, self._owner)
                    mounts.append(mount(name, at))
                self._mounts[engine.url] = mounts
            return self._mounts[engine.url]


def mount(name: str, at: str, *, read_only: bool = True) -> dict[str, Json]:
    """As `HostConfig.Mounts` of a create call has it."""
    return {
        "Type": "volume", "Source": name, "Target": at, "ReadOnly": read_only, "VolumeOptions": {"NoCopy": True},
    }  # fmt: skip


async def fill(engine: Engine, folder: Path, digest: str, image: str, owner: str) -> str:
    """The name of the volume with a folder's contents, which is filled unless it is complete.

    digest: by `hash_of`. One fills it at a time: the name of its container is the lock, and goes with its owner.
    """
    name = PREFIX + digest[:16]
    settings: dict[str, Json] = {
        "Image": image, "Cmd": ["never-started"], "Labels": {LABEL: "1", OWNER_LABEL: owner}, "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none", "Mounts": [mount(name, INSIDE, read_only=False)]},
    }  # fmt: skip
    labels = {VOLUME_LABEL: folder.name}
    make = functools.partial(_make, name=name, labels=labels)
    await engine.call_long("make a volume", make, FILL_TIMEOUT_S)
    await _lock(engine, name, settings)
    try:
        is_complete = functools.partial(_has, container=name, path=f"{INSIDE}/{COMPLETE}")
        if not await engine.call_long("look into a volume", is_complete, FILL_TIMEOUT_S):
            with tempfile.TemporaryFile() as archive:  # which has no name, so a killed run leaves none
                await asyncio.to_thread(pack, folder, archive)
                put = functools.partial(_put, container=name, archive=archive)
                await engine.call_long("fill a volume", put, FILL_TIMEOUT_S)
    finally:
        await engine.remove(name)
    return name


async def _lock(engine: Engine, name: str, settings: dict[str, Json]) -> None:
    """Create the container; another run's with that name is waited for. Raises InfraError when that takes too long."""
    until_s = time.monotonic() + FILL_TIMEOUT_S
    while True:
        try:
            await engine.create(settings, name)
            return
        except EngineError as error:
            if error.status != 409:
                raise
            engine.names.discard(name)  # another's
            for owned in await engine.owned():
                if owned.name == name and is_orphan(owned.owner):
                    await engine.remove(owned.container_id)
            if time.monotonic() > until_s:
                raise InfraError(
                    f"volume {name} at {engine.url} is being filled by another run, for too long"
                ) from error
        await asyncio.sleep(FILL_AGAIN_S)


async def are_kept(engine: Engine, names: set[str]) -> bool:
    """Whether they are as we made them: one that was removed comes back empty, without a label, when it is mounted."""
    return names <= await engine.call_long("list volumes", _labelled, LIST_TIMEOUT_S)


async def unused(engine: Engine) -> dict[str, str]:
    """What each cached volume that no container uses was made of, by its name."""
    return await engine.call_long("list volumes", _unused, FILL_TIMEOUT_S)


async def remove(engine: Engine, name: str) -> None:
    """Remove a volume. Raises EngineError where a container uses it."""
    await engine.call_long("remove a volume", lambda client: client.remove_volume(name), FILL_TIMEOUT_S)


def hash_of(folder: Path) -> str:
    """Of names, modes and contents, in hex. Raises UserError for a folder that is missing or can't be read."""
    found = hashlib.sha256()
    try:
        for path, entry in _entries(folder):
            size = 0 if entry.is_symlink() or entry.is_dir() else entry.stat().st_size
            target = str(entry.readlink()) if entry.is_symlink() else ""
            found.update(json.dumps([path, _mode(entry), size, target]).encode() + b"\n")
            if not target and not entry.is_dir():
                with entry.open("rb") as file:
                    while piece := file.read(1 << 20):
                        found.update(piece)
    except OSError as error:
        raise UserError(f"sandbox.options.volumes: {str(folder)!r} can't be read: {error.strerror}") from error
    return found.hexdigest()


def pack(folder: Path, archive: BinaryIO) -> None:
    """Write a folder's contents as a tar file; all of it is root's, for everyone to read."""
    with tarfile.open(fileobj=archive, mode="w") as packed:
        for path, entry in _entries(folder):
            info = packed.gettarinfo(entry, path)
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mode = _mode(entry)
            if info.islnk():  # a second name of a file that is packed already is a file of its own here
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", entry.stat().st_size
            if info.isreg():
                with entry.open("rb") as file:
                    packed.addfile(info, file)
            else:
                packed.addfile(info)
        packed.addfile(tarfile.TarInfo(COMPLETE), BytesIO())
    archive.seek(0)


def _entries(folder: Path) -> Iterator[tuple[str, Path]]:
    """Folders, regular files and links below it, each after its folder."""
    if not folder.is_dir():
        raise UserError(f"sandbox.options.volumes: {str(folder)!r} is no folder of this machine")
    for entry in sorted(folder.rglob("*")):
        mode = entry.lstat().st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            yield str(PurePosixPath(entry.relative_to(folder))), entry


def _mode(entry: Path) -> int:
    if entry.is_symlink():
        return 0o777
    return 0o755 if entry.is_dir() or entry.stat().st_mode & 0o100 else 0o644


def _make(client: APIClient, name: str, labels: dict[str, str]) -> None:
    client.create_volume(name, labels=labels)


def _has(client: APIClient, container: str, path: str) -> bool:
    from docker.errors import NotFound

    try:
        stream, _ = client.get_archive(container, path)
    except NotFound:
        return False
    for _ in stream:
        pass
    return True


def _put(client: APIClient, container: str, archive: BinaryIO) -> None:
    client.put_archive(container, INSIDE, archive)


def _labelled(client: APIClient) -> set[str]:
    return {one["Name"] for one in client.volumes(filters={"label": VOLUME_LABEL}).get("Volumes") or ()}


def _unused(client: APIClient) -> dict[str, str]:
    found = client.volumes(filters={"name": PREFIX, "dangling": True})
    return {one["Name"]: (one.get("Labels") or {}).get(VOLUME_LABEL, "a folder") for one in found.get("Volumes") or ()}
