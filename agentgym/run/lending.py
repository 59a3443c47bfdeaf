"""This machine as a host of runs whose controller is elsewhere."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

from agentgym.actors.host_process import PORT as PORT
from agentgym.actors.host_process import serve_controllers
from agentgym.actors.launchers import CHILD_MODULE
from agentgym.errors import UserError


def lend(port: int, monarch_port: int, say: Callable[[str], None], *, once: bool = False) -> None:
    """Serve one controller after another until it is stopped; once: until the first is gone.

    Raises UserError for a port that is taken.
    """
    for number in (port, monarch_port):
        if not 0 <= number < 65536:
            raise UserError(f"{number} is not a port; give one of 1 to 65535, or 0 for any that is free")
    name = socket.gethostname()
    command = [sys.executable, "-m", CHILD_MODULE, "--name", name, "--host", f"tcp://:{monarch_port}"]
    try:
        serve_controllers(command, port, say, once=once)
    except OSError as error:
        raise UserError(f"port {port} can't be listened on: {error.strerror}; give another --port") from error
