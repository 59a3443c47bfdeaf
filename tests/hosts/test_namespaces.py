"""The hosts that the other tests use are hosts: nothing but the filesystem and the network between them is shared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.hosts.namespaces import namespaces, why_unavailable

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.xdist_group("namespaces"),
    pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable() or "none"),
]
ASK = ("python", "-c", "import socket, sys; socket.create_connection((sys.argv[1], 9000), 1).close()")
SERVE = "import socket; s = socket.create_server(('', 9000)); print('up', flush=True)\nwhile True: s.accept()"


async def test_hosts_share_files_and_a_network_and_can_be_cut_killed_and_brought_back(tmp_path: Path) -> None:
    log = tmp_path / "served.log"
    async with namespaces(2) as (one, two):
        assert (await one.run("hostname")).output == "host0\n"
        await one.run("touch", "/dev/shm/mine")
        assert (await two.run("ls", "/dev/shm")).output == "" and not Path("/dev/shm/mine").exists()
        assert "pytest" not in (await two.run("ps", "ax")).output
        await two.start("python", "-c", SERVE, output=log)
        while "up" not in log.read_text():
            await asyncio.sleep(0.05)
        assert (await one.run(*ASK, two.address)).code == 0 and (await one.run(*ASK, "host1")).code == 0
        two.cut()
        assert (await one.run(*ASK, two.address)).code == 1
        two.mend()
        assert (await one.run(*ASK, two.address)).code == 0
        two.kill()
        assert (await one.run(*ASK, two.address)).code == 1
        two.boot()
        assert (await two.run("sh", "-c", "exit 3")).code == 3
