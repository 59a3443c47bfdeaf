"""A machine as a host of a run: one process that serves it, for as long as the controller holds its lifeline.

The lifeline is the process's standard input: a pipe (ssh, srun) or a connection (`agentgym host`). It ends with the
controller, however that ends; then the host process kills the actors below it, which the kernel does too when the host
process dies, frees the memory that was theirs, and exits.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentgym.actors.network import own_address
from agentgym.actors.owned_folder import MEMORY, sweep
from agentgym.actors.sockets import check_socket_folder

PORT = 26600  # of `agentgym host`
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 12}
"""A controller that says nothing for so long (3 minutes) has lost its power or its network."""
HELLO = "agentgym-host "
KILL_WAIT_S = 5.0
BUSY_WAIT_S = 10.0  # the actors of the controller before may take a moment to end


def serve_as_host(address: str, name: str = "", controller: str = "") -> None:
    """Serve this process as a host of Monarch until the standard input ends; never returns.

    address: Monarch's, as `ipc://PATH`; `tcp://:PORT` finds this machine's own, and with port 0 a free one. Where it
    was found it is printed as the one line of the standard output. controller: its address; empty where the standard
    input is a connection to it.
    """
    check_socket_folder()
    if address.startswith("tcp://:"):
        address = _reachable_address(int(address.removeprefix("tcp://:")), controller)
        print(HELLO + json.dumps({"name": name, "address": address.partition("@")[0]}), flush=True)
        os.dup2(2, 1)  # what else is printed here is not for the controller
    threading.Thread(target=_exit_with_the_controller, daemon=True).start()
    from monarch.actor import run_worker_loop_forever

    run_worker_loop_forever(address=address, ca="trust_all_connections")


def _exit_with_the_controller(memory: Path = MEMORY) -> None:
    with suppress(OSError):  # a connection that was lost
        while os.read(0, 4096):
            pass
    with suppress(Exception):  # whatever comes, it exits
        import psutil  # here: commands without a run need no extra

        actors = psutil.Process().children(recursive=True)
        for actor in actors:
            with suppress(psutil.Error):
                actor.kill()
        psutil.wait_procs(actors, KILL_WAIT_S)
        sweep(memory)  # weights, of a controller that could not end its actors: killed, or without a network
    os._exit(0)


def _reachable_address(port: int, controller: str) -> str:
    """Returns the reachable address together with the one to bind, in Monarch's notation."""
    if controller:
        ip = own_address(controller)
    else:
        with socket.socket(fileno=os.dup(0)) as lifeline:
            ip = str(lifeline.getsockname()[0])
    family, bound = (socket.AF_INET6, "::") if ":" in ip else (socket.AF_INET, "0.0.0.0")
    if not port:
        with socket.create_server((bound, 0), family=family) as server:
            port = server.getsockname()[1]
    return f"tcp://{bracketed(ip)}:{port}@tcp://{bracketed(bound)}:{port}"


def bracketed(ip: str) -> str:
    """Brackets an IPv6 address, as in a URL."""
    return f"[{ip}]" if ":" in ip else ip


def read_hello(line: str) -> str:
    """The address in what a host printed; empty for every other line."""
    if not line.startswith(HELLO):
        return ""
    return str(json.loads(line.removeprefix(HELLO))["address"])


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice that the other side is gone, but not that its network is cut for a while."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def serve_controllers(command: list[str], port: int, say: Callable[[str], None], *, once: bool = False) -> None:
    """Listen for controllers, and be a host of one after another; ends with an exception (Ctrl-C, SIGTERM).

    once: it ends when the first controller does.

    command: starts the host process, whose standard input and output become the connection.
    """
    process: subprocess.Popen[bytes] | None = None
    with socket.create_server(("", port)) as server:
        say(f"host {socket.gethostname()}: waiting for a controller on port {server.getsockname()[1]}")
        try:
            while True:
                connection, (address, _) = server.accept()
                with connection:
                    keep_alive(connection)
                    if process is not None and not _ended(process):
                        connection.sendall(b"busy: another controller has this host\n")
                        continue
                    say(f"controller {address}")
                    process = subprocess.Popen(command, stdin=connection.fileno(), stdout=connection.fileno())
                if once:
                    process.wait()
                    return
        finally:
            if process is not None:
                process.kill()
                process.wait()


def _ended(process: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(BUSY_WAIT_S)
    return process.returncode is not None
