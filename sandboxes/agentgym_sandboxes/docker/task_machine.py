"""A task's container, beside its session: files through the engine, and its file system as an image."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import tarfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from agentgym.errors import UserError
from agentgym.sandbox import (
    DEFAULT_LIMITS,
    FileChange,
    FileRefused,
    FrozenMachine,
    Limits,
    Machine,
    MachineFiles,
    RunResult,
    Stream,
)
from agentgym.types import Json
from agentgym_sandboxes.docker.archives import checked_path, file_of, packed, tree_of
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.failures import EngineError
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.image_store import remove_image
from agentgym_sandboxes.docker.profile import LABEL, ORIGIN_LABEL, OWNER_LABEL

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)
T = TypeVar("T")
FILES_TIMEOUT_S = 300.0
FREEZE_TIMEOUT_S = 600.0
MAX_CHANGES = 100_000
REMOVE_WITHIN_S, REMOVE_AGAIN_S = 30.0, 0.05
_KINDS: tuple[Literal["changed", "added", "deleted"], ...] = ("changed", "added", "deleted")
Exec = Callable[[Mapping[str, object], str | Sequence[str], str, str, Limits], Awaitable[RunResult]]
"""See `DockerSession.exec_with`."""
Talk = Callable[[Sequence[str], str, Mapping[str, str], str, str], AbstractAsyncContextManager[Stream]]
"""See `Talks.open`."""


class ContainerFiles(MachineFiles):
    """Files of a container, running or not, that `name` gives."""

    def __init__(self, engine: Engine, name: Callable[[], Awaitable[str]]) -> None:
        self._engine = engine
        self._name = name

    async def get_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Raises FileRefused."""
        return await self._taken(path, lambda pieces, at: file_of(pieces, at, max_bytes))

    async def get(
        self, path: str, *, max_bytes: int = 64 << 20, exclude: Sequence[str] = (), keep_links: bool = False
    ) -> bytes:
        """Raises FileRefused."""
        take = functools.partial(tree_of, max_bytes=max_bytes, exclude=exclude, keep_links=keep_links)
        return await self._taken(path, take)

    async def _taken(self, path: str, take: Callable[[Iterator[bytes], str], T]) -> T:
        at = checked_path(path)
        name = await self._name()

        def fetch(client: APIClient) -> T:
            answer = client._get(client._url("/containers/{0}/archive", name), params={"path": at}, stream=True)
            try:
                client._raise_for_status(answer)
                return take(answer.iter_content(1 << 20), at)
            except tarfile.TarError as error:
                raise FileRefused(f"{path!r} could not be read: {error}") from error
            finally:  # the rest of what is too large never comes
                answer.close()

        try:
            return await self._engine.call_long(f"hand over {path}", fetch, FILES_TIMEOUT_S)
        except EngineError as error:
            if error.status == 404:
                raise FileRefused(f"there is no {path!r} in the container") from error
            raise


