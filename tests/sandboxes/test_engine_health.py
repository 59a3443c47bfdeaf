"""Circuit breakers, start rates, what engines say about themselves, and which image they run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from docker import APIClient
from docker.errors import APIError

from agentgym.sandbox import SandboxDiskFull, SandboxUnavailable
from agentgym.types import Json
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.attach import RequestRefused, attach
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.breaker import FIRST_BACKOFF_S, Breaker, Circuit, StartLimit
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.endpoint import Endpoint, Tls, endpoint_of
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.engines import EngineGroup
from agentgym_sandboxes.docker.facts import EngineFacts, check_facts, facts_of
from agentgym_sandboxes.docker.failures import EngineDiskFull, EngineError
from agentgym_sandboxes.docker.image import RECIPE, ImageChoice
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.host.reaper import is_forgotten

INFO: dict[str, Json] = {
    "ID": "ABCD", "ServerVersion": "28.2", "NCPU": 8, "MemoryLimit": True, "SwapLimit": True, "PidsLimit": True,
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"], "CgroupDriver": "systemd",
    "CgroupVersion": "2", "Runtimes": {"runc": {}, "runsc": {}}, "DockerRootDir": "/var/lib/docker",
}  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through_after_a_back_off() -> None:
    clock = Clock()
    breaker = Breaker(3, 4 * FIRST_BACKOFF_S, clock)
    for _ in range(2):
        breaker.failed(EngineError("no"))
    breaker.succeeded()
    assert breaker.last_error is None
    for expected in (Circuit.CLOSED, Circuit.CLOSED, Circuit.OPEN):
        breaker.failed(EngineError("no"))
        assert breaker.circuit == expected
    assert not breaker.admits
    for backoff_s in (1, 2, 4, 4):  # doubled by each probe that fails, up to the most
        clock.now_s += backoff_s * FIRST_BACKOFF_S - 0.01
        assert not breaker.admits
        clock.now_s += 0.02
        assert breaker.circuit == Circuit.HALF_OPEN and breaker.admits
        breaker.begin()
        assert not breaker.admits  # one at a time
        breaker.failed(EngineError("still not"))
    clock.now_s += 100
    breaker.begin()
    breaker.succeeded()
    assert breaker.circuit == Circuit.CLOSED and breaker.admits and not breaker.is_suspect


def test_a_probe_that_was_given_up_lets_the_next_one_through() -> None:
    clock = Clock()
    breaker = Breaker(1, clock=clock)
    breaker.failed(EngineError("no"))
    clock.now_s += 100
    breaker.begin()
    breaker.abandoned()
    assert breaker.admits


def test_starts_come_at_once_up_to_the_burst_and_then_at_the_rate() -> None:
    clock = Clock()
    limit = StartLimit(4.0, 3, clock)
    assert [limit.reserve() for _ in range(6)] == [0, 0, 0, 0.25, 0.5, 0.75]
    clock.now_s += 1.0  # four tokens: three for the credit, one to spare
    assert [limit.reserve() for _ in range(2)] == [0, 0.25]
    clock.now_s += 1000.0
    assert [limit.reserve() for _ in range(4)] == [0, 0, 0, 0.25]


def test_what_an_engine_says_is_read() -> None:
    facts = facts_of(INFO)
    assert facts.cpus == 8 and facts.memory_limit and facts.process_limit and facts.seccomp
    assert not facts.remapped and not facts.rootless
    assert facts.detail == "Docker Engine 28.2 (cgroup v2, systemd)"
    old = facts_of({key: value for key, value in INFO.items() if key != "CgroupVersion"})
    assert "cgroup v1" in old.detail
    remapped = facts_of({**INFO, "SecurityOptions": ["name=seccomp,profile=builtin", "name=userns"]})
    assert remapped.remapped and not remapped.rootless and "uids remapped" in remapped.detail


def test_a_rootless_engine_without_control_groups_limits_nothing() -> None:
    facts = facts_of({**INFO, "SecurityOptions": ["name=seccomp", "name=rootless"], "CgroupDriver": "none"})
    assert facts.remapped and facts.rootless and not facts.memory_limit and not facts.process_limit
    with pytest.raises(SandboxUnavailable, match=r"no limit on memory \(delegate .*Delegate=cpu.*processes"):
        check_facts(facts, "unix:///x", None, False)
    check_facts(facts, "unix:///x", None, True)


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        ({"MemoryLimit": False}, r"no limit on memory \(boot the host with `cgroup_enable=memory"),
        ({"PidsLimit": False}, r"no limit on the number of processes \(use a kernel with CONFIG_CGROUP_PIDS"),
        ({"SecurityOptions": []}, r"no filter of system calls \(use a kernel with CONFIG_SECCOMP_FILTER"),
    ],
)
def test_an_engine_that_lacks_a_limit_is_refused_with_the_cure(lack: dict[str, Json], said: str) -> None:
    facts = facts_of({**INFO, **lack})
    with pytest.raises(SandboxUnavailable, match=rf"unix:///x enforces {said}.*allow_missing_limits true"):
        check_facts(facts, "unix:///x", None, False)
    check_facts(facts, "unix:///x", None, True)


def test_a_runtime_must_be_one_that_the_engine_has() -> None:
    check_facts(facts_of(INFO), "unix:///x", "runsc", False)
    with pytest.raises(SandboxUnavailable, match="has no runtime 'kata'; it has runc, runsc"):
        check_facts(facts_of(INFO), "unix:///x", "kata", False)


class FakeEngine:
    """Has the images it is given."""

    is_local = False

    def __init__(self, url: str, *images: tuple[str, Image]) -> None:
        self.url = url
        self.images = dict(images)

    async def image(self, reference: str) -> Image | None:
        return self.images.get(reference)


def image(image_id: str, *digests: str, layers: tuple[str, ...] = ("layer",)) -> Image:
    return Image(image_id=image_id, layers=layers, digests=digests)


async def on(choice: ImageChoice, *engines: FakeEngine) -> list[str]:
    return [await choice.on(engine) for engine in engines]  # type: ignore[arg-type]


async def test_engines_may_give_one_image_two_ids_but_not_two_contents() -> None:
    ours = RECIPE.reference
    one, same = FakeEngine("one", (ours, image("id1"))), FakeEngine("same", (ours, image("id2")))
    assert await on(ImageChoice(None), one, same) == ["id1", "id2"]
    other = FakeEngine("other", (ours, image("id3", layers=("another",))))
    with pytest.raises(SandboxUnavailable, match=r"not the same on all engines: id1 at one, id3 at other.*build"):
        await on(ImageChoice(None), one, other)
    with pytest.raises(SandboxUnavailable, match="engine at none has no image"):
        await on(ImageChoice(None), one, FakeEngine("none"))


async def test_an_image_by_digest_must_have_that_digest() -> None:
    name = f"python@sha256:{'1' * 64}"
    right = FakeEngine("right", (name, image("id", f"sha256:{'1' * 64}")))
    wrong = FakeEngine("wrong", (name, image("id", f"sha256:{'2' * 64}")))
    assert await on(ImageChoice(name), right) == ["id"]
    with pytest.raises(SandboxUnavailable, match="so it is another one"):
        await on(ImageChoice(name), wrong)
    by_id = f"sha256:{'3' * 64}"
    assert await on(ImageChoice(by_id), FakeEngine("one", (by_id, image(by_id)))) == [by_id]


async def test_an_image_by_a_name_that_can_move_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    await on(ImageChoice(None), FakeEngine("one", (RECIPE.reference, image("id"))))
    assert not caplog.records
    await on(ImageChoice("python:3.11"), FakeEngine("one", ("python:3.11", image("sha256:55"))))
    assert "image python:3.11 is a name, which can move; give its id: sha256:55" in caplog.text


def facts(cpus: int) -> EngineFacts:
    return replace(facts_of(INFO), cpus=cpus)


def group_of(*cores: int) -> EngineGroup:
    urls = tuple(f"tcp://engine-{number}:2375" for number in range(len(cores)))
    group = EngineGroup(DockerConfig(engines=urls), None, "owner", CallMeter())
    for member, cpus in zip(group.members, cores, strict=True):
        member.reach, member.starts = Breaker(2, clock=Clock()), Breaker(2, clock=Clock())  # they stay open
        member.engine = FakeEngine(member.url)  # type: ignore[assignment]
        member.facts = facts(cpus)
    return group


async def place(group: EngineGroup) -> str:
    member = await group._assign(0.0)
    member.num_starting += 1
    return member.url.removeprefix("tcp://").removesuffix(":2375")


async def test_an_engine_with_more_cores_gets_more_containers() -> None:
    group = group_of(2, 4)
    places = [await place(group) for _ in range(12)]
    assert (places.count("engine-0"), places.count("engine-1")) == (4, 8)


async def test_an_engine_that_just_failed_comes_last_and_one_that_is_open_not_at_all() -> None:
    group = group_of(4, 4)
    group.members[0].starts.failed(EngineError("slow disk"))
    assert {await place(group) for _ in range(4)} == {"engine-1"}
    group.members[1].reach.failed(EngineError("gone"))
    group.members[1].reach.failed(EngineError("gone"))
    assert group.gauges() == {"engines_open": 1}
    assert await place(group) == "engine-0"
    group.members[0].starts.failed(EngineError("slow disk"))
    with pytest.raises(SandboxUnavailable) as caught:
        await place(group)
    assert "engine-0:2375: slow disk; tcp://engine-1:2375: gone" in str(caught.value)


async def test_all_engines_full_is_a_full_disk() -> None:
    group = group_of(1, 1)
    for member in group.members:
        error = member.typed(EngineDiskFull("write /x: no space left on device"))
        for _ in range(2):
            member.starts.failed(error)
    with pytest.raises(SandboxDiskFull, match="no room for a container in /var/lib/docker"):
        await place(group)


def test_a_full_disk_that_can_not_be_looked_at_is_told_all_the_same() -> None:
    group = group_of(1)
    member = group.members[0]
    member.facts = replace(facts(1), data_root="/" + "x" * 300)  # as one whose folder may not be entered
    member.engine.is_local = True  # type: ignore[union-attr,misc]
    error = member.typed(EngineDiskFull("write /x: no space left on device"))
    assert isinstance(error, SandboxDiskFull) and "can't be seen from here" in str(error)


def test_an_engine_on_the_network_without_tls_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"):
        monkeypatch.delenv(name, raising=False)
    assert endpoint_of("tcp://127.0.0.1").base_url == "tcp://127.0.0.1:2375"
    assert endpoint_of("tcp://[::1]:99").base_url == "tcp://[::1]:99"
    assert not caplog.records
    endpoint_of("tcp://node-7")
    assert "tcp://node-7 is reached without TLS" in caplog.text
    assert endpoint_of("tcp://node-7", Tls(ca="a", cert="b", key="c")).port == 2376


def test_every_count_is_there_before_the_first_call_under_the_name_that_dashboards_use() -> None:
    names = [
        "calls_total", "calls_ok_total", "calls_timeout_total", "retries_total", "oom_kills_total",
        "leaks_total", "reaped_total", "start_failures_total", "replaced_lost_total",
        "replaced_dirty_total", "replaced_uses_total", "replaced_age_total", "replaced_ping_total",
        "replaced_backstop_total", "slots_used", "slots", "calls_waiting", "containers_live",
        "containers_spare", "engines_open",
    ]  # fmt: skip
    metrics = DockerBackend().metrics()
    assert {metrics[f"sandbox/{name}"] for name in names} == {0.0}


def test_what_is_true_now_is_not_named_like_a_count() -> None:
    """Of a name that ends in `_total` a run also tells by how much it grew in a step."""
    assert not [name for name in counts.GAUGES if name.endswith("_total")]
    assert all(name.endswith("_total") for name in counts.COUNTS)


def test_only_what_never_ran_for_long_is_forgotten() -> None:
    assert is_forgotten("created", 3600.0) and is_forgotten("exited", 3600.0)
    assert not is_forgotten("created", 30.0) and not is_forgotten("running", 1e9)


class Streams(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)


@contextlib.asynccontextmanager
async def engine_that_says(folder: Path, *pieces: bytes) -> AsyncIterator[Endpoint]:
    """Answers any request with these pieces, one after another, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    server = await asyncio.start_unix_server(serve, folder / "socket")
    async with server:
        yield Endpoint(path=str(folder / "socket"))
        await served.wait()


