"""The process in which an environment package is loaded, and the requests to it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Final, TypeAlias

from agentgym.errors import InfraError, UserError
from agentgym.programs import Tail, exit_reason, kill_all, tagged, waiting_for

SERVING: Final = Path(__file__).with_name("serving.py")
TAIL_BYTES: Final = 4000  # of what it writes, for errors
CANCEL_S: Final = 20.0  # until it has taken notice of a cancelled request: its package holds its event loop otherwise
NEEDED: Final = ("HOME", "HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "UV_CACHE_DIR", "XDG_CACHE_HOME")
Unsent: TypeAlias = SimpleQueue[Mapping[str, object] | None]
Pending: TypeAlias = dict[int, Future[Any]]


class PackageProcess:
    """Started by the first request, and again by the first after its end. Requests may come from any thread.

    library, name: of the environment and of the package, for errors. program: the file whose `Operations` are its
    requests. python: its interpreter, empty is this one. variables: names of environment variables that it gets
    beside `PATH` and the like.
    """

    def __init__(self, library: str, name: str, program: Path, python: str, variables: Sequence[str]) -> None:
        self._library, self._name, self._program = library, name, program
        self.python, self._variables = python or sys.executable, variables
        self._process: subprocess.Popen[bytes] | None = None
        self._tag = ""
        self._pending: Pending = {}
        self._tail = Tail(TAIL_BYTES)
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._unsent = Unsent()
        self.starts = 0
        """How often it was started: what was opened before is gone."""
        self.opened: dict[str, tuple[int, dict[str, Any]]] = {}
        """What was opened in it: at which start, and what it answered."""
        self.opening = threading.Lock()

    @classmethod
    def shared(cls, library: str, name: str, program: Path, python: str, variables: Sequence[str]) -> PackageProcess:
        """One for the same arguments, until it is closed or Python exits: a run builds its environment more than once,
        and to load a package may take minutes."""
        made = cls(library, name, program, python, variables)
        found = _SHARED.setdefault((library, name, program, python, *variables), made)
        if found is made:
            atexit.register(found.close)
        return found

    def request(self, op: str, **fields: object) -> tuple[int, Future[Any]]:
        """Returns at once: its number, and the answer to come, for `value_of`; InfraError where it ends before."""
        with self._lock:
            self._start_if_needed()
            number, future = next(self._numbers), Future[Any]()
            self._pending[number] = future
            self._unsent.put({"id": number, "op": op, **fields})
        return number, future

    async def ask(self, op: str, **fields: object) -> Any:
        """What a request returned; it is cancelled with its caller. Raises as `value_of`."""
        number, answer = self.request(op, **fields)
        try:
            return self.value_of(await asyncio.wrap_future(answer))
        except asyncio.CancelledError:
            self.cancel(number)
            raise

    def wait(self, what: str, limit_s: float, op: str, **fields: object) -> Any:
        """The same for a thread that waits, at most so many seconds. what: is being done, for the user."""
        _, answer = self.request(op, **fields)
        try:
            with waiting_for(f"{what} {self._name} in {self.python}"):
                return self.value_of(answer.result(limit_s))
        except TimeoutError:
            self.close()
            limit = f"env.options.start_s = {limit_s:g} s"
            raise UserError(f"{self._library}: {self._name} was not ready within {limit}") from None

    def value_of(self, answer: Mapping[str, Any]) -> Any:
        """Raises UserError for the user's mistake, InfraError for what failed in the package."""
        error = answer.get("error")
        if error is None:
            return answer["value"]
        if error["kind"] == "mistake":
            raise UserError(f"{self._library}: {error['text']}")
        raise InfraError(f"{self._name} failed: {error['text']}")

    @property
    def alive(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def cancel(self, number: int) -> None:
        """End a request that nobody waits for any more; the process with it, where that does not answer."""
        with self._lock:
            if (process := self._process) is None or number not in self._pending:
                return
            self._pending[number] = answer = Future[Any]()
            self._unsent.put({"op": "cancel", "target": number})
        timer = threading.Timer(CANCEL_S, self._end_hung, [process, self._tag])
        timer.daemon = True
        answer.add_done_callback(lambda _: timer.cancel())
        timer.start()

    def _end_hung(self, process: subprocess.Popen[bytes], tag: str) -> None:
        if process.poll() is None:
            self._tail.add(f"\nit did not respond for {CANCEL_S:g} s after an episode's end and was killed\n".encode())
            kill_all(process.pid, tag)

    def close(self) -> None:
        """End it and all that it started; safe to call twice."""
        with self._lock:
            process, self._process = self._process, None
            threads = {*self._threads}
        if process is not None:
            kill_all(process.pid if process.poll() is None else None, self._tag)
            for thread in threads - {threading.current_thread()}:
                thread.join()

    def _start_if_needed(self) -> None:
        if self.alive:
            return
        if shutil.which(self.python) is None:
            raise UserError(
                f"{self._library}: there is no interpreter {self.python!r}; give a path in env.options.python"
            )
        given = {name: os.environ[name] for name in (*NEEDED, *self._variables) if name in os.environ}
        for name in set(self._variables) - set(given):
            raise UserError(f"{self._library}: env.options.variables names {name}, which is not set")
        self._tag, environ = tagged({**given, "PYTHONUNBUFFERED": "1"})
        self._process = process = subprocess.Popen(
            [self.python, str(SERVING), str(os.getpid()), str(self._program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )
        self.starts += 1
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None, "all are pipes"
        self._unsent, self._pending = Unsent(), {}
        taken = (process.stdout, self._tag, self._unsent, self._pending)
        self._threads = [
            threading.Thread(target=self._send, args=(process.stdin, self._unsent), daemon=True),
            threading.Thread(target=self._read, args=(process, *taken), daemon=True),
            threading.Thread(target=self._collect, args=(process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _send(requests: IO[bytes], unsent: Unsent) -> None:
        """In a thread: a package may be slow to take a request, and does not while its last answer is unread."""
        with contextlib.suppress(OSError), requests:  # it has ended: its reader says so
            while (request := unsent.get()) is not None:
                requests.write(json.dumps(request).encode() + b"\n")
                requests.flush()

    def _read(
        self, process: subprocess.Popen[bytes], answers: IO[bytes], tag: str, unsent: Unsent, pending: Pending
    ) -> None:
        """Hand answers over until it ends; then no request that was made of it gets one."""
        with answers, contextlib.suppress(ValueError):  # no answer of the program's: it can't be relied on any more
            for line in answers:
                answer = json.loads(line)
                with self._lock:
                    future = pending.pop(answer["id"], None)
                if future is not None:
                    with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
                        future.set_result(answer)
        kill_all(process.pid if process.poll() is None else None, tag)
        reason = exit_reason(process.wait())
        unsent.put(None)
        with self._lock:
            lost = [*pending.values()]
            pending.clear()
        error = f"the process of {self._name} {reason}: {self._tail.text()[-1500:].strip()}"
        for future in lost:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(InfraError(error))

    def _collect(self, written: IO[bytes]) -> None:
        with written:
            while piece := os.read(written.fileno(), 1 << 16):
                self._tail.add(piece)


_SHARED: Final[dict[tuple[object, ...], PackageProcess]] = {}
