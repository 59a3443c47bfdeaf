"""A test side that is about to use what calls share ends before it does; one that uses its own goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentgym_sandboxes.agent.sharing import SHARED

OF_ALL = (
    "open('/tmp/nothing-such')",
    "os.replace('mine', '/tmp/nothing-such')",
    "os.symlink('mine', b'/dev/shm/nothing-such')",
    "sqlite3.connect('/work/nothing-such')",
    "socket.socket().bind(('127.0.0.1', 8765))",
    "socket.create_connection(('127.0.0.1', 8765))",
    "os.posix_spawn('/bin/true', ['true'], {})",
)
ITS_OWN = """
        open('mine', 'w').close(); os.replace('mine', 'other'); os.remove(os.path.abspath('other'))
        with socket.create_server(('127.0.0.1', 0)) as server: socket.create_connection(server.getsockname())
"""


@pytest.mark.parametrize("use", [*OF_ALL, ITS_OWN])
def test_only_a_use_of_what_calls_share_ends_it(use: str) -> None:
    code = (
        "import os, socket, sqlite3, tempfile\nfrom agentgym_sandboxes.agent.sharing import leave_when_shared\n"
        f"with tempfile.TemporaryDirectory(dir='/tmp') as own:\n    os.chdir(own)\n    pid = os.fork()\n"
        f"    if pid == 0:\n        leave_when_shared(own)\n        {use}\n        os._exit(0)\n"
        "    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\nraise SystemExit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False).returncode
    assert ended == (0 if use == ITS_OWN else SHARED)
