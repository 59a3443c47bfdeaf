"""Calls of a function in processes of its own, for plugins: one that takes too long is killed and replaced.

For work that a text from an agent may make endless, huge or fatal: graders, parsers, other people's scorers. It needs
no signals and no main thread, so it works under any event loop and in any thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from agentgym.errors import InfraError, UserError
from agentgym.killable.pool import Pool
from agentgym.killable.process import Child, own_environment
from agentgym.types import Json

HANDLER: Final = "agentgym.killable.child:calls"
_of_parents: Final[list[_Server]] = []  # kept after a fork: to close the loop of the parent would be felt there


class CallFailed(RuntimeError):
    """A call gave no value. kind: `cpu_limit` (its own doing), `time_limit` (it or a busy machine), `died`, or the name
    of the exception that it raised."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class KillableCalls:
    """`await calls(argument)` is `function(argument)`, computed in another process.

    function: the import path, `package.module:name`, of a plain function from JSON to JSON. At most `processes` calls
    run at a time, the others wait. cpu_s, memory_mib: the limits of one call, kept by the kernel. wall_s: a call is
    killed after that. environ: variables for the processes, as PYTHONHASHSEED. They start at the first call, serve
    until `close` or the end of this object, and die with this process. Pickled, it is its settings.
    """

    def __init__(
        self,
        function: str,
        *,
        processes: int = 2,
        cpu_s: float = 5.0,
        wall_s: float = 60.0,
        memory_mib: int = 4096,
        start_s: float = 120.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "function": function,
            "processes": processes,
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "memory_mib": memory_mib,
            "start_s": start_s,
            "environ": dict(environ or {}),
        }
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._settings,)

    async def __call__(self, argument: Json) -> Json:
        """The function's value. Raises CallFailed, and InfraError when its process could not be started."""
        return await asyncio.wrap_future(self._submit(argument))

    def wait(self, argument: Json) -> Json:
        """The same for a caller that is not asynchronous."""
        return self._submit(argument).result()

    def close(self) -> None:
        """End the processes; safe to call twice. A later call starts others."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.end()

    def _submit(self, argument: Json) -> Future[Json]:
        body = json.dumps(argument).encode()
        with self._lock:
            if self._server is not None and self._server.owner != os.getpid():
                _of_parents.append(self._server)
                self._server = None
            if self._server is None:
                self._server = _Server(**self._settings)
                weakref.finalize(self, self._server.end)
            return self._server.submit(body)


def _again(settings: dict[str, Any]) -> KillableCalls:
    return KillableCalls(**settings)


class _Server:
    """The pool, on an event loop in a thread of its own, so that it serves callers of any thread and any loop."""

    def __init__(
        self,
        function: str,
        processes: int,
        cpu_s: float,
        wall_s: float,
        memory_mib: int,
        start_s: float,
        environ: Mapping[str, str],
    ) -> None:
        self.owner = os.getpid()
        given = {"function": function, "cpu_s": cpu_s}

        def child() -> Child:
            return Child(HANDLER, given, {**own_environment(), **environ}, memory_mib=memory_mib)

        self._function, self._wall_s = function, wall_s
        self._pool = Pool(child, function, size=processes, start_s=start_s)
        self._ended = False
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="killable", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def submit(self, body: bytes) -> Future[Json]:
        return asyncio.run_coroutine_threadsafe(self._call(body), self._loop)

    def end(self) -> None:
        if self._ended or self.owner != os.getpid():
            return
        self._ended = True
        self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:  # the collector of garbage runs in any
            self._thread.join()

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._stop = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._pool.close()

    async def _call(self, body: bytes) -> Json:
        try:
            async with self._pool.child() as child:
                answer = await self._ask(child, body)
                if answer.get("kind") == "MemoryError":  # who knows what it left half done
                    await child.end()
        except UserError as error:
            raise InfraError(f"a process for {self._function} did not start: {error}") from error
        except asyncio.CancelledError:
            if self._ended:
                raise InfraError("the killable calls were closed") from None
            raise
        if "kind" in answer:
            raise CallFailed(answer["kind"], answer["text"])
        value: Json = answer["value"]
        return value

    async def _ask(self, child: Child, body: bytes) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._wall_s):
                await child.send(body)
                answer: dict[str, Any] = json.loads(await child.receive())
                return answer
        except TimeoutError:
            raise CallFailed("time_limit", f"it took longer than {self._wall_s:g} s") from None
        except (EOFError, OSError):
            await child.end()
        if child.process is not None and child.process.returncode == -signal.SIGPROF:
            raise CallFailed("cpu_limit", "it used up its CPU time")
        raise CallFailed("died", f"its process {child.exit_reason}")
