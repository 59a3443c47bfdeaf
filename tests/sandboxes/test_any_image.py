"""Sessions in images that hold nothing of ours: a static busybox, no libc, no Python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from images import image_of
from websites import serve_site

from agentgym.errors import UserError
from agentgym.sandbox import FileRefused, Limits, RunStatus, SandboxUnavailable, Session
from agentgym.types import SandboxSpec
from agentgym_sandboxes.agent.users import User, find_user
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig

pytestmark = pytest.mark.asyncio(loop_scope="session")
HOSTILE_ENV = (r"ENV PATH=/bin:/opt/tool GREETING=hello\ there LD_PRELOAD=/no.so PYTHONHOME=/no PYTHONPATH=/no",)
PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"
GROUP = "root:x:0:\napp:x:1001:\nextra:x:2000:app,root\n"


@pytest.fixture(scope="session")
def bare(busybox: Path) -> Iterator[str]:
    """Not even a folder for temporary files."""
    with image_of(busybox, [*HOSTILE_ENV, "WORKDIR /srv/app", "VOLUME /data", "HEALTHCHECK CMD exit 1"]) as image:
        yield image


@pytest.fixture(scope="session")
def of_app(busybox: Path) -> Iterator[str]:
    """Of an ordinary user."""
    files = {"etc/passwd": PASSWD, "etc/group": GROUP}
    with image_of(busybox, ["USER app", "ENV PATH=/bin", "WORKDIR /home/app"], files) as image:
        yield image


@pytest.fixture(scope="session")
def of_ghost(busybox: Path) -> Iterator[str]:
    """Of a user that it does not know."""
    with image_of(busybox, ["USER ghost"]) as image:
        yield image


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def docker(engine: str, bare: str, of_app: str, of_ghost: str) -> AsyncIterator[DockerBackend]:
    """Closed before its images are removed."""
    config = DockerConfig(pool_size=1, spares=0, spare_sessions=0, reap_every_s=1e6)
    config = replace(config, memory_mib=64, container_memory_mib=128)
    async with DockerBackend(config) as backend:
        yield backend


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["hardened", "task"])
async def session(request: pytest.FixtureRequest, docker: DockerBackend, bare: str) -> AsyncIterator[Session]:
    async with docker.session_for(SandboxSpec(session=True, image=bare, profile=request.param)) as session:
        yield session


async def test_the_variables_and_the_path_of_the_image_are_those_of_its_commands(session: Session) -> None:
    said = await session.exec("echo $GREETING $LD_PRELOAD $PYTHONHOME $PYTHONPATH $PATH")
    assert said.stdout == "hello there /no.so /no /no /bin:/opt/tool\n"
    assert (await session.exec(["no-such-program"])).exit_code == 127
    listed = (await session.exec("ps")).stdout
    assert "PACKED" not in listed and len(listed) < 2000  # the agent's own text, which a model would have to read


async def test_files_are_read_and_written_and_only_regular_ones(session: Session) -> None:
    await session.write("made/by/us.txt", b"text")
    assert (await session.exec("cat us.txt", folder="made/by")).stdout == "text"
    await session.exec("echo other > made/other; ln -s other made/link")
    assert await session.read("made/other") == b"other\n"
    assert "made/link" not in {file.path for file in await session.files()}
    for path in ("made/link", "made", "../etc/passwd"):
        with pytest.raises(FileRefused):
            await session.read(path)


async def test_a_command_ends_at_its_limits_with_all_that_it_started(session: Session) -> None:
    await session.exec("sleep 4000 &")  # a server, say
    slow = await session.exec("sleep 1000 & setsid sleep 2000 & sleep 3000", limits=Limits(wall_s=0.3))
    assert slow.status is RunStatus.TIMEOUT
    left = [line.split()[-1] for line in (await session.exec("ps")).stdout.splitlines() if "sleep" in line]
    assert left == ["4000"]
    flood = await session.exec("yes", limits=Limits(output_bytes=1000))
    assert flood.status is RunStatus.OUTPUT_LIMIT and len(flood.stdout) == 1000
    full = await session.exec("echo cannot: No space left on device >&2; exit 1")
    assert full.status is RunStatus.DISK_LIMIT  # as it says; a folder that other images have is not asked


async def test_there_is_no_network_but_the_server_that_it_is_led_to(session: Session) -> None:
    with serve_site() as site:
        address = f"127.0.0.1:{site.port}"
        assert (await session.exec(f"wget -qO- http://{address}/")).exit_code != 0
        port = await session.forward(f"http://{address}")
        reached = await session.exec(f"wget -qO- http://127.0.0.1:{port}/")
        assert reached.exit_code == 0 and reached.stdout


async def test_that_an_image_has_no_python_is_said_and_the_session_goes_on(session: Session, bare: str) -> None:
    with pytest.raises(UserError, match=f"image {bare} has no python3"):
        await session.run("1")
    assert (await session.exec("echo on")).stdout == "on\n"


async def test_hardened_is_the_default_and_is_what_it_is_in_our_own_image(docker: DockerBackend, bare: str) -> None:
    async with docker.session_for(SandboxSpec(session=True, image=bare)) as session:
        said = await session.exec("pwd; id -u; touch /bin/x /data/x /.agentgym/x; kill -9 1; cat /proc/self/status")
        folder, uid = said.stdout.split("\n")[:2]
        assert folder == "/work/home" and int(uid) >= 1 << 16
        assert said.stderr.count("Read-only file system") == 2  # /data is a folder in memory
        assert "CapEff:\t0000000000000000" in said.stdout and "NoNewPrivs:\t1" in said.stdout
        with pytest.raises(FileRefused, match="outside the work folder"):
            await session.read("/bin/busybox")
        await session.write("f", b"")
        await session.reset()
        assert await session.files() == ()


async def test_in_a_task_s_container_the_image_s_user_has_its_folder_and_its_rights(
    docker: DockerBackend, bare: str, of_app: str
) -> None:
    spec = SandboxSpec(session=True, image=bare, profile="task", memory_mib=160)
    async with docker.session_for(spec) as session:
        said = await session.exec("pwd; id -u; touch /bin/new && echo wrote; touch /.agentgym/x; echo $HOME")
        assert said.stdout.splitlines() == ["/srv/app", "0", "wrote", "/"] and "Read-only" in said.stderr
        await session.write("/etc/made/conf", b"x")
        assert (await session.exec("cat made/conf", folder="/etc")).stdout == "x"
        assert await session.read("/bin/busybox", max_bytes=1 << 23)
        with pytest.raises(UserError, match="open another session"):
            await session.reset()
        grown = await session.exec("x=12345678; while true; do x=$x$x; done", limits=Limits(wall_s=60, cpu_s=60))
        assert grown.status is RunStatus.OOM and grown.limit is not None and grown.limit.allowed == 160
        assert (await session.exec("echo on")).stdout == "on\n"
    async with docker.session_for(replace(spec, image=of_app)) as session:
        said = await session.exec("pwd; id; echo $HOME; touch /etc/x; su -c id")
        assert said.stdout.splitlines() == ["/home/app", "uid=1000(app) gid=1001(app) groups=2000(extra)", "/home/app"]
        assert "Permission denied" in said.stderr
        with pytest.raises(FileRefused, match="mode"):
            await session.write("/etc/x", b"")


async def test_run_takes_the_python_of_the_image(docker: DockerBackend) -> None:
    async with docker.session_for(SandboxSpec(session=True, profile="task")) as session:  # in our own
        await session.run("import sys; kept = sys.prefix")
        assert (await session.run("kept")).stdout == "'/usr'\n"
        assert (await session.run("1 / 0")).stderr.endswith("ZeroDivisionError: division by zero\n")
        assert (await session.run("while True: pass", limits=Limits(wall_s=0.3))).status is RunStatus.TIMEOUT
        assert (await session.run("kept")).stdout == "'/usr'\n"


async def test_an_image_that_is_missing_or_can_hold_no_session_is_named(docker: DockerBackend, of_ghost: str) -> None:
    with pytest.raises(SandboxUnavailable, match="has no image no-such:1, which a task names"):
        async with docker.session_for(SandboxSpec(session=True, image="no-such:1")):
            pass
    with pytest.raises(SandboxUnavailable, match=f"image {of_ghost} .* /etc/passwd has no 'ghost'"):
        async with docker.session_for(SandboxSpec(session=True, image=of_ghost, profile="task")):
            pass
    with pytest.raises(SandboxUnavailable, match="has no image no-such:1"):  # as a run begins
        await DockerBackend(replace(docker.config, session_image="no-such:1")).probe()
    small, large = SandboxSpec(session=True, memory_mib=64), SandboxSpec(session=True, memory_mib=4096, profile="task")
    assert docker.supports(replace(small, image="any")) and docker.supports(large)
    assert not docker.supports(SandboxSpec(image="any", memory_mib=64)) and not docker.supports(
        replace(large, profile="")
    )
    with pytest.raises(ValueError, match="needs session=True"):
        SandboxSpec(profile="task")


async def test_a_user_is_found_as_the_engine_finds_it(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text(f"{PASSWD}broken\n")
    (tmp_path / "group").write_text(GROUP)
    etc = str(tmp_path)
    assert find_user("", etc) == User(0, 0, [2000], "/root")
    assert find_user("app", etc) == find_user("1000", etc) == User(1000, 1001, [2000], "/home/app")
    assert find_user("app:extra", etc) == User(1000, 2000, [], "/home/app")
    assert find_user("7:8", etc) == User(7, 8, [], "/")
    assert find_user("7", str(tmp_path / "none")) == User(7, 0, [], "/")
    for text in ("ghost", "app:ghosts"):
        with pytest.raises(LookupError, match="ghost"):
            find_user(text, etc)


async def test_root_of_a_task_s_container_cannot_take_the_agent_along(docker: DockerBackend, bare: str) -> None:
    async with docker.session_for(SandboxSpec(session=True, image=bare, profile="task")) as session:
        assert (await session.exec("kill -9 -1")).exit_code == -9  # what forks the agent's children, too
        reached = await session.exec("echo 1000 > /proc/1/oom_score_adj; cat /proc/1/environ; echo on")
        assert reached.stdout == "on\n" and "Read-only" in reached.stderr and "Permission denied" in reached.stderr
        assert (await session.exec("while true; do kill -9 -1; done")).exit_code == -9
        for _ in range(3):  # that loop goes on, and kills what it can: its own fault, and nobody else's
            assert (await session.exec("echo on")).exit_code in (0, -9)
