"""Control of the Docker engine: the docker SDK in threads of our own, every call with a deadline."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentgym.errors import UserError, pip_install
from agentgym.sandbox import SandboxUnavailable
from agentgym.types import Json
from agentgym_sandboxes.docker.attach import RequestRefused, attach, ping, removed
from agentgym_sandboxes.docker.client import NoAnswer, open_client
from agentgym_sandboxes.docker.endpoint import Endpoint, Tls, check_url, endpoint_of, usual_urls
from agentgym_sandboxes.docker.facts import EngineFacts, facts_of
from agentgym_sandboxes.docker.failures import EngineDiskFull, EngineError, EngineUnreachable, NoEngineAnswers
from agentgym_sandboxes.docker.image_facts import Image, image_of
from agentgym_sandboxes.docker.inherited import end_with_us
from agentgym_sandboxes.docker.lasting import lasting
from agentgym_sandboxes.docker.profile import LABEL, OWNER_LABEL
from agentgym_sandboxes.docker.tunnel import Tunnel, TunnelError

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")
SSH_TIMEOUT_S = 15.0
ENDS_WITHIN_S = 2.0
REMOVE_AGAIN_S = (0.1, 0.5, 2.0)
_HOW_TO_START = (
    "Start Docker (`sudo systemctl start docker`, or open Docker Desktop), see that `docker info` answers for "
    "your user, then run `agentgym sandbox build` once."
)
_HOW_TO_BE_LET_IN = (
    "Your user may not talk to it. Join its group, which is as good as root (`sudo usermod -aG docker $USER`, then "
    "log in again), or name an engine of your own with --sandbox.options.engine."
)


def what_to_do(failures: Sequence[str]) -> str:
    """About engines that did not answer: each with its reason."""
    return _HOW_TO_BE_LET_IN if any("permission denied" in one for one in failures) else _HOW_TO_START


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedContainer:
    """A sandbox container, whoever made it. age_s: since its creation, by this host's clock."""

    container_id: str
    name: str
    owner: str
    state: str
    age_s: float