@pytest.mark.parametrize("cut", [1, 20, 60, 200])
async def test_no_byte_of_a_stream_is_lost_however_the_answer_is_cut(tmp_path: Path, cut: int) -> None:
    answer = b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/x\r\nUpgrade: tcp\r\n\r\n" + b"stream" * 20
    pieces = [answer[start : start + cut] for start in range(0, len(answer), cut)]
    streams = Streams()
    async with engine_that_says(tmp_path, *pieces) as endpoint, asyncio.timeout(60):
        await attach(endpoint, "1.41", "name", lambda: streams)
        await streams.lost
    assert streams.heard == b"stream" * 20


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'HTTP/1.1 404 Not Found\r\nContent-Length: 21\r\n\r\n{"message":"no such"}', "404: no such"),
        (b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{\"message\":\"bad\"}\r\n0\r\n\r\n", "500: bad"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>proxy</html>", "502: <html>proxy</html>"),
        (b"nonsense\r\n\r\n", "502: "),
        (b"", "closed the connection"),
    ],
)  # fmt: skip
async def test_an_engine_that_refuses_to_attach_is_quoted(tmp_path: Path, answer: bytes, said: str) -> None:
    async with engine_that_says(tmp_path, answer) as endpoint, asyncio.timeout(60):
        with pytest.raises(RequestRefused, match=said):
            await attach(endpoint, "1.41", "name", Streams)


async def test_what_an_engine_refuses_is_said_in_its_words_and_without_the_url_of_the_call() -> None:
    client = APIClient("unix:///nowhere.sock", version="1.41")
    engine = Engine(client, "unix:///nowhere.sock", 5.0, endpoint_of("tcp://127.0.0.1"), None)

    def refused() -> None:
        raise APIError("400 Client Error for http+docker://build?q=False", explanation="unknown instruction: FRM")

    with pytest.raises(EngineError, match=r"nowhere.sock did not build an image: unknown instruction: FRM$"):
        await engine._in_thread("build an image", refused, 5.0, None)
    await engine.close()