class DockerMachine(ContainerFiles, Machine):
    """exec: of its session. owner: the label of what is ours. disk_mib: the most that is frozen; 0 is no bound."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        image: Image,
        owner: str,
        disk_mib: int,
        exec: Exec,
        talk: Talk,
        end_processes: Callable[[], Awaitable[None]],
    ) -> None:
        async def container() -> str:
            return name

        super().__init__(engine, container)
        self._container = name
        self._image = image
        self._owner = owner
        self._disk_mib = disk_mib
        self._exec = exec
        self._talk = talk
        self._end_processes = end_processes

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str = "",
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        folder: str = ".",
        limits: Limits = DEFAULT_LIMITS,
    ) -> RunResult:
        """Raises UserError for a user that the image does not have."""
        return await self._exec({"user": user, "env": dict(env or {})}, command, stdin, folder, limits)

    def talk(
        self,
        command: Sequence[str],
        *,
        user: str = "",
        env: Mapping[str, str] | None = None,
        folder: str = ".",
        errors: str = "/dev/null",
    ) -> AbstractAsyncContextManager[Stream]:
        """Raises InfraError, and UserError for a user that the image does not have."""
        return self._talk(command, user, env or {}, folder, errors)

    async def put(
        self, folder: str, files: bytes | Mapping[str, bytes] | Path, *, replace: bool = False, owner: int = 0
    ) -> None:
        """Raises FileRefused, and UserError for what is neither files nor an archive."""
        archive = packed(checked_path(folder), files, replace=replace, owner=owner)
        await self._engine.call_long(
            f"put files into {folder}",
            lambda client: client.put_archive(self._container, "/", archive),
            FILES_TIMEOUT_S,
        )

    async def end_processes(self) -> None:
        """Raises SandboxDirty."""
        await self._end_processes()

    @asynccontextmanager
    async def freeze(self) -> AsyncIterator[FrozenMachine]:
        """Raises FileRefused when there is more than disk_mib, UserError for an image with volumes."""
        if self._image.volumes:
            raise UserError(
                f"the image keeps {', '.join(self._image.volumes)} on a volume (VOLUME of its Dockerfile), which a "
                "frozen machine would lack; make an image without it"
            )
        image, changes = await self._engine.call_long("freeze a container", self._commit, FREEZE_TIMEOUT_S)
        frozen = _Frozen(self._engine, image, changes, self._owner)
        try:
            yield frozen
        finally:
            await frozen.close()

    @asynccontextmanager
    async def untouched(self) -> AsyncIterator[MachineFiles]:
        """Read from a container of the image that is never started."""
        files = _Frozen(self._engine, self._image.image_id, (), self._owner)
        try:
            yield files
        finally:
            await files.close_reader()

    def _commit(self, client: APIClient) -> tuple[str, tuple[FileChange, ...]]:
        if self._disk_mib:
            url = client._url("/containers/{0}/json", self._container)
            size = client._result(client._get(url, params={"size": 1}), True)["SizeRw"] or 0
            if size > self._disk_mib << 20:
                raise FileRefused(
                    f"the container's files grew by {size >> 20} MiB; the task allows {self._disk_mib} MiB (disk_mib)"
                )
        image = self._image
        origin = {"user": image.user, "folder": image.folder, "env": [*image.env]}
        labels = {LABEL: "1", OWNER_LABEL: self._owner, ORIGIN_LABEL: json.dumps(origin)}
        committed = str(client.commit(self._container, conf={"Labels": labels})["Id"])
        found = client.diff(self._container) or ()
        changes = [FileChange(path=str(one["Path"]), kind=_KINDS[one["Kind"]]) for one in found[:MAX_CHANGES]]
        return committed, tuple(sorted(changes, key=lambda change: change.path))


class _Frozen(ContainerFiles, FrozenMachine):
    """Its files are read from a container of it that is never started, made when the first is asked for."""

    def __init__(self, engine: Engine, image: str, changes: tuple[FileChange, ...], owner: str) -> None:
        super().__init__(engine, self._reader)
        self.image = image
        self.changes = changes
        self._owner = owner
        self._made = ""

    async def close_reader(self) -> None:
        if self._made:
            await self._engine.remove(self._made)

    async def close(self) -> None:
        await self.close_reader()
        until_s = time.monotonic() + REMOVE_WITHIN_S
        while True:
            try:
                await remove_image(self._engine, self.image)
                return
            except EngineError as error:  # a session in it has just ended, and its container is being removed
                if error.status != 409 or time.monotonic() > until_s:
                    log.warning("a frozen machine stays until this process ends: %s", error)
                    return
            await asyncio.sleep(REMOVE_AGAIN_S)

    async def _reader(self) -> str:
        if not self._made:
            name = self._made = f"agentgym-{uuid.uuid4().hex[:12]}"
            settings: dict[str, Json] = {
                "Image": self.image,
                "Entrypoint": cast("list[Json]", ["never-started"]),
                "Labels": {LABEL: "1", OWNER_LABEL: self._owner},
                "NetworkDisabled": True,
                "HostConfig": {"NetworkMode": "none"},
            }
            await self._engine.create(settings, name)
        return self._made
