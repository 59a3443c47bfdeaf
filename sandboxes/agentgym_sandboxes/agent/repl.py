"""A session's Python: runs snippets one after another, in one namespace, as a prompt would.

It speaks over a socket of packets: an order with the descriptors of code, stdin, stdout and stderr comes in,
how the snippet ended goes out. Foreign code shares the process and may say anything there; so what is said
only ever distinguishes kinds of the snippet's own end.
"""

from __future__ import annotations

import array
import ast
import importlib
import io
import json
import linecache
import os
import resource
import signal
import socket
import sys
import types
from typing import NoReturn, cast

from .claims import claim
from .limits import MIB
from .preload import limit_mib
from .program import exit_code_of, print_error

MAX_PACKET_BYTES = 4096
NUM_FDS = 4  # code, stdin, stdout, stderr
_NAME = "<run {}>"
_MAX_SOURCES = 200  # whose lines are kept for tracebacks


class Repl:
    """The namespace, and the streams, which keep their identity: loggers hold on to them."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        sys.argv = [""]
        if "" not in sys.path:
            sys.path.insert(0, "")  # the work folder's own modules, as at a prompt
        self._num_runs = 0
        self._out, self._err = _writer(1), _writer(2)

    def run(self, code: str) -> tuple[int, str | None]:
        """Run a snippet on descriptors 0, 1 and 2; its exit code, and what limit it says that it hit."""
        self._num_runs += 1
        name = _NAME.format(self._num_runs)
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        linecache.cache.pop(_NAME.format(self._num_runs - _MAX_SOURCES), None)
        self._fresh_streams()
        importlib.invalidate_caches()  # a module may have been written a moment ago
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self._execute(code, name)
                return 0, None
            except SystemExit as error:
                return exit_code_of(error), None
            except BaseException as error:
                claimed = claim(error)
                print_error(error, claimed, "<run ")
                return 1, claimed
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                self._flush()
        except KeyboardInterrupt:  # it came late
            return 1, None

    def _execute(self, code: str, name: str) -> None:
        tree = ast.parse(code, name)
        last = tree.body[-1] if tree.body else None
        shown = ast.Interactive([tree.body.pop()]) if isinstance(last, ast.Expr) else None
        namespace = self.module.__dict__
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        if shown is not None:
            exec(compile(shown, name, "single", dont_inherit=True), namespace)

    def _fresh_streams(self) -> None:
        if self._out.closed:
            self._out = _writer(1)
        if self._err.closed:
            self._err = _writer(2)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False), "utf-8", "surrogateescape")
        sys.stdout, sys.stderr = self._out, self._err
        sys.displayhook = sys.__displayhook__

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr, self._out, self._err):
            try:
                stream.flush()
            except BaseException:  # the snippet may have put anything there
                pass


def main(argv: list[str]) -> NoReturn:
    """In the image's own Python. argv: the socket's descriptor."""
    serve_repl(int(argv[0]))


def serve_repl(control_fd: int) -> NoReturn:
    """Run what is ordered until the socket ends."""
    control = socket.socket(fileno=control_fd)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    ours = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    repl = Repl()
    while True:
        order, fds = receive(control)
        if order is None:
            os._exit(0)
        if order["limits"]:
            _limit(cast("dict[str, int]", order["limits"]))
        with open(fds.pop(0), "rb") as file:
            code = file.read().decode("utf-8", "surrogatepass")
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
            os.close(fd)
        exit_code, claimed = repl.run(code)
        if os.getpid() != ours:
            os._exit(exit_code)  # a child that the snippet forked came out at its end
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        control.send(json.dumps({"token": order["token"], "exit": exit_code, "claim": claimed}).encode())


def receive(control: socket.socket) -> tuple[dict[str, object] | None, list[int]]:
    """The next packet, and the descriptors that came with it; None at the end."""
    data, ancillary, _, _ = control.recvmsg(MAX_PACKET_BYTES, socket.CMSG_SPACE(4 * NUM_FDS))
    fds = array.array("i")
    for _, _, packed in ancillary:
        fds.frombytes(packed)
    return (json.loads(data) if data else None), list(fds)


def send(control: socket.socket, order: dict[str, object], fds: list[int]) -> None:
    """Order a run; the descriptors stay the caller's."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    control.sendmsg([json.dumps(order).encode()], [rights])


def _limit(limits: dict[str, int]) -> None:
    """This run's share of what the session may use; the hard limits hold whatever happens here."""
    for kind, amount in (
        (resource.RLIMIT_AS, limit_mib(limits["memory_mib"]) * MIB),
        (resource.RLIMIT_FSIZE, limits["file_mib"] * MIB),
        (resource.RLIMIT_NPROC, limits["processes"]),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))


def _writer(fd: int) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)
