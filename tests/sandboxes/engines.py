"""Docker engines of the tests' own, which they may fill, stop and kill: a dockerd in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agentgym_sandboxes.docker.image import RECIPE

REQUIRED = "AGENTGYM_REQUIRE_DOCKER"
START_TIMEOUT_S = 60.0
MIB = 1 << 20


def need_private_engines() -> None:
    """Skips the test where no dockerd can be started, or fails where the environment requires one."""
    missing = [name for name in ("dockerd", "docker", "mount", "ip") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        text = f"an engine of the tests' own needs {', '.join(missing)}"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, but {text}")
        pytest.skip(text)


class PrivateEngine:
    """A dockerd as a child of ours, with a bridge of its own: one without any removes docker0, another engine's.

    size_mib: of the file system that its data root lies on. subordinate_ids: what it sees in /etc/subuid and
    /etc/subgid, which stay as they are.
    """

    def __init__(
        self, folder: Path, options: Sequence[str] = (), size_mib: int = 1024, subordinate_ids: str = ""
    ) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.data_root = folder / "data"
        self.url = f"unix://{self.socket}"
        self.log = folder / "log"
        self._options = options
        self._size_mib = size_mib
        self._subordinate_ids = subordinate_ids
        self._process: subprocess.Popen[bytes] | None = None
        self._bridge = f"ag{zlib.crc32(str(folder).encode()):08x}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it answers."""
        if not self.data_root.exists():
            self.data_root.mkdir()
            options = f"size={self._size_mib}m,mode=711"
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.data_root)], check=True, timeout=30
            )
            subprocess.run(["ip", "link", "add", self._bridge, "type", "bridge"], check=True, timeout=30)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._prefix(),
                    "dockerd",
                    f"--host={self.url}",
                    f"--data-root={self.data_root}",
                    f"--exec-root={self.folder / 'exec'}",
                    f"--pidfile={self.folder / 'pid'}",
                    f"--containerd-namespace=agentgym-{self.folder.name}",
                    f"--containerd-plugins-namespace=agentgym-{self.folder.name}-plugins",
                    f"--bridge={self._bridge}",
                    "--iptables=false",
                    "--ip-masq=false",
                    "--ip-forward=false",
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._answers, START_TIMEOUT_S, self._why_not)

    def restart(self) -> None:
        """End what is left of it, as a service manager would, and start it."""
        self.stop()
        self._kill_rest()
        self.start()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, as an administrator or a crash would."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def load(self, archive: Path) -> None:
        self.docker("load", "-q", "-i", str(archive))

    def docker(self, *arguments: str) -> str:
        return subprocess.run(
            ["docker", "--host", self.url, *arguments], check=True, capture_output=True, text=True, timeout=120
        ).stdout

    def remove(self) -> None:
        """Leave nothing."""
        self.stop()
        self._kill_rest()
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True, timeout=30)
        for place in reversed(_mounts_below(str(self.folder))):
            subprocess.run(["umount", "-l", place], check=False, capture_output=True, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_rest(self) -> None:
        """A dockerd that was killed leaves its containerd, which may hang, and its containers' processes."""
        for pid in _processes_of(str(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not _processes_of(str(self.folder)), 30.0, lambda: "its processes did not end")
        # else the next dockerd may take a dead containerd, or who has its number now, for a running one
        (self.folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def _prefix(self) -> list[str]:
        """What runs dockerd with other files of subordinate ids, in mounts of its own."""
        if not self._subordinate_ids:
            return []
        file = self.folder / "subordinate_ids"
        file.write_text(self._subordinate_ids + "\n")
        Path("/etc/subuid").touch()  # something to mount over
        Path("/etc/subgid").touch()
        script = f'for f in /etc/subuid /etc/subgid; do mount --bind {file} $f || exit; done; exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh"]

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(self._why_not())
        command = ["docker", "--host", self.url, "version"]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0

    def _why_not(self) -> str:
        tail = self.log.read_text(errors="replace").splitlines()[-15:]
        return "dockerd did not answer:\n" + "\n".join(tail)


@contextlib.contextmanager
def private_engine(
    image: Path | None, options: Sequence[str] = (), size_mib: int = 1024, subordinate_ids: str = ""
) -> Iterator[PrivateEngine]:
    """A running engine, with the image from an archive. Gone at the end, whatever happened to it."""
    # short: sockets lie in it; letters and digits only: its name is a namespace's too
    folder = Path("/tmp", f"ag-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    folder.chmod(0o711)  # for users that ids are mapped to
    engine = PrivateEngine(folder, options, size_mib, subordinate_ids)
    try:
        engine.start()
        if image is not None:
            engine.load(image)
        yield engine
    finally:
        engine.remove()


def save_image(archive: Path) -> None:
    """The sandbox image of the machine's own engine."""
    subprocess.run(["docker", "save", "-o", str(archive), RECIPE.reference], check=True, timeout=120)


def until(condition: Callable[[], bool], timeout_s: float, why_not: Callable[[], str]) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {timeout_s:g} s: {why_not()}")
        time.sleep(0.1)


def _processes_of(folder: str) -> list[int]:
    """The processes that were started with something of that folder: dockerd, containerd and the shims."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            with contextlib.suppress(OSError):
                if folder.encode() in (place / "cmdline").read_bytes():
                    found.append(int(place.name))
    return found


def _mounts_below(folder: str) -> list[str]:
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return [place for place in (line.split()[1] for line in lines) if place.startswith(folder)]
