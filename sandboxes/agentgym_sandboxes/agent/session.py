"""A session, seen from the agent: its Python, its commands and files, under a uid of their own.

Its calls take turns. A call that ends leaves what it started in the background; one that is stopped takes along
what it started, and nothing older. Imported when the first operation of a session comes.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from typing import Callable, cast

from . import frames, repl
from .claims import CLAIMS
from .drains import Drains
from .endings import num_connections
from .frames import memory_file
from .job import Job
from .limits import WORK, ChildLimits
from .processes import EVERYONE
from .reactor import Reactor
from .sweep import MIN_KILLS
from .turn import Turn
from .users import find_user

HOME = f"{WORK}/home"  # the same in every container: agents see it, and are trained on what they see
SWEEP_PATIENCE_S = 3.0
FILES_WALL_S = 60.0
MAX_CONNECTIONS, LOOK_EVERY_S = 20_000, 0.5  # those that nobody accepted are memory that no limit counts
_FILES_FAILED = {
    "timeout": f"handing over files took more than {FILES_WALL_S:g} s; end what runs in the background",
    "output_limit": "the files are too large to be handed over; remove some",
    "": "the files could not be handed over; end what runs in the background and try again",
}
End = dict[str, float]


def register(reactor: Reactor) -> dict[str, frames.OnFrame]:
    """The operations `session.*`, of the one session of this container."""
    session = Session(reactor)
    in_turn = {"run": session.run, "exec": session.exec, "files": session.files, "reset": session.reset,
               "end": session.end_processes}  # fmt: skip
    return {
        "session.open": session.open,
        "session.cancel": session.cancel,
        **{f"session.{name}": functools.partial(session.enqueue, begin) for name, begin in in_turn.items()},
    }


class Interpreter:
    """The session's Python, from the agent's side. pid: 0 until the zygote has reported it."""

    def __init__(self, control: socket.socket) -> None:
        self.control: socket.socket | None = control
        self.pid = 0


class Session:
    """The one session of a container."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._uid = reactor.take_uid()
        self._keeper = reactor.take_uid()
        self._home = HOME
        self._user: list[object] = []  # of a task's container: uid, gid, groups
        self._own_python = True
        self._env: dict[str, str] = {}
        self._most: dict[str, int] = {}
        self._interpreter: Interpreter | None = None
        self._python_lost = False  # while no call was under way
        self._turn: Turn | None = None
        self._files: Job | None = None
        self._busy = False
        self._waiting: collections.deque[tuple[frames.OnFrame, frames.Frame]] = collections.deque()
        self._drains = Drains(reactor)

    def open(self, frame: frames.Frame) -> None:
        """`env`: of its processes. `memory_mib`, `file_mib`, `processes`: what no call may exceed.

        own_python: false where `run` is the image's. place: in a task's container, the image's `user` and `work`
        folder; all processes there but the agent's are the session's then, and no limit but the container's holds.
        """
        header = frame.header
        self._own_python = bool(header.get("own_python", True))
        self._most = {name: cast(int, header[name]) for name in ("memory_mib", "file_mib", "processes")}
        home = HOME
        if "place" in header:
            try:
                home = self._move(cast("dict[str, str]", header["place"]))
            except (LookupError, OSError) as error:
                self._reactor.send({"id": header["id"], "refused": str(error)})
                return
        self._env = {"HOME": home, **cast("dict[str, str]", header["env"])}
        self._reactor.send({"id": header["id"], "home": self._home})
        self._look()

    def _move(self, machine: dict[str, str]) -> str:
        """Go to a task's user and folder; its home. Raises LookupError, OSError."""
        user = find_user(machine["user"])
        self._home = os.path.realpath(machine["work"] or "/")
        os.makedirs(self._home, exist_ok=True)
        self._reactor.killable = True
        self._uid, self._user = EVERYONE, [user.uid, user.gid, user.groups]
        return user.home

    def _look(self) -> None:
        """Now and then, also between calls."""
        if num_connections() > MAX_CONNECTIONS:
            self._reactor.sweeper.kill(self._uid)
        self._reactor.call_at(time.monotonic() + LOOK_EVERY_S, self._look)

    def enqueue(self, begin: frames.OnFrame, frame: frames.Frame) -> None:
        """Begin when those before have ended."""
        self._waiting.append((begin, frame))
        self._next()

    def _next(self) -> None:
        if not self._busy and self._waiting:
            begin, frame = self._waiting.popleft()
            self._busy = True
            begin(frame)

    def _answer(self, header: frames.Header, blobs: tuple[frames.Blob, ...] = ()) -> None:
        self._reactor.send(header, blobs)
        self._busy = False
        self._next()

    def cancel(self, frame: frames.Frame) -> None:
        number = frame.header["id"]
        self._waiting = collections.deque(entry for entry in self._waiting if entry[1].header["id"] != number)
        if self._turn is not None and self._turn.job.number == number:
            self._turn.stop("cancelled")
        elif self._files is not None and self._files.number == number:
            self._reactor.sweeper.kill(self._keeper)

    @property
    def _work(self) -> dict[str, object]:
        """Where its files are. anywhere: paths may be absolute, for all of the container is the task's."""
        return {"work": self._home, "anywhere": bool(self._user)}

    # Runs and commands

    def run(self, frame: frames.Frame) -> None:
        """Blobs: code, stdin."""
        if not self._own_python and shutil.which("python3", path=self._env.get("PATH", os.defpath)) is None:
            self._answer({"id": frame.header["id"], "reason": "no_python"})
            return
        lost, self._python_lost = self._python_lost, False
        if self._interpreter is not None and self._interpreter.control is None:
            self._reactor.sweeper.signal(self._uid, self._interpreter.pid, signal.SIGKILL)
            self._interpreter, lost = None, True  # it closed what we speak through
        interpreter = self._interpreter or self._start_interpreter()
        assert interpreter.control is not None
        turn = self._begin(frame, interpreter)
        turn.state_lost = lost
        fds = [memory_file(frame.blobs[0]), memory_file(frame.blobs[1]), *self._outputs(turn)]
        turn.token = os.urandom(16).hex()  # so that nothing is an answer that was said before the question
        order: dict[str, object] = {"token": turn.token, "limits": turn.job.limits._asdict() if not self._user else {}}
        try:
            repl.send(interpreter.control, order, fds)
        except OSError:  # it does not read: the snippet before said that it had ended, and goes on
            turn.stop("broken")
        for fd in fds:
            os.close(fd)

    def exec(self, frame: frames.Frame) -> None:
        """Blobs: JSON of `argv` and `folder`, in a task's container also `user` and `env`; stdin."""
        request, user, env = json.loads(frame.blobs[0]), self._user, self._env
        if request.get("user"):
            try:
                other = find_user(request["user"])
            except LookupError as error:
                self._answer({"id": frame.header["id"], "refused": str(error)})
                return
            user, env = [other.uid, other.gid, other.groups], {**env, "HOME": other.home}
        turn = self._begin(frame, self._interpreter, is_exec=True)
        request = {**request, **self._work, "env": {**env, **request.get("env", {})}}
        fds = [memory_file(json.dumps(request).encode()), memory_file(frame.blobs[1]), *self._outputs(turn)]
        self._spawn("exec", self._uid, turn.job.limits, fds, functools.partial(self._command_ended, turn), user)

    def _begin(self, frame: frames.Frame, interpreter: Interpreter | None, *, is_exec: bool = False) -> Turn:
        limits = self._limits(cast("dict[str, float]", frame.header["limits"]))
        job = Job(cast(int, frame.header["id"]), limits, [])
        pid = interpreter.pid if interpreter is not None else 0
        self._turn = turn = Turn(self._reactor, job, self._uid, pid, is_exec=is_exec, finish=self._finish)
        turn.begin()
        return turn

    def _limits(self, wire: dict[str, float]) -> ChildLimits:
        limits = ChildLimits.of(wire)
        if self._user:
            return limits._replace(**self._most)  # the container's
        return limits._replace(  # memory is bounded by who asks
            file_mib=min(limits.file_mib, self._most["file_mib"]),
            processes=min(limits.processes, self._most["processes"]),
        )

    def _outputs(self, turn: Turn) -> list[int]:
        writes = []
        for name in ("stdout", "stderr"):
            writes.append(turn.job.pipe(name))
            turn.watch(name)
        return writes

    def _command_ended(self, turn: Turn, end: End) -> None:
        if "fork_error" in end:
            turn.reason = "no_process"
        elif "status" in end:
            turn.exit_status = int(end["status"])
            turn.job.cpu_s += end["cpu_s"]
            turn.job.memory_kib = max(turn.job.memory_kib, int(end["memory_kib"]))
        else:
            return  # its pid
        turn.child_ended()

    def _finish(self, turn: Turn) -> None:
        """Answer; what the call left running keeps its pipes, so that it does not die of writing to them."""
        for name, fd in list(turn.job.fds.items()):
            while turn.job.pump(name):
                pass
            if name in turn.job.fds:
                self._drains.add(turn.job.fds.pop(name))
            else:
                self._reactor.unwatch(fd)
        self._turn = None
        header = turn.ending()
        self._answer(header, tuple(turn.job.output.values()))

    # The interpreter

    def _start_interpreter(self) -> Interpreter:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        interpreter = self._interpreter = Interpreter(ours)
        limits = ChildLimits(wall_s=0, cpu_s=0, output_bytes=0, answer_mib=0, **self._most)
        order = {**self._work, "env": self._env, "own_python": self._own_python}
        request = json.dumps(order).encode()
        fds = [memory_file(request), theirs.detach()]
        self._spawn("repl", self._uid, limits, fds, functools.partial(self._interpreter_ended, interpreter))
        self._reactor.watch(ours.fileno(), functools.partial(self._on_report, interpreter))
        return interpreter

    def _on_report(self, interpreter: Interpreter) -> None:
        """A snippet ended; or untrusted code says so, which counts as its end."""
        control = interpreter.control
        if control is None:
            return
        try:
            data = control.recv(repl.MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(interpreter)  # closed: the process ends, or will be ended at its limit
            return
        turn = self._turn
        try:
            said = json.loads(data)
            token, exit_code, claimed = said["token"], int(said["exit"]) & 255, said["claim"]
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            return  # of foreign code
        if turn is None or turn.is_exec or token != turn.token or self._interpreter is not interpreter:
            return
        turn.exit_status = exit_code << 8
        turn.claimed = claimed if isinstance(claimed, str) and claimed in CLAIMS else None
        turn.child_ended()

    def _interpreter_ended(self, interpreter: Interpreter, end: End) -> None:
        if "pid" in end:
            interpreter.pid = int(end["pid"])
            if self._turn is not None and not self._turn.is_exec:
                self._turn.interpreter_pid = interpreter.pid
            return
        self._forget(interpreter)
        if self._interpreter is not interpreter:
            return  # a reset came first
        self._interpreter = None
        turn = self._turn
        if turn is None or turn.is_exec or turn.ended:
            self._python_lost = True
        if turn is not None and not turn.is_exec:
            turn.state_lost = True
            if not turn.ended:
                turn.exit_status = int(end["status"]) if "status" in end else None
                turn.child_ended()

    def _forget(self, interpreter: Interpreter) -> None:
        if interpreter.control is not None:
            self._reactor.unwatch(interpreter.control.fileno())
            interpreter.control.close()
            interpreter.control = None

    def _spawn(
        self,
        op: str,
        keeper: int,
        limits: ChildLimits,
        fds: list[int],
        on_end: Callable[[End], None],
        user: Sequence[object] = (),
    ) -> None:
        order: dict[str, object] = {"op": op, "uid": self._uid, "keeper": keeper, "limits": limits._asdict()}
        if self._user:
            order["user"] = user or self._user
        self._reactor.spawn(order, fds, on_end)

    # Files and reset

    def files(self, frame: frames.Frame) -> None:
        """Blobs: JSON of the request; data. Done by a child that the session's processes can't touch."""
        limits = ChildLimits(FILES_WALL_S, 0, 0, 0, 0, 0, 80)
        job = self._files = Job(cast(int, frame.header["id"]), limits, [])
        request = {**json.loads(frame.blobs[0]), **self._work}
        fds = [memory_file(json.dumps(request).encode()), memory_file(frame.blobs[1])]
        for name in ("reply", "data"):
            fds.append(job.pipe(name))
            self._reactor.watch(job.fds[name], functools.partial(self._pump_file, job, name))
        self._reactor.call_at(job.deadline_s, functools.partial(self._file_late, job))
        self._spawn("files", self._keeper, limits, fds, functools.partial(self._file_ended, job))

    def _pump_file(self, job: Job, name: str) -> None:
        fd = job.fds.get(name)
        job.pump(name)
        if name not in job.fds and fd is not None:
            self._reactor.unwatch(fd)

    def _file_late(self, job: Job) -> None:
        if not job.ending:
            job.reason = job.reason or "timeout"
            self._reactor.sweeper.kill(self._keeper)

    def _file_ended(self, job: Job, end: End) -> None:
        if "pid" in end:
            return
        job.ending, self._files = True, None
        job.drain(self._reactor.unwatch)
        header: frames.Header = {"id": job.number, "reason": None, "refused": None}
        lines = bytes(job.output["reply"]).splitlines()
        if "fork_error" in end:
            header["reason"] = "failed"
        elif not lines or job.reason is not None:  # a session that can make it fail must not seem broken
            header["refused"] = _FILES_FAILED.get(job.reason or "", _FILES_FAILED[""])
        else:
            answer = json.loads(lines[0])
            if answer[0] == "refused":
                header["refused"] = answer[1]
        self._answer(header, (job.output["data"],))

    def reset(self, frame: frames.Frame) -> None:
        """Kill all, wipe all, go on under another uid."""
        self._end_all(cast(int, frame.header["id"]), wipe=True)

    def end_processes(self, frame: frames.Frame) -> None:
        """Kill all."""
        self._end_all(cast(int, frame.header["id"]), wipe=False)

    def _end_all(self, number: int, *, wipe: bool) -> None:
        interpreter, self._interpreter = self._interpreter, None
        self._python_lost = False
        if interpreter is not None:
            self._forget(interpreter)
        self._drains.close()
        self._sweep(number, time.monotonic() + SWEEP_PATIENCE_S, wipe=wipe)

    def _sweep(self, number: int, deadline_s: float, num_kills: int = 0, *, wipe: bool) -> None:
        sweeper = self._reactor.sweeper
        busy = sweeper.has_processes(self._uid)
        if busy:
            sweeper.kill(self._uid)
            if time.monotonic() < deadline_s or num_kills < MIN_KILLS:
                again = functools.partial(self._sweep, number, deadline_s, num_kills + 1, wipe=wipe)
                self._reactor.call_at(time.monotonic() + 0.002, again)
                return
        if busy or (wipe and not sweeper.wipe(self._uid)):
            self._answer({"id": number, "reason": "dirty"})
            return
        if wipe:
            self._reactor.give_uid(self._uid)
            self._uid = self._reactor.take_uid()
        self._answer({"id": number, "reason": None})
