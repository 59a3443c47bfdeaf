"""The Docker sandbox: finds the engine, keeps a warm pool, grades and runs in it, cleans up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from agentgym.errors import InfraError
from agentgym.sandbox import (
    Capabilities,
    GradeRequest,
    Limits,
    RunResult,
    SandboxUnavailable,
    Session,
    Verdict,
)
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.endpoint import check_url
from agentgym_sandboxes.docker.engine import Engine, EngineFacts
from agentgym_sandboxes.docker.grading import grade_blobs, verdict_of
from agentgym_sandboxes.docker.image import RECIPE, build_image, pull_image
from agentgym_sandboxes.docker.pool import Pool
from agentgym_sandboxes.docker.profile import SettingsOf, container_settings
from agentgym_sandboxes.docker.reaper import is_orphan, owner_label
from agentgym_sandboxes.docker.running import result_of
from agentgym_sandboxes.docker.session_pool import SessionPool
from agentgym_sandboxes.stdio import grade_programs, judges_programs

log = logging.getLogger(__name__)

NOT_STARTED = "the sandbox is not started; use `async with` or await its start()"
PROBE_TIMEOUT_S = 10.0
DEFAULT_LIMITS = Limits()


class DockerBackend:
    """A sandbox that is started once a run. See `DockerConfig` for what can be set."""

    name = "docker"

    def __init__(
        self, config: DockerConfig | None = None, settings_of: SettingsOf = container_settings
    ) -> None:
        self.config = config or DockerConfig()
        self._settings_of = settings_of
        if self.config.engine is not None:
            check_url(self.config.engine)
        self._image = self.config.image or RECIPE.reference
        self._engine: Engine | None = None
        self._pool: Pool | None = None
        self._sessions: SessionPool | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._last_start_s = 0.0
        self._num_reaped = 0

    def supports(self, spec: SandboxSpec) -> bool:
        return (
            not spec.network
            and spec.image in (None, self._image)
            and spec.memory_mib <= self.config.memory_mib
        )

    async def probe(self) -> Capabilities:
        """What it enforces here. Raises SandboxUnavailable when no engine answers or the image is missing."""
        engine = await Engine.connect(self.config.engine, PROBE_TIMEOUT_S)
        try:
            facts = await engine.facts()
            self._check_runtime(facts)
            image = await self._image_id(engine)
        except InfraError as error:
            raise SandboxUnavailable(str(error)) from error
        finally:
            await engine.close()
        return Capabilities(
            backend=self.name,
            detail=f"Docker Engine {facts.version} at {engine.url}, image {self._image} ({image[7:19]})",
            isolated=True,
            full_python=True,
            network_off=True,
            memory_limit=facts.memory_limit,
            process_limit=facts.process_limit,
            per_call_uid=True,
            seccomp=facts.seccomp,
            disk_limit=True,
            sessions=True,
        )

    async def start(self) -> Self:
        """Start the pool. Raises SandboxUnavailable with what to do."""
        if self._pool is not None:
            return self
        engine = self._engine = await Engine.connect(self.config.engine, self.config.engine_timeout_s)
        try:
            facts = await engine.facts()
            self._check_runtime(facts)
            image = await self._image_id(engine)
            await self._reap(engine)
            owner = owner_label()

            async def start_container(
                on_change: Callable[[], None], for_session: bool = False
            ) -> Container:
                container = await Container.start(
                    engine,
                    self.config,
                    image,
                    owner,
                    remapped=facts.remapped,
                    on_change=on_change,
                    settings_of=self._settings_of,
                    for_session=for_session,
                )
                self._last_start_s = container.start_s
                return container

            self._sessions = SessionPool(
                self.config, lambda on_change: start_container(on_change, for_session=True)
            )
            self._pool = Pool(self.config, start_container)
            await self._pool.start()
            self._reaper = asyncio.create_task(self._reap_again(engine))
        except BaseException as error:
            await self.close()
            if isinstance(error, InfraError) and not isinstance(error, SandboxUnavailable):
                raise SandboxUnavailable(f"no sandbox container could be started: {error}") from error
            raise
        return self

    async def close(self) -> None:
        """Remove every container of ours; safe to call twice."""
        reaper, self._reaper = self._reaper, None
        sessions, self._sessions = self._sessions, None
        pool, self._pool = self._pool, None
        engine, self._engine = self._engine, None
        if reaper is not None:
            reaper.cancel()
            await asyncio.gather(reaper, return_exceptions=True)
        if sessions is not None:
            await sessions.close()
        if pool is not None:
            await pool.close()
        if engine is not None:
            await engine.close()

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        """Run a program. Raises InfraError when the sandbox, not the program, failed."""
        blobs = [code.encode("utf-8", "surrogatepass"), stdin.encode("utf-8", "surrogatepass")]
        return result_of(await self._started().call("program", blobs, limits))

    async def grade(self, request: GradeRequest) -> Verdict:
        """Judge a solution: in one round trip, or a program a case. Raises InfraError when the sandbox failed."""
        if judges_programs(request):
            return await grade_programs(request, self.run, self.config.slots)
        frame = await self._started().call("grade", grade_blobs(request), request.limits)
        return verdict_of(frame, request)

    def session(self, *, network: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Session]:
        """A container leased for an episode."""
        if self._sessions is None:
            raise SandboxUnavailable(NOT_STARTED)
        return self._sessions.session(network)

    def metrics(self) -> dict[str, float]:
        pool = self._pool
        if pool is None:
            return {}
        calls = max(1, pool.counts["calls"])
        return {
            "sandbox/calls_total": float(pool.counts["calls"]),
            "sandbox/retries_total": float(pool.counts["retries"]),
            "sandbox/lost_total": float(pool.counts["lost"]),
            "sandbox/dirty_total": float(pool.counts["dirty"]),
            "sandbox/replaced_total": float(pool.counts["replaced"]),
            "sandbox/start_failures_total": float(pool.counts["start_failures"]),
            "sandbox/failed_pings_total": float(pool.counts["failed_pings"]),
            "sandbox/reaped_total": float(self._num_reaped),
            "sandbox/containers_live": float(pool.num_live),
            "sandbox/calls_waiting": float(pool.num_waiting),
            "sandbox/wait_mean_s": pool.wait_s / calls,
            "sandbox/call_mean_s": pool.call_s / calls,
            "sandbox/start_last_s": self._last_start_s,
        }

    async def build(self, say: Callable[[str], None], *, pull: str | None = None) -> str:
        """Pull the image by digest, or build it with debootstrap; its id."""
        engine = await Engine.connect(self.config.engine, self.config.engine_timeout_s)
        try:
            if pull is not None:
                return await pull_image(engine, pull, say)
            return await build_image(engine, self.config.mirror, say)
        finally:
            await engine.close()

    async def clean(self, say: Callable[[str], None]) -> int:
        """Remove the containers of dead owners; how many there were."""
        engine = await Engine.connect(self.config.engine, self.config.engine_timeout_s)
        try:
            return await self._reap(engine, say)
        finally:
            await engine.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _started(self) -> Pool:
        if self._pool is None:
            raise SandboxUnavailable(NOT_STARTED)
        return self._pool

    async def _image_id(self, engine: Engine) -> str:
        image = await engine.image_id(self._image)
        if image is None:
            raise SandboxUnavailable(
                f"the Docker engine at {engine.url} has no image {self._image}. Run `agentgym sandbox build` once."
            )
        return image

    def _check_runtime(self, facts: EngineFacts) -> None:
        runtime = self.config.runtime
        if runtime is not None and runtime not in facts.runtimes:
            raise SandboxUnavailable(
                f"the Docker engine has no runtime {runtime!r}; it has {', '.join(facts.runtimes)}. Install it, "
                "or leave sandbox.options.runtime out."
            )

    async def _reap(self, engine: Engine, say: Callable[[str], None] = log.info) -> int:
        """Remove containers whose owner is gone."""
        count = 0
        for owned in await engine.owned():
            if is_orphan(owned.owner):
                await engine.remove(owned.container_id)
                say(f"removed container {owned.container_id[:12]} of {owned.owner}, which is gone")
                count += 1
        self._num_reaped += count
        return count

    async def _reap_again(self, engine: Engine) -> None:
        while True:
            await asyncio.sleep(self.config.reap_every_s)
            try:
                await self._reap(engine)
            except InfraError as error:
                log.warning("could not look for containers of dead owners: %s", error)
