"""Control of the Docker engine: the docker SDK in threads of our own, every call with a deadline."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import SandboxUnavailable
from agentgym.types import Json
from agentgym_sandboxes.docker.profile import LABEL, OWNER_LABEL

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")
CONNECT_TIMEOUT_S = 1.5
_HOW_TO_START = (
    "Start Docker (`sudo systemctl start docker`, or open Docker Desktop), see that `docker info` answers for "
    "your user, then run `agentgym sandbox build` once."
)


class EngineError(InfraError):
    """The engine refused or did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the engine says about itself."""

    version: str
    memory_limit: bool
    process_limit: bool
    seccomp: bool
    remapped: bool  # uids are mapped into a range of 65536
    runtimes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedContainer:
    container_id: str
    owner: str


class Engine:
    """One engine. `connect` finds it; `close` releases the threads and connections."""

    def __init__(self, client: APIClient, url: str, timeout_s: float) -> None:
        self.url = url
        self._client = client
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="docker-engine")

    @classmethod
    async def connect(cls, url: str | None, timeout_s: float) -> Engine:
        """The first engine that answers. Raises SandboxUnavailable with all that was tried."""
        try:
            import docker  # noqa: F401
        except ImportError:
            raise SandboxUnavailable(
                "the docker package is not installed. Install it with `pip install 'agentgym[docker]'`."
            ) from None
        failures = []
        for candidate in [url] if url else usual_urls():
            try:
                client = await asyncio.to_thread(_open, candidate)
            except _Refused as error:
                failures.append(f"{candidate} ({error})")
            else:
                return cls(client, candidate, timeout_s)
        raise SandboxUnavailable(f"no Docker engine answers; tried {', '.join(failures)}. {_HOW_TO_START}")

    async def facts(self) -> EngineFacts:
        info = await self._call("tell about itself", self._client.info)
        options = " ".join(info.get("SecurityOptions") or ())
        return EngineFacts(
            version=str(info.get("ServerVersion")),
            memory_limit=bool(info.get("MemoryLimit")),
            process_limit=bool(info.get("PidsLimit")),
            seccomp="name=seccomp" in options,
            remapped="name=rootless" in options or "name=userns" in options,
            runtimes=tuple(sorted(info.get("Runtimes") or ())),
        )

    async def image_id(self, reference: str) -> str | None:
        """The image's id, or None when the engine does not have it."""
        from docker.errors import ImageNotFound

        try:
            found = await self._call(f"look up image {reference}", self._client.inspect_image, reference)
        except EngineError as error:
            if isinstance(error.__cause__, ImageNotFound):
                return None
            raise
        return str(found["Id"])

    async def create(self, settings: dict[str, Json], name: str) -> str:
        create = functools.partial(self._client.create_container_from_config, settings, name)
        return str((await self._call("create a container", create))["Id"])

    async def attach(self, container: str) -> socket.socket:
        """A socket on the container's standard streams. Attach before the start, so that nothing is missed."""
        return await self._call("attach to a container", self._attach, container)

    async def start(self, container: str) -> None:
        await self._call("start a container", self._client.start, container)

    async def remove(self, container: str) -> None:
        """Kill and remove it; fine when it is gone already."""
        from docker.errors import APIError

        remove = functools.partial(self._client.remove_container, container, force=True, v=True)
        try:
            await self._call("remove a container", remove)
        except EngineError as error:
            cause = error.__cause__
            if not (isinstance(cause, APIError) and cause.status_code in (404, 409)):
                raise  # 404: gone; 409: being removed

    async def owned(self) -> list[OwnedContainer]:
        """Every sandbox container on the engine, anyone's, whatever its state."""
        found = await self._call(
            "list containers",
            functools.partial(self._client.containers, all=True, filters={"label": [LABEL]}),
        )
        return [
            OwnedContainer(container_id=c["Id"], owner=(c.get("Labels") or {}).get(OWNER_LABEL, ""))
            for c in found
        ]

    async def pull(self, reference: str, timeout_s: float) -> None:
        await self._call(f"pull {reference}", self._client.pull, reference, timeout_s=timeout_s)

    async def tag(self, image: str, repository: str, tag: str) -> None:
        await self._call("tag an image", functools.partial(self._client.tag, image, repository, tag))

    async def import_archive(self, archive: Path, repository: str, tag: str, timeout_s: float) -> None:
        """Make an image of a tar file of a root file system."""
        load = functools.partial(self._client.import_image, str(archive), repository=repository, tag=tag)
        await self._call("import an image", load, timeout_s=timeout_s)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._client.close)

    def _attach(self, container: str) -> socket.socket:
        params = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}
        raw = self._client.attach_socket(container, params=params)
        stream = socket.socket(fileno=os.dup(raw.fileno()))  # ours: the SDK's goes with its response
        stream.setblocking(False)
        getattr(raw, "_response", raw).close()
        return stream

    async def _call(
        self, what: str, function: Callable[..., T], *args: object, timeout_s: float | None = None
    ) -> T:
        """Run an SDK call in a thread. Raises EngineError, its cause the SDK's, when it fails or takes too long."""
        import docker.errors
        import requests

        limit_s = self._timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit_s):
                return await loop.run_in_executor(self._threads, functools.partial(function, *args))
        except TimeoutError as error:
            raise EngineError(
                f"the Docker engine at {self.url} did not {what} within {limit_s:g} s"
            ) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise EngineError(f"the Docker engine at {self.url} did not {what}: {error}") from error


class _Refused(Exception):
    """A candidate did not answer."""


def _open(url: str) -> APIClient:
    import docker
    import requests

    if url.startswith("unix://") and not Path(url.removeprefix("unix://")).exists():
        raise _Refused("no such socket")
    try:
        client = docker.APIClient(base_url=url, version="auto", timeout=CONNECT_TIMEOUT_S)
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise _Refused(_short(error)) from error
    client.timeout = None  # each call's deadline is ours
    return client


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    for known in ("Permission denied", "Connection refused", "timed out", "Name or service not known"):
        if known.lower() in text.lower():
            return known.lower()
    return text[:160]


def usual_urls() -> list[str]:
    """Where engines listen: as the docker command is told by its own variable, else the usual sockets."""
    told = os.environ.get("DOCKER_HOST")  # Docker's own convention: its users expect it to be heeded
    if told:
        return [told]
    home, runtime = Path.home(), os.environ.get("XDG_RUNTIME_DIR")
    paths: Iterable[Path] = [Path("/var/run/docker.sock")]
    if runtime:
        paths = [*paths, Path(runtime, "docker.sock")]
    paths = [*paths, home / ".docker/run/docker.sock", home / ".docker/desktop/docker.sock"]
    return [f"unix://{path}" for path in paths]


def check_url(url: str | None) -> None:
    """Refuse what the attach stream can't go over."""
    if url is not None and not url.startswith(("unix://", "tcp://")):
        raise UserError(
            f"sandbox.options.engine is {url!r}; give unix:///path/to/docker.sock or tcp://host:port"
        )
