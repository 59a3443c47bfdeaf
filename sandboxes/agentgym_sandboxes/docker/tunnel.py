"""A way to an engine behind ssh: OpenSSH forwards a private unix socket to the engine's."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

from agentgym_sandboxes.docker.endpoint import Endpoint, check_url

REMOTE_SOCKET = "/var/run/docker.sock"
READY = b"agentgym-ready"
END_TIMEOUT_S = 5.0
# Never the user's shared connection: our forward would live in that process, and longer than we do.
OPTIONS = (
    "BatchMode=yes", "ExitOnForwardFailure=yes", "StreamLocalBindMask=0177", "ControlMaster=no",
    "ControlPath=none", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ForwardAgent=no",
    "ForwardX11=no", "PermitLocalCommand=no",
)  # fmt: skip


class TunnelError(Exception):
    """ssh could not connect or forward; the message says what it said and what to do."""


class Tunnel:
    """One ssh process. It ends with us, whatever ends us: its remote command reads what we hold open."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.endpoint = Endpoint(path=str(folder / "docker.sock"))
        self._process = process
        self._folder = folder
        self._said = b""
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, url: str, timeout_s: float, ssh_config: str | None = None) -> Tunnel:
        """Connect and forward. Raises TunnelError."""
        if shutil.which("ssh") is None:
            raise TunnelError("there is no ssh command. Install OpenSSH's client (openssh-client)")
        try:
            folder = Path(tempfile.mkdtemp(prefix="agentgym-ssh-"))  # only we may enter it
        except OSError as error:
            raise TunnelError(f"no folder for ssh's socket could be made: {error}") from error
        try:
            process = await asyncio.create_subprocess_exec(
                *ssh_command(url, folder / "docker.sock", timeout_s, ssh_config),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to handle: containers are removed first
            )
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise TunnelError(f"ssh could not be started: {error}") from error
            raise
        tunnel = cls(process, folder)
        try:
            await tunnel._ready(url, timeout_s)
        except BaseException:
            await tunnel.close()
            raise
        return tunnel

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def close(self) -> None:
        """End ssh and remove the socket; safe to call twice."""
        process = self._process
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        await self._listener
        if process.stdin is not None:
            process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _ready(self, url: str, timeout_s: float) -> None:
        """The remote command runs only after the forward is established."""
        process = self._process
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                while line := await process.stdout.readline():
                    if line.strip() == READY:  # a login script may have said something first
                        return
                await asyncio.shield(self._listener)
        except TimeoutError:
            raise TunnelError(f"ssh did not connect within {timeout_s:g} s; {_how_to(url)}") from None
        said = " ".join(self._said.decode(errors="replace").split())[-300:]
        raise TunnelError(f"ssh ended: {said or 'it said nothing'}; {_how_to(url)}")

    async def _listen(self) -> None:
        """Keep the end of what ssh says; unread, it would block ssh one day."""
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(1 << 12):
            self._said = (self._said + data)[-4000:]


def ssh_command(url: str, local: Path, timeout_s: float, ssh_config: str | None) -> list[str]:
    """The command line that forwards `local` to the engine's socket."""
    parts = check_url(url)
    remote = parts.path if len(parts.path) > 1 else REMOTE_SOCKET
    command = ["ssh", "-T", *(["-F", ssh_config] if ssh_config else [])]
    for option in (*OPTIONS, f"ConnectTimeout={max(1, int(timeout_s))}"):
        command += ["-o", option]
    command += ["-L", f"{local}:{remote}"]
    if parts.port:
        command += ["-p", str(parts.port)]
    if parts.username:
        command += ["-l", parts.username]
    return [*command, "--", str(parts.hostname), f"echo {READY.decode()}; exec cat >/dev/null"]


def _how_to(url: str) -> str:
    parts = check_url(url)
    target = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname
    return (
        f"see that `ssh -o BatchMode=yes {target} docker info` answers without asking anything: a key that needs no "
        "passphrase or is in the agent, a known host key, and a user in the group docker"
    )
