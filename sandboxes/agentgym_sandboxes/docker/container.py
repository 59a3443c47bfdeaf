"""One warm container: the agent on its attach stream, with many calls under way at a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import Limits, SandboxDirty, SandboxLost, SandboxUnavailable
from agentgym.types import Json
from agentgym_sandboxes.agent import frames
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.failures import EngineError
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.machine import Machine
from agentgym_sandboxes.docker.profile import SettingsOf, container_settings, session_settings
from agentgym_sandboxes.docker.task_machine import DockerMachine, Exec, Talk
from agentgym_sandboxes.host.answers import Crowded, NotAlone
from agentgym_sandboxes.host.bundle import agent_argument
from agentgym_sandboxes.host.running import wire_limits

BACKSTOP_S = 6.0  # past a call's wall limit, or its cancel: the agent has 3 s to kill and sweep
BUSY_S = 0.5  # of a timer that fires too late by so much: our own loop was busy
_STREAM_HEADER = struct.Struct(">BxxxI")
_STDOUT = 1


class AgentStream(asyncio.Protocol):
    """The engine's stream of a container's output, cut into the agent's frames."""

    def __init__(self, on_frame: Callable[[frames.Frame], None], on_lost: Callable[[str], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._frames = frames.FrameReader()
        self.stderr = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _STREAM_HEADER.size:
            stream, size = _STREAM_HEADER.unpack_from(self._buffer)
            end = _STREAM_HEADER.size + size
            if len(self._buffer) < end:
                return
            piece = bytes(self._buffer[_STREAM_HEADER.size : end])
            del self._buffer[:end]
            if stream != _STDOUT:
                self.stderr = (self.stderr + piece)[-4000:]
                continue
            try:
                complete = self._frames.feed(piece)
            except frames.FrameError as error:
                self._on_lost(f"its agent sent {error}")
                return
            for frame in complete:
                self._on_frame(frame)

    def connection_lost(self, error: Exception | None) -> None:
        said = self.stderr.decode(errors="replace").strip()
        self._on_lost(f"its stream ended{f': {error}' if error else ''}{f'; it said: {said}' if said else ''}")


class Container:
    """A started container. `reserved` counts the slots in use; `lost` says why it can't be used any more.

    machine: of a session in an image that a task named. cause: of the loss, as it is counted: lost, dirty, ping or
    backstop; closed when we asked for it.
    """

    def __init__(self, engine: Engine, config: DockerConfig, on_change: Callable[[], None]) -> None:
        self.name = f"agentgym-{uuid.uuid4().hex[:12]}"
        self.reserved = 0
        self.uses = 0
        self.started_s = time.monotonic()
        self.start_s = 0.0
        self.lost: str | None = None
        self.machine: Machine | None = None
        self._owner = ""
        self.cause = "lost"
        self._engine = engine
        self._config = config
        self._on_change = on_change
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[frames.Frame]] = {}
        self._events: dict[str, Callable[[frames.Frame], None]] = {}
        # an operation whose caller was cancelled, and when it must have ended
        self._given_up: tuple[asyncio.Future[frames.Frame], float] | None = None
        self._stream = AgentStream(self._take, self._lose)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def start(
        cls,
        engine: Engine,
        config: DockerConfig,
        image: str,
        owner: str,
        *,
        remapped: bool,
        on_change: Callable[[], None],
        settings_of: SettingsOf = container_settings,
        for_session: bool = False,
        mounts: Sequence[Json] = (),
        machine: Machine | None = None,
    ) -> Self:
        """Create it and wait for its agent's hello. Leaves nothing behind when it fails. mounts: of a session's."""
        began_s = time.monotonic()
        container = cls(engine, config, on_change)
        container.machine, container._owner = machine, owner
        loop = asyncio.get_running_loop()
        hello = container._pending[0] = loop.create_future()
        hello.add_done_callback(lambda future: future.cancelled() or future.exception())
        settings = settings_of(config, image, owner, remapped)
        if for_session:
            settings = session_settings(config, settings, mounts)
        if machine is not None:
            settings = machine.settings(settings)
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await engine.create(settings, container.name)
                container._transport = await engine.attach(container.name, lambda: container._stream)
                await engine.start(container.name)
                if machine is not None:
                    container._send(agent_argument().encode())
                _check_hello(await hello, config)
        except BaseException as error:
            if not hello.done():
                hello.cancel()
            with contextlib.suppress(InfraError):  # the first error is the one to report
                await container.close()  # by its name: a create that timed out may have been carried out
            if isinstance(error, TimeoutError):
                what = f", which is to import {', '.join(config.preload)}," if config.preload else ""
                raise EngineError(f"a container{what} was not ready within {config.start_timeout_s:g} s") from error
            raise
        container.started_s = time.monotonic()
        container.start_s = container.started_s - began_s
        return container

    @property
    def usable(self) -> bool:
        return self.lost is None and not self.worn

    @property
    def worn(self) -> str:
        """Why it is to be replaced when another is ready: uses, age, or nothing. It serves until then."""
        if self.uses >= self._config.max_uses:
            return "uses"
        return "age" if time.monotonic() - self.started_s >= self._config.max_age_s else ""

    async def call(self, op: str, blobs: Sequence[bytes], limits: Limits, *, alone: bool = False) -> frames.Frame:
        """One call, in a slot that was reserved. The slot is given back when the agent has answered.

        alone: all other slots are reserved for it too.

        Raises SandboxLost when the container is gone, SandboxDirty when it had to be thrown away, UserError for
        what is too large to be sent.
        """
        number = next(self._numbers)
        try:
            wire = wire_limits(limits, self._config.memory_mib)
            data = _frame({"op": op, "limits": wire, "alone": alone, "id": number}, blobs)
        except BaseException:  # it is never sent
            self.reserved -= 1
            self._on_change()
            raise
        self.uses += 1
        answer = self._ask(number, data)
        answer.add_done_callback(self._give_back)
        try:
            frame = await _within(limits.wall_s + BACKSTOP_S, answer)
        except TimeoutError:
            self._lose("its agent did not answer in time", "backstop")
            raise SandboxLost(f"container {self.name}: {self.lost}") from None
        except asyncio.CancelledError:
            if self.lost is None and not answer.done():
                self._send(frames.encode({"op": "cancel", "id": number}))
                self._expect_end(answer)
            raise
        reason = frame.header.get("reason")
        if reason == "dirty":
            self._lose("a call left something that could not be removed", "dirty")
            raise SandboxDirty(f"container {self.name}: {self.lost}")
        if reason == "no_process":
            raise SandboxLost(f"container {self.name}: no process could be started in it")
        if reason == "shared":
            raise NotAlone(f"container {self.name}: its tests use what calls share")
        if reason == "crowded":
            raise Crowded(f"container {self.name}: calls beside it took the room that it was allowed")
        return frame

    async def ping(self) -> None:
        """Raises SandboxLost when the agent does not answer in time."""
        await self.ask("ping", {}, (), self._config.ping_timeout_s)

    async def ask(
        self, op: str, header: frames.Header, blobs: Sequence[bytes], timeout_s: float, *, cancel: str | None = None
    ) -> frames.Frame:
        """The agent's answer to an operation that takes no slot. cancel: the one that ends it before its time.

        Raises SandboxLost when the container is gone or does not answer in time.
        """
        number = next(self._numbers)
        data = _frame({**header, "op": op, "id": number}, blobs)
        if cancel is not None:
            await self._end_of_given_up()
        answer = self._ask(number, data)
        due_s = time.monotonic() + timeout_s
        try:
            frame = await _within(timeout_s, answer)
        except asyncio.CancelledError:
            if cancel is not None and self.lost is None and not answer.done():
                self._send(frames.encode({"op": cancel, "id": number}))
                self._given_up = answer, due_s
            answer.add_done_callback(lambda future: future.cancelled() or future.exception())
            raise
        except TimeoutError:
            cause = "ping" if op == "ping" else "backstop"
            self._lose(f"its agent did not answer {op!r} within {timeout_s:g} s", cause)
            answer.exception()  # seen
            raise SandboxLost(f"container {self.name}: {self.lost}") from None
        if "error" in frame.header:
            raise SandboxLost(f"container {self.name}: its agent refused {op!r}: {frame.header['error']}")
        return frame

    def task_machine(
        self, image: Image, disk_mib: int, exec: Exec, talk: Talk, end_processes: Callable[[], Awaitable[None]]
    ) -> DockerMachine:
        """The container as a task's machine. See `DockerMachine`."""
        return DockerMachine(self._engine, self.name, image, self._owner, disk_mib, exec, talk, end_processes)

    def give_up(self, why: str) -> None:
        """It can't be used any more: what is under way in it fails."""
        self._lose(why)

    def notify(self, op: str, header: frames.Header, blobs: Sequence[bytes] = ()) -> None:
        """An operation without an answer."""
        self._send(frames.encode({**header, "op": op, "id": 0}, blobs))

    def on_event(self, kind: str, handler: Callable[[frames.Frame], None]) -> None:
        """Call handler for each frame that the agent sends unasked, with that `event` in its header."""
        self._events[kind] = handler

    async def close(self) -> None:
        """Remove the container; calls under way fail."""
        self._lose("closed", "closed")
        await self._engine.remove(self.name)

    def _ask(self, number: int, data: bytes) -> asyncio.Future[frames.Frame]:
        answer: asyncio.Future[frames.Frame] = asyncio.get_running_loop().create_future()
        if self.lost is not None:
            answer.set_exception(SandboxLost(f"container {self.name}: {self.lost}"))
            return answer
        self._pending[number] = answer
        self._send(data)
        return answer

    def _expect_end(self, answer: asyncio.Future[frames.Frame]) -> None:
        """A call whose caller has gone must still end, or its slot would be lost with it."""
        loop = asyncio.get_running_loop()

        def check(due_s: float) -> None:
            late_s = loop.time() - due_s
            if late_s > BUSY_S:
                loop.call_later(late_s, check, loop.time() + late_s)
            elif not answer.done():
                self._lose("its agent did not end a cancelled call", "backstop")

        timer = loop.call_later(BACKSTOP_S, check, loop.time() + BACKSTOP_S)
        answer.add_done_callback(lambda _: timer.cancel())

    async def _end_of_given_up(self) -> None:
        """Wait for the end of an operation whose caller was cancelled: one that waits behind it can't be cancelled."""
        if self._given_up is None or self._given_up[0].done():
            return
        answer, due_s = self._given_up
        try:
            await _within(max(0.0, due_s - time.monotonic()), answer)
        except TimeoutError:
            self._lose("its agent did not end a cancelled operation", "backstop")
            raise SandboxLost(f"container {self.name}: {self.lost}") from None

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _take(self, frame: frames.Frame) -> None:
        event, number = frame.header.get("event"), frame.header.get("id")
        if isinstance(event, str):
            handler = self._events.get(event)
            if handler is not None:
                handler(frame)
            return
        if type(number) is not int:
            self._lose("its agent sent an answer to nothing")
            return
        answer = self._pending.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def _give_back(self, answer: asyncio.Future[frames.Frame]) -> None:
        self.reserved -= 1
        if not answer.cancelled():
            answer.exception()  # seen here: the caller may have been cancelled
        self._on_change()

    def _lose(self, why: str, cause: str = "lost") -> None:
        if self.lost is None:
            self.lost, self.cause = why, cause
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(SandboxLost(f"container {self.name}: {self.lost}"))
        self._on_change()


def _check_hello(hello: frames.Frame, config: DockerConfig) -> None:
    """Raises SandboxUnavailable when the agent says that it could not begin."""
    if "error" not in hello.header:
        return
    why = str(hello.header["error"])
    where = " Is what brings it in sandbox.options.packages, or in the image?" if "can't be imported" in why else ""
    raise SandboxUnavailable(
        f"sandbox.options.preload is {list(config.preload)}, but {why}.{where} Leave a module out of preload, and "
        "calls import it themselves."
    )


async def _within(timeout_s: float, answer: asyncio.Future[frames.Frame]) -> frames.Frame:
    """The answer, which goes on when its caller does not. Raises TimeoutError when it is late.

    An answer that lay unread because our own loop was busy, maybe behind many other bytes, is not late.
    """
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(due_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            if answer.done():
                return answer.result()
            timeout_s = loop.time() - due_s
            if timeout_s < BUSY_S:
                raise


def _frame(header: frames.Header, blobs: Sequence[bytes]) -> bytes:
    """The bytes of a frame. Raises UserError for one that the agent would take for garbage, and end of."""
    num_bytes = sum(len(blob) for blob in blobs)
    if num_bytes > frames.MAX_BODY_BYTES:
        raise UserError(
            f"a call of {num_bytes / (1 << 20):.0f} MiB is too large; code, arguments and input may have "
            f"{frames.MAX_BODY_BYTES >> 20} MiB together"
        )
    return frames.encode(header, blobs)
