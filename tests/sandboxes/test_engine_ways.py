"""Ways to an engine: TLS with certificates, ssh; and engines that map user ids."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.sandbox import CallCase, GradeRequest, SandboxUnavailable
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.tunnel import ssh_command
from tests.sandboxes.engines import PrivateEngine, need_private_engines, private_engine, until

pytestmark = pytest.mark.hostile

LARGE = GradeRequest(
    code="def f(n):\n    return 'x' * n\n", entry="f", cases=(CallCase(args=(1 << 20,), expected="x" * (1 << 20)),)
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's and a client's certificate, and another authority's client."""
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("ca", "other-ca"):
        _openssl(
            folder, "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-subj", f"/CN=agentgym-test-{authority}", "-keyout", f"{authority}-key.pem", "-out", f"{authority}.pem",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
    for name, authority, usage in (
        ("server", "ca", "serverAuth"),
        ("client", "ca", "clientAuth"),
        ("stranger", "other-ca", "clientAuth"),
    ):
        _openssl(
            folder, "req", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", f"/CN={name}",
            "-keyout", f"{name}-key.pem", "-out", f"{name}.csr",
        )  # fmt: skip
        extensions = folder / f"{name}.ext"
        extensions.write_text(
            f"subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage={usage}\n"
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        _openssl(
            folder, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", f"{authority}.pem",
            "-CAkey", f"{authority}-key.pem", "-CAcreateserial", "-extfile", extensions.name, "-out", f"{name}.pem",
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def engine(archive: Path, certificates: Path, port: int) -> Iterator[PrivateEngine]:
    """One that listens on a unix socket, and on a port with TLS."""
    options = [
        f"--host=tcp://127.0.0.1:{port}",
        "--tlsverify",
        f"--tlscacert={certificates / 'ca.pem'}",
        f"--tlscert={certificates / 'server.pem'}",
        f"--tlskey={certificates / 'server-key.pem'}",
    ]
    with private_engine(archive, options) as engine:
        yield engine


def tls(folder: Path, name: str = "client", ca: str = "ca.pem") -> dict[str, str]:
    return {
        "tls_ca": str(folder / ca),
        "tls_cert": str(folder / f"{name}.pem"),
        "tls_key": str(folder / f"{name}-key.pem"),
    }


async def works(backend: DockerBackend) -> None:
    assert (await backend.run("print(6 * 7)")).stdout == "42\n"
    assert (await backend.grade(LARGE)).passed
    await asyncio.gather(*(backend.run("print('x' * 60000)") for _ in range(8)))


@pytest.mark.slow
async def test_calls_over_tls(engine: PrivateEngine, certificates: Path, port: int) -> None:
    config = DockerConfig(engine=f"tcp://127.0.0.1:{port}", pool_size=1, spares=0, **tls(certificates))  # type: ignore[arg-type]
    async with DockerBackend(config) as backend:
        await works(backend)
    until(lambda: not engine.docker("ps", "-aq").split(), 30.0, lambda: "containers are left")


@pytest.mark.slow
async def test_dockers_own_variables_name_the_certificates(
    engine: PrivateEngine, certificates: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in (("ca", "ca.pem"), ("client", "cert.pem"), ("client-key", "key.pem")):
        shutil.copy(certificates / f"{name}.pem", tmp_path / file)
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    async with DockerBackend(DockerConfig(pool_size=1, spares=0)) as backend:
        assert (await backend.run("print(6 * 7)")).stdout == "42\n"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ca"), [("stranger", "ca.pem"), ("client", "other-ca.pem")])
async def test_neither_side_takes_a_stranger(
    engine: PrivateEngine, certificates: Path, port: int, name: str, ca: str
) -> None:
    config = DockerConfig(engine=f"tcp://127.0.0.1:{port}", **tls(certificates, name, ca))  # type: ignore[arg-type]
    with pytest.raises(SandboxUnavailable, match=r"no Docker engine answers; tried tcp://127\.0\.0\.1"):
        await DockerBackend(config).probe()


async def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = DockerConfig(engine="tcp://127.0.0.1:1", **tls(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=rf"no file {tmp_path}/ca.pem.*tls_ca, tls_cert, tls_key"):
        await DockerBackend(config).probe()


@pytest.fixture(scope="module")
def ssh_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A configuration of OpenSSH that reaches a server of our own, by a key of our own, as `engine-host`."""
    need_private_engines()
    sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("needs sshd and ssh")
    folder = tmp_path_factory.mktemp("ssh")
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=30
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    host_key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder / 'host'}\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {folder / 'user.pub'}\nPermitRootLogin yes\nUsePAM no\n"
        "PasswordAuthentication no\nAllowStreamLocalForwarding yes\n"
    )
    config = folder / "config"
    config.write_text(
        f"Host engine-host\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {folder / 'user'}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder / 'known'}\n  StrictHostKeyChecking yes\n"
    )
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log)
    try:

        def answers() -> bool:
            assert server.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0):
                return True
            return False

        until(answers, 60.0, lambda: "sshd did not listen")
        yield config
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
async def test_calls_over_ssh(engine: PrivateEngine, ssh_config: Path) -> None:
    url = f"ssh://engine-host{engine.socket}"
    before = _tunnels()
    config = DockerConfig(engine=url, ssh_config=str(ssh_config), pool_size=1, spares=0, ping_every_s=0.5)
    async with DockerBackend(config) as backend:
        await works(backend)
        assert len(_tunnels() - before) == 1
        # A connection that breaks is made again, and what was lost with it too.
        os.kill((_tunnels() - before).pop(), signal.SIGKILL)
        assert (await backend.run("print(6 * 7)")).stdout == "42\n"
    assert not _tunnels() - before
    until(lambda: not engine.docker("ps", "-q").split(), 30.0, lambda: "containers are left")


@pytest.mark.slow
async def test_ssh_that_fails_says_what_it_said_and_what_to_try(engine: PrivateEngine, ssh_config: Path) -> None:
    before = _tunnels()
    with pytest.raises(SandboxUnavailable) as caught:
        await Engine.connect("ssh://nobody-there@engine-host/run/no.sock", 5.0, ssh_config=str(ssh_config))
    assert "Permission denied" in str(caught.value)
    assert "ssh -o BatchMode=yes nobody-there@engine-host docker info" in str(caught.value)
    with pytest.raises(SandboxUnavailable, match=r"ssh://engine-host/run/no\.sock"):
        await Engine.connect("ssh://engine-host/run/no.sock", 5.0, ssh_config=str(ssh_config))
    assert not _tunnels() - before


def test_the_ssh_command_takes_no_options_from_an_address() -> None:
    command = ssh_command("ssh://me@host:2222/run/user/7/docker.sock", Path("/x/local.sock"), 10.0, None)
    assert command[command.index("--") + 1] == "host"
    assert "/x/local.sock:/run/user/7/docker.sock" in command
    assert command[command.index("-p") : command.index("-p") + 4] == ["-p", "2222", "-l", "me"]
    with pytest.raises(UserError):
        ssh_command("ssh://-oProxyCommand=touch", Path("/x"), 10.0, None)


@pytest.mark.slow
async def test_an_engine_that_maps_user_ids(archive: Path) -> None:
    with private_engine(archive, ["--userns-remap=daemon"], subordinate_ids="daemon:300000:65536") as remapped:
        async with DockerBackend(DockerConfig(engine=remapped.url, pool_size=2, spares=0)) as backend:
            capabilities = await backend.probe()
            assert "uids remapped" in capabilities.detail
            uid_map = (await backend.run("print(open('/proc/self/uid_map').read().split())")).stdout
            assert uid_map == "['0', '300000', '65536']\n"
            await works(backend)
            for _ in range(60):  # every uid of a container
                assert (await backend.run("import os; print(os.getuid() < 65536)")).stdout == "True\n"
            async with backend.session() as session:
                assert (await session.exec("id -u")).exit_code == 0


@pytest.mark.slow
async def test_a_map_of_too_few_user_ids_is_told(archive: Path) -> None:
    with private_engine(archive, ["--userns-remap=daemon"], subordinate_ids="daemon:300000:5000") as remapped:
        backend = DockerBackend(DockerConfig(engine=remapped.url, pool_size=1))
        with pytest.raises(SandboxUnavailable, match="65536 in /etc/subuid and /etc/subgid"):
            await backend.start()


def _tunnels() -> set[int]:
    """Our children that are ssh."""
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                name = (place / "comm").read_text().strip()
                if name == "ssh" and int(fields[1]) == os.getpid() and fields[0] != "Z":
                    found.add(int(place.name))
    return found


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)
