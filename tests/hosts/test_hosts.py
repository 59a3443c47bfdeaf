"""Who is on which host, what is refused before anything starts, and weights that each host fetches once."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentgym.actors.file_server import fetch, serve_files
from agentgym.actors.host_agent import HostInfo
from agentgym.actors.host_care import HostCare, Keeper, check_host
from agentgym.actors.hosts import Host, Hosts, HostsConfig
from agentgym.actors.launchers import LaunchedHost
from agentgym.actors.network import LOOPBACK, meet_at
from agentgym.actors.runtime import Runtime
from agentgym.errors import InfraError, UserError
from agentgym.weights.host_cache import HostCacheStore, Source
from agentgym.weights.shared_memory import SharedMemoryStore


def three(**places: tuple[str, ...]) -> Hosts:
    meshes = [LaunchedHost(name=name, mesh=object()) for name in ("a", "b", "c")]
    return Hosts(meshes, HostsConfig(**places))  # type: ignore[arg-type]


def names(hosts: list[Host]) -> str:
    return "".join(host.name for host in hosts)


def test_a_trainer_is_divided_among_its_hosts_in_equal_parts() -> None:
    hosts = three(trainer=("b", "c"))
    assert [names(hosts.choose("trainer", procs)) for procs in (1, 2, 3, 4)] == ["b", "bc", "b", "bc"]
    hosts.lose(hosts.all[1], "gone")
    assert names(hosts.choose("trainer", 4)) == "c" == names(hosts.choose("reference", 1))


def test_replicas_go_where_the_fewest_are_and_never_to_a_lost_host() -> None:
    hosts = three(generator=("a", "c"))
    chosen = ""
    for _ in range(3):
        [host] = hosts.choose("generator", 1)
        host.processes += 1
        chosen += host.name
    assert chosen == "aca"
    hosts.lose(hosts.all[2], "gone")
    assert names(hosts.choose("generator", 1)) == "a"


def test_an_actor_of_ones_own_names_its_hosts_or_says_how_many() -> None:
    hosts = three(trainer=("a",))
    assert names(hosts.choose(("b", "c"), 4)) == "bc" and names(hosts.choose("c", 1)) == "c"
    hosts.all[0].processes = 5
    assert names(hosts.choose(2, 2)) == "bc", "those with the fewest processes"
    hosts.lose(hosts.all[1], "gone")
    assert names(hosts.choose(2, 2)) == "ca" and not hosts.choose(3, 3) and not hosts.choose(("b",), 1)
    with pytest.raises(UserError, match=r"hosts is 4, and the launcher has 3: \['a', 'b', 'c'\]; give fewer"):
        hosts.choose(4, 4)
    with pytest.raises(UserError, match=r"hosts is 'trainr'; .* Did you mean 'trainer'\?"):
        hosts.choose("trainr", 1)


async def test_a_group_waits_for_a_host_to_come_back() -> None:
    hosts = three(generator=("a",))
    told: list[str] = []
    hosts.all[0].losing.add(told.append)
    hosts.lose(hosts.all[0], "it has said nothing for 9 s")
    assert told == ["host a is lost: it has said nothing for 9 s"]
    with pytest.raises(InfraError, match=r"no host for the generator .* \(a: it has said nothing for 9 s\)"):
        await hosts.assign("generator", 1, timeout_s=0.01)
    placing = asyncio.create_task(hosts.assign("generator", 1, timeout_s=60))
    await asyncio.sleep(0)
    hosts.found(hosts.all[0])
    assert names(await placing) == "a"


def test_gpus_are_given_out_by_their_host_and_come_back() -> None:
    host = replace(three().all[0], gpus=("0", "1", "2"))
    assert host.take_gpus(2) == ("0", "1")
    with pytest.raises(UserError, match="host a has 3 GPUs, of which 1 are free, and 2 are asked for"):
        host.take_gpus(2)
    host.taken -= {"0"}
    assert host.take_gpus(2) == ("0", "2")


class Met(Keeper):
    """A host that answers once all of its kind are asked the same."""

    meeting = asyncio.Barrier(3)
    clock_ahead_s = 0.0

    async def greet(self, timeout_s: float) -> tuple[HostInfo, float]:
        await self.meeting.wait()
        return HostInfo.of_this(LOOPBACK), self.clock_ahead_s

    async def read(self, path: Path) -> bytes | None:
        await self.meeting.wait()
        return path.read_bytes()

    async def write(self, path: Path, content: bytes) -> str:
        await self.meeting.wait()
        path.write_bytes(content)
        return ""


async def test_hosts_are_checked_side_by_side_and_the_first_that_does_not_fit_is_named(tmp_path: Path) -> None:
    runtime = Runtime()
    runtime.hosts = three()
    care = HostCare(runtime, LOOPBACK)
    care._keepers = [Met(runtime, host, LOOPBACK) for host in runtime.hosts.all]
    async with asyncio.timeout(60):
        await care.start([tmp_path])
        await care.close()
        for late in care._keepers[1:]:
            late.clock_ahead_s = 1e6
        Met.meeting = asyncio.Barrier(2)
        care._keepers.pop(0)
        with pytest.raises(UserError, match="the clock of host b"):
            await care.start([tmp_path])
    assert not [*tmp_path.iterdir()]


def test_what_does_not_fit_is_refused_with_the_hosts_name() -> None:
    with pytest.raises(UserError, match=r"hosts.trainer has 'd'; the launcher has no such host. .*a, b, c"):
        three(trainer=("d",))
    info = HostInfo.of_this(LOOPBACK)
    check_host("a", info, 29.0, 30.0)
    with pytest.raises(UserError, match="the clock of host a is 31 s behind this machine's"):
        check_host("a", info, -31.0, 30.0)
    other = replace(info, versions=info.versions | {"torch": "2.9.0"})
    with pytest.raises(UserError, match=r"host a has torch 2\.9\.0 and this machine 2"):
        check_host("a", other, 0.0, 30.0)


def test_ranks_of_one_host_meet_on_its_loopback_interface() -> None:
    found = meet_at(LOOPBACK, 1234)
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["GLOO_SOCKET_IFNAME"]) == (LOOPBACK, "1234", "lo")


@pytest.mark.parametrize("sent", [b"", b"secret", b"x" * 1_000_000])
async def test_the_file_server_does_not_wait_for_who_never_ends_its_line(sent: bytes, tmp_path: Path) -> None:
    server = await serve_files(tmp_path, "secret", ask_s=0.02 if len(sent) < 9 else 60)
    async with server, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(LOOPBACK, server.sockets[0].getsockname()[1])
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_a_host_fetches_a_version_once_and_only_with_the_token(tmp_path: Path) -> None:
    publisher = SharedMemoryStore("run", root=tmp_path)
    here = tmp_path / "other host"
    here.mkdir()
    server = await serve_files(publisher.folder, "secret")
    async with server:
        source = Source("a", LOOPBACK, server.sockets[0].getsockname()[1])
        store = HostCacheStore(here, keep=2, sources=[source], token="secret")
        for version in range(3):
            await publisher.put(version, [("w", torch.full((1000,), float(version)))])
            assert torch.equal(dict(await store.get(version))["w"], torch.full((1000,), float(version)))
        assert await store.versions() == [0, 1, 2] and sorted(path.stem for path in here.glob("*.safet*")) == ["1", "2"]
        with pytest.raises(KeyError, match=r"no weights of version 7; the hosts hold \[0, 1, 2\]"):
            await store.get(7)
        with pytest.raises(FileNotFoundError):
            await asyncio.to_thread(
                fetch, LOOPBACK, source.port, "guessed", "2.safetensors", tmp_path / "got", timeout_s=9
            )
    await publisher.close()
    assert torch.equal(dict(await store.get(2))["w"], torch.full((1000,), 2.0))  # its own copy
