"""Control of the Docker engine: the docker SDK in threads of our own, every call with a deadline."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentgym.errors import InfraError
from agentgym.sandbox import SandboxUnavailable
from agentgym.types import Json
from agentgym_sandboxes.docker.attach import AttachRefused, attach
from agentgym_sandboxes.docker.endpoint import Endpoint, Tls, check_url, endpoint_of, usual_urls
from agentgym_sandboxes.docker.profile import LABEL, OWNER_LABEL
from agentgym_sandboxes.docker.tunnel import Tunnel, TunnelError

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")
CONNECT_TIMEOUT_S, REMOTE_CONNECT_TIMEOUT_S, SSH_TIMEOUT_S = 1.5, 5.0, 15.0
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

    def __init__(
        self, client: APIClient, url: str, timeout_s: float, endpoint: Endpoint, tunnel: Tunnel | None
    ) -> None:
        self.url = url
        self._client = client
        self._timeout_s = timeout_s
        self._endpoint = endpoint
        self._tunnel = tunnel
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="docker-engine")

    @classmethod
    async def connect(
        cls, url: str | None, timeout_s: float, *, tls: Tls | None = None, ssh_config: str | None = None
    ) -> Engine:
        """The first engine that answers: the one named, or one in the usual places.

        tls: files for tcp:// addresses; by default those of Docker's own variables. ssh_config: a file for
        OpenSSH instead of the user's own. Raises SandboxUnavailable with all that was tried.
        """
        try:
            import docker  # noqa: F401
        except ImportError:
            raise SandboxUnavailable(
                "the docker package is not installed. Install it with `pip install 'agentgym[docker]'`."
            ) from None
        failures = []
        for candidate in [url] if url else usual_urls():
            tunnel = None
            try:
                if check_url(candidate).scheme == "ssh":
                    tunnel = await Tunnel.open(candidate, max(timeout_s, SSH_TIMEOUT_S), ssh_config)
                endpoint = tunnel.endpoint if tunnel else endpoint_of(candidate, tls)
                client = await asyncio.to_thread(_open, endpoint)
            except (_Refused, TunnelError) as error:
                failures.append(f"{candidate} ({error})")
            else:
                engine, tunnel = cls(client, candidate, timeout_s, endpoint, tunnel), None
                return engine
            finally:
                if tunnel is not None:
                    await tunnel.close()
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

    async def attach(
        self, container: str, protocol_factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Transport:
        """Connect a protocol to the container's standard streams. Before the start, so that nothing is missed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await attach(self._endpoint, self._client.api_version, container, protocol_factory)
        except TimeoutError as error:
            raise EngineError(self._late_text("attach to a container", self._timeout_s)) from error
        except (AttachRefused, OSError) as error:
            raise EngineError(self._failed_text("attach to a container", error)) from error

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
        if self._tunnel is not None:
            await self._tunnel.close()

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
            raise EngineError(self._late_text(what, limit_s)) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise EngineError(self._failed_text(what, error)) from error

    def _late_text(self, what: str, limit_s: float) -> str:
        return f"the Docker engine at {self.url} did not {what} within {limit_s:g} s"

    def _failed_text(self, what: str, error: BaseException) -> str:
        return f"the Docker engine at {self.url} did not {what}: {error}"


class _Refused(Exception):
    """A candidate did not answer."""


def _open(endpoint: Endpoint) -> APIClient:
    import docker
    import requests

    if endpoint.path and not Path(endpoint.path).exists():
        raise _Refused("no such socket")
    tls: object = False
    if endpoint.tls is not None:
        endpoint.tls.check()
        tls = docker.tls.TLSConfig(
            client_cert=(endpoint.tls.cert, endpoint.tls.key), ca_cert=endpoint.tls.ca, verify=True
        )
    timeout_s = CONNECT_TIMEOUT_S if endpoint.path else REMOTE_CONNECT_TIMEOUT_S
    try:
        client = docker.APIClient(base_url=endpoint.base_url, version="auto", timeout=timeout_s, tls=tls)
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
