"""Images that tasks name or bring: pulled or built once on an engine, by one process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.errors import InfraError
from agentgym_sandboxes.docker.contexts import BuildContext
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.failures import EngineDiskFull, EngineError, EngineUnreachable, ImageUnusable
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.image_store import BASES_LABEL, CONTEXT_LABEL, ImageStore, remove_steps
from agentgym_sandboxes.docker.lasting import lasting

if TYPE_CHECKING:
    from docker import APIClient

LOCK_AGAIN_S = 0.1
MAX_LINES = 20
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"^ ---> ([0-9a-f]{12,64})$", re.MULTILINE)


class TaskImages:
    """Provides images on one engine. architecture: the engine's own. store: where they are counted and evicted."""

    def __init__(self, engine: Engine, identity: str, architecture: str, store: ImageStore) -> None:
        self._engine = engine
        self._identity = identity
        self._architecture = architecture
        self._store = store
        self._providing: dict[str, asyncio.Task[Image]] = {}
        self._broken: dict[str, ImageUnusable] = {}  # builds that failed: again, they would fail again

    async def provide(self, what: str | BuildContext, timeout_s: float) -> Image:
        """The image that the engine has, was asked to pull, or built.

        Raises ImageUnusable with the engine's last lines, InfraError for a full disk or an engine that fails.
        """
        key = str(what)
        if key in self._providing:
            return await asyncio.shield(self._providing[key])
        make = self._named(what, timeout_s) if isinstance(what, str) else self._built(what, timeout_s)
        return await lasting(self._providing, key, make)

    async def _named(self, name: str, timeout_s: float) -> Image:
        image = await self._engine.image(name)
        if image is None:
            image = await self._pull(name, timeout_s)
        else:
            await self._store.used(image, self._store.marker_of(name))
        return self.checked(image, name)

    async def _pull(self, name: str, timeout_s: float) -> Image:
        missing = f"the Docker engine at {self._engine.url} has no image {name}, which a task names"
        if name.startswith("sha256:"):
            raise ImageUnusable(f"{missing} by its id; build it or load it there")
        async with self._locked(name):
            if await self._engine.image(name) is None:
                try:
                    await self._engine.call_long(
                        f"pull {name}", lambda client: _pull(client, name, time.monotonic() + timeout_s), timeout_s
                    )
                except EngineError as error:
                    _pass_on(error)
                    raise ImageUnusable(f"{missing}, and can't pull it: {error}. Build it or load it there") from error
            image = await self._engine.image(name)
            if image is None:
                raise ImageUnusable(f"{missing}: it was pulled, and removed again at once")
            await self._store.made(image, self._store.marker_of(name))
            return image

    async def _built(self, context: BuildContext, timeout_s: float) -> Image:
        bases = [await self._named(base, timeout_s) for base in await asyncio.to_thread(context.bases)]
        key = await asyncio.to_thread(context.key, [base.image_id for base in bases])
        if key in self._broken:
            raise self._broken[key]
        tag = self._store.tag_of(key)
        async with self._locked(key):
            image = await self._engine.image(tag)
            if image is not None:
                await self._store.used(image, tag)
                return self.checked(image, str(context))
            try:
                await self._build(context, tag, [base.image_id for base in bases], timeout_s)
            except EngineError as error:
                _pass_on(error)
                said = ImageUnusable(f"no image was built from {context}: {error}")
                if "non-zero code" in str(error):  # of the Dockerfile; else the engine's trouble, which may pass
                    self._broken[key] = said
                raise said from error
            image = await self._engine.image(tag)
            if image is None:
                raise InfraError(f"the image of {context} was built, and removed again at once")
            await self._store.made(image, tag)
            return self.checked(image, str(context))

    async def _build(self, context: BuildContext, tag: str, bases: list[str], timeout_s: float) -> None:
        with tempfile.TemporaryFile() as archive:  # which has no name, so a killed run leaves none
            await asyncio.to_thread(context.pack, archive)
            until_s = time.monotonic() + timeout_s

            def build(client: APIClient) -> None:
                said = client.build(
                    fileobj=archive, custom_context=True, dockerfile=context.dockerfile, tag=tag, decode=True, rm=True,
                    forcerm=True, labels={CONTEXT_LABEL: context.folder, BASES_LABEL: json.dumps(bases)},
                )  # fmt: skip
                steps: list[str] = []
                try:
                    _read(said, "stream", until_s, steps)
                except BaseException:
                    for step in reversed(steps):
                        remove_steps(client, step, set(bases))
                    raise

            await self._engine.call_long("build an image", build, timeout_s)

    def checked(self, image: Image, name: str) -> Image:
        """Raises ImageUnusable for another architecture than the engine's."""
        if image.architecture != self._architecture:
            raise ImageUnusable(
                f"image {name} is for {image.architecture}, and the engine at {self._engine.url} runs "
                f"{self._architecture}; name one for {self._architecture}"
            )
        return image

    @contextlib.asynccontextmanager
    async def _locked(self, key: str) -> AsyncIterator[None]:
        """Among all processes of this machine that make the same on this engine; the lock ends with its process."""
        name = hashlib.sha256(f"{self._identity} {key}".encode()).hexdigest()[:24]
        folder = Path(tempfile.gettempdir()) / f"agentgym-images-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while not _taken(fd):  # noqa: ASYNC110  # another process has it
                await asyncio.sleep(LOCK_AGAIN_S)
            yield
        finally:
            os.close(fd)


def _pass_on(error: EngineError) -> None:
    """Raises it when the engine failed, or its disk is full; returns for an image's own fault, as taking too long."""
    is_down = isinstance(error, EngineUnreachable) and not isinstance(error.__cause__, TimeoutError)
    if is_down or isinstance(error, EngineDiskFull):
        raise error


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pull(client: APIClient, name: str, until_s: float) -> None:
    has_tag = ":" in name.rpartition("/")[2] or "@" in name
    said = client.pull(name if has_tag else f"{name}:latest", stream=True, decode=True)
    _read(said, "status", until_s)


def _read(said: Iterable[dict[str, object]], field: str, until_s: float, steps: list[str] | None = None) -> None:
    """Read what the engine says while it works. Raises APIError with its last lines, TimeoutError.

    steps: gets the ids of the images that a build makes on its way.
    """
    from docker.errors import APIError

    lines: list[str] = []
    failed = ""
    for one in said:  # to its end, so that the connection ends
        failed = failed or str(one.get("error") or "").strip()
        if steps is not None:
            steps += _STEP.findall(str(one.get(field) or ""))
        lines = [*lines, *_COLOR.sub("", str(one.get(field) or "")).rstrip().splitlines()][-MAX_LINES:]
        if time.monotonic() > until_s:
            raise TimeoutError
    if failed:
        raise APIError("\n".join([failed, *lines]))