class Engine:
    """One engine. `connect` finds it; `close` releases the threads and connections.

    names: of the containers that were asked for and not yet removed. ends_within_s: how long one that is removed may
    take to end by itself. on_latency: called with the time of each call.
    """

    def __init__(
        self, client: APIClient, url: str, timeout_s: float, endpoint: Endpoint, tunnel: Tunnel | None
    ) -> None:
        self.url = url
        self._client = client
        self._timeout_s = timeout_s
        self._endpoint = endpoint
        self._tunnel = tunnel
        self._ssh_config: str | None = None
        self.names: set[str] = set()
        self.ends_within_s = min(ENDS_WITHIN_S, timeout_s / 2)
        self.on_latency: Callable[[float], None] = lambda seconds: None
        self._creations: dict[str, asyncio.Task[str]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="docker-engine")
        # Of their own: removals that take long would make starts late, and a late engine is left alone.
        self._removers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="docker-engine_remove")

    @classmethod
    async def connect(
        cls, url: str | None, timeout_s: float, *, tls: Tls | None = None, ssh_config: str | None = None
    ) -> Engine:
        """The first engine that answers: the one named, or one in the usual places.

        tls: files for tcp:// addresses; by default those of Docker's own variables. ssh_config: a file for
        OpenSSH instead of the user's own. Raises NoEngineAnswers with all that was tried.
        """
        try:
            import docker  # noqa: F401
        except ImportError:
            raise SandboxUnavailable(
                f"the docker package is not installed. Install it with `{pip_install('docker')}`."
            ) from None
        failures = []
        for candidate in [url] if url else usual_urls():
            tunnel = None
            try:
                if check_url(candidate).scheme == "ssh":
                    tunnel = await Tunnel.open(candidate, max(timeout_s, SSH_TIMEOUT_S), ssh_config)
                endpoint = tunnel.endpoint if tunnel else endpoint_of(candidate, tls)
                client = await asyncio.to_thread(open_client, endpoint, timeout_s)
            except (NoAnswer, TunnelError) as error:
                failures.append(f"{candidate} ({error})")
            else:
                engine, tunnel = cls(client, candidate, timeout_s, endpoint, tunnel), None
                engine._ssh_config = ssh_config
                return engine
            finally:
                if tunnel is not None:
                    await tunnel.close()
        raise NoEngineAnswers(f"no Docker engine answers; tried {', '.join(failures)}. {what_to_do(failures)}")

    @property
    def is_local(self) -> bool:
        """Whether its files are most likely this host's."""
        return bool(self._endpoint.path) and self._tunnel is None

    async def reconnect(self) -> None:
        """Open the tunnel again when it has ended. Raises EngineUnreachable."""
        if self._tunnel is None or self._tunnel.alive:
            return
        old_client, old_tunnel = self._client, self._tunnel
        try:
            tunnel = await Tunnel.open(self.url, max(self._timeout_s, SSH_TIMEOUT_S), self._ssh_config)
        except TunnelError as error:
            raise EngineUnreachable(self._failed_text("let itself be reached", error)) from error
        try:
            self._client = await asyncio.to_thread(open_client, tunnel.endpoint, self._timeout_s)
        except BaseException as error:
            await tunnel.close()
            if isinstance(error, NoAnswer):
                raise EngineUnreachable(self._failed_text("let itself be reached", error)) from error
            raise
        self._tunnel, self._endpoint = tunnel, tunnel.endpoint
        try:
            await asyncio.to_thread(old_client.close)
        finally:
            await old_tunnel.close()

    async def facts(self) -> EngineFacts:
        return facts_of(await self._call("report about itself", self._client.info))

    async def ping(self, timeout_s: float) -> None:
        """Raises EngineUnreachable when it does not answer."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                await ping(self._endpoint)
        except TimeoutError as error:
            raise EngineUnreachable(self._late_text("answer a ping", timeout_s)) from error
        except (RequestRefused, OSError, UserError) as error:  # the last: its TLS files are being replaced
            raise EngineUnreachable(self._failed_text("answer a ping", error)) from error
        self.on_latency(time.monotonic() - began_s)

    async def image(self, reference: str) -> Image | None:
        """The image of that name, id or digest, or None when the engine does not have it."""
        from docker.errors import ImageNotFound

        try:
            found = await self._call(f"look up image {reference}", self._client.inspect_image, reference)
        except EngineError as error:
            if isinstance(error.__cause__, ImageNotFound):
                return None
            raise
        return image_of(found)

    async def create(self, settings: dict[str, Json], name: str) -> str:
        """The id of a new container. Goes on when its caller is cancelled; `remove` waits for it."""
        self.names.add(name)  # first: a create that times out may still be carried out
        create = functools.partial(self._client.create_container_from_config, settings, name)

        async def created() -> str:
            return str((await self._call("create a container", create))["Id"])

        return await lasting(self._creations, name, created())

    async def attach(self, container: str, protocol_factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connect a protocol to the container's standard streams. Before the start, so that nothing is missed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                version = self._client.api_version
                transport = await attach(self._endpoint, version, container, protocol_factory)
        except TimeoutError as error:
            raise EngineUnreachable(self._late_text("attach to a container", self._timeout_s)) from error
        except RequestRefused as error:
            raise EngineError(self._failed_text("attach to a container", error)) from error
        except (OSError, UserError) as error:
            raise EngineUnreachable(self._failed_text("attach to a container", error)) from error
        end_with_us(transport)
        return transport

    async def start(self, container: str) -> None:
        await self._call("start a container", self._client.start, container)

    async def remove(self, container: str) -> None:
        """Return when it is gone, killed if need be; fine when it is gone already.

        Goes on when its caller is cancelled. Who asks meanwhile waits for the same removal, and `close` for all.
        """
        if container in self._removals:
            await asyncio.shield(self._removals[container])
        else:
            await lasting(self._removals, container, self._remove(container))

    async def _remove(self, container: str) -> None:
        """An agent whose input was closed ends, and its engine removes it. A kill or a removal of ours that meets
        that one may hang, or leave a container that is being removed forever; so they only come after a while.
        """
        if container in self._creations:  # else it would outlive its removal
            await asyncio.wait([self._creations[container]])
        remove = functools.partial(self._client.remove_container, container, force=True, v=True)
        try:
            if await self._ends_by_itself(container):
                return
            for wait_s in (*REMOVE_AGAIN_S, None):
                try:
                    await self._call("remove a container", remove, threads=self._removers)
                    return
                except EngineError as error:
                    status = error.status
                    if status in (404, 409):  # gone; being removed
                        return
                    if status != 500 or wait_s is None:
                        raise
                    await asyncio.sleep(wait_s)
        finally:
            self.names.discard(container)  # what is left of it in spite of this is found by the next sweep

    async def _ends_by_itself(self, container: str) -> bool:
        """Whether a container is gone in time by itself. An engine that can't report that is not asked again."""
        inspect = functools.partial(self._client.inspect_container, container)
        try:
            found = await self._call("look at a container", inspect, threads=self._removers)
            if (found.get("State") or {}).get("Status") in ("created", "dead"):
                return False
            async with asyncio.timeout(self.ends_within_s):
                await removed(self._endpoint, self._client.api_version, container)
        except EngineUnreachable:
            raise
        except EngineError as error:
            return error.status == 404
        except (RequestRefused, TimeoutError, OSError):
            return False
        return True

    async def owned(self) -> list[OwnedContainer]:
        """Every sandbox container on the engine, anyone's, but those that it is removing already.

        It may list such a one forever when two removals met; nothing runs in it, and nothing removes it.
        """
        found = await self._call(
            "list containers", functools.partial(self._client.containers, all=True, filters={"label": [LABEL]})
        )
        now_s = time.time()
        return [
            OwnedContainer(
                container_id=c["Id"],
                name=(c.get("Names") or [""])[0].lstrip("/"),
                owner=(c.get("Labels") or {}).get(OWNER_LABEL, ""),
                state=str(c.get("State")),
                age_s=now_s - float(c.get("Created") or now_s),
            )
            for c in found
            if c.get("State") != "removing"
        ]

    async def pull(self, reference: str, timeout_s: float) -> None:
        await self.call_long(f"pull {reference}", lambda client: client.pull(reference), timeout_s)

    async def tag(self, image: str, repository: str, tag: str) -> None:
        await self._call("tag an image", functools.partial(self._client.tag, image, repository, tag))

    async def import_archive(self, archive: Path, repository: str, tag: str, timeout_s: float) -> None:
        """Make an image of a tar file of a root file system."""
        await self.call_long(
            "import an image",
            lambda client: client.import_image(str(archive), repository=repository, tag=tag),
            timeout_s,
        )

    async def save(self, reference: str, archive: Path, timeout_s: float) -> None:
        """Write an image into a file that `load` of another engine takes."""

        def save(client: APIClient) -> None:
            with archive.open("wb") as file:
                for piece in client.get_image(reference):
                    file.write(piece)

        await self.call_long(f"save image {reference}", save, timeout_s)

    async def load(self, archive: Path, timeout_s: float) -> None:
        """Take an image with its names and its id as another engine saved it."""

        def load(client: APIClient) -> None:
            with archive.open("rb") as file:
                for _ in client.load_image(file):
                    pass

        await self.call_long("load an image", load, timeout_s)

    async def close(self) -> None:
        """Closes after the removals that are under way."""
        if self._removals:
            await asyncio.wait(list(self._removals.values()))
        for threads in (self._threads, self._removers):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._client.close)
        if self._tunnel is not None:
            await self._tunnel.close()

    async def _call(
        self, what: str, function: Callable[..., T], *args: object, threads: ThreadPoolExecutor | None = None
    ) -> T:
        """Run an SDK call in a thread. Raises EngineError, its cause the SDK's."""
        began_s = time.monotonic()

        def call() -> T:
            self._endpoint.check_listening(self._timeout_s)
            return function(*args)

        result = await self._in_thread(what, call, self._timeout_s, threads or self._threads)
        self.on_latency(time.monotonic() - began_s)
        return result

    async def call_long(self, what: str, function: Callable[[APIClient], T], timeout_s: float) -> T:
        """A call that takes minutes, on a connection with such a deadline. Our process may end before it does."""

        def call() -> T:
            client = open_client(self._endpoint, timeout_s)
            try:
                return function(client)
            finally:
                client.close()

        return await self._in_thread(what, call, timeout_s, None)

    async def _in_thread(
        self, what: str, function: Callable[[], T], timeout_s: float, threads: ThreadPoolExecutor | None
    ) -> T:
        """threads: None starts one for this call alone."""
        import docker.errors
        import requests

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                return await (_apart(function) if threads is None else loop.run_in_executor(threads, function))
        except (TimeoutError, requests.Timeout) as error:
            raise EngineUnreachable(self._late_text(what, timeout_s)) from error
        except docker.errors.APIError as error:
            text = self._failed_text(what, error.explanation or error)  # without the URL of the call
            full = any(words in text.lower() for words in ("no space left on device", "disk quota exceeded"))
            raise (EngineDiskFull if full else EngineError)(text) from error
        except (docker.errors.DockerException, requests.RequestException, OSError, NoAnswer) as error:
            raise EngineUnreachable(self._failed_text(what, error)) from error

    def _late_text(self, what: str, limit_s: float) -> str:
        return f"the Docker engine at {self.url} did not {what} within {limit_s:g} s"

    def _failed_text(self, what: str, error: object) -> str:
        return f"the Docker engine at {self.url} did not {what}: {error}"


def _apart(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run it in a thread that the end of our process does not wait for, as it does for those of a pool."""
    future: Future[T] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    threading.Thread(target=run, name="docker-engine_long", daemon=True).start()
    return asyncio.wrap_future(future)
