"""Calls of a function in processes of its own, for plugins: one that takes too long is killed and replaced.

For work that a text from an agent may make endless, huge or fatal: graders, parsers, other people's scorers. It needs
no signals and no main thread, so it works under any event loop and in any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from agentgym.errors import InfraError
from agentgym.killable_child import receive_frame, send_frame
from agentgym.killable_process import exit_reason, kill_group, own_environment, spawn
from agentgym.types import Json


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
        self._pool: _Pool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._settings,)

    async def __call__(self, argument: Json) -> Json:
        """The function's value. Raises CallFailed, and InfraError when its process could not be started."""
        return await asyncio.wrap_future(self._started().submit(argument))

    def wait(self, argument: Json) -> Json:
        """The same for a caller that is not asynchronous."""
        return self._started().submit(argument).result()

    def close(self) -> None:
        """End the processes; safe to call twice. A later call starts others."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.end()

    def _started(self) -> _Pool:
        with self._lock:
            if self._pool is None or self._pool.owner != os.getpid():  # after a fork the parent's is of no use
                self._pool = _Pool(self._settings)
                weakref.finalize(self, self._pool.end)
            return self._pool


def _again(settings: dict[str, Any]) -> KillableCalls:
    return KillableCalls(**settings)


class _Pool:
    """A thread for each process, so that waiting for one blocks nobody else."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.owner = os.getpid()
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings["processes"], thread_name_prefix="killable")
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()
        self._all: set[_Process] = set()
        self._ended = False

    def submit(self, argument: Json) -> Future[Json]:
        return self._threads.submit(self._call, json.dumps(argument).encode())

    def end(self) -> None:
        self._ended = True
        if self.owner == os.getpid():
            for process in list(self._all):
                process.kill()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self, body: bytes) -> Json:
        process = self._take()
        try:
            answer = process.ask(body, self._settings["wall_s"])
        except BaseException:
            self._drop(process)
            raise
        if answer.get("kind") == "MemoryError":  # who knows what it left half done
            self._drop(process)
        else:
            self._idle.put(process)
        if "kind" in answer:
            raise CallFailed(answer["kind"], answer["text"])
        value: Json = answer["value"]
        return value

    def _take(self) -> _Process:
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                break
            if process.alive:
                return process
            self._drop(process)
        process = _Process(self._settings["environ"])
        self._all.add(process)
        try:
            setup = {key: self._settings[key] for key in ("function", "cpu_s", "memory_mib")}
            answer = process.ask(json.dumps(setup).encode(), self._settings["start_s"])
            if "kind" in answer:
                raise CallFailed(answer["kind"], answer["text"])
            if self._ended:
                raise InfraError("the killable calls were closed")
        except (CallFailed, OSError) as error:
            self._drop(process)
            raise InfraError(f"a process for {self._settings['function']} did not start: {error}") from error
        except BaseException:
            self._drop(process)
            raise
        return process

    def _drop(self, process: _Process) -> None:
        process.kill()
        self._all.discard(process)


class _Process:
    """One child and the channel to it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._process, self._channel = spawn("agentgym.killable_child", {**own_environment(), **environ})

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, body: bytes, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        try:
            self._channel.settimeout(timeout_s)
            send_frame(self._channel, body)
            answer: dict[str, Any] = json.loads(receive_frame(self._channel, deadline))
            return answer
        except TimeoutError:
            raise CallFailed("time_limit", f"it took longer than {timeout_s:g} s") from None
        except (EOFError, ConnectionError):
            raise self._death() from None

    def _death(self) -> CallFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
            kill_group(self._process)  # what it started lives on; now, while no other process can have got its id
        code = self._process.returncode
        if code == -signal.SIGPROF:
            return CallFailed("cpu_limit", "it used up its CPU time")
        return CallFailed("died", f"its process {exit_reason(code)}")

    def kill(self) -> None:
        """The child and all that it started; safe to call twice."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for its answer
        if self._process.poll() is None:
            kill_group(self._process)
        self._process.wait()
        self._channel.close()
