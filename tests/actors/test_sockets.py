"""A folder of temporary files that is no place for sockets is refused before Monarch starts anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agentgym.actors.launchers import ProcessLauncher
from agentgym.actors.runtime import Runtime
from agentgym.actors.sockets import MAX_BYTES, OF_MONARCH, check_socket_folder
from agentgym.errors import UserError


@pytest.fixture
def use_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes a folder whose path has so many bytes the one of temporary files."""
    with TemporaryDirectory(prefix="é", dir="/tmp") as below:

        def use(size: int) -> None:
            folder = Path(below) / ("x" * (size - len(f"{below}/".encode())))
            folder.mkdir()
            monkeypatch.setenv("TMPDIR", str(folder))

        yield use


def test_a_path_is_as_long_as_its_sockets_allow(use_folder) -> None:
    use_folder(MAX_BYTES - OF_MONARCH)
    check_socket_folder()
    use_folder(MAX_BYTES - OF_MONARCH + 1)
    with pytest.raises(UserError, match=r"85 bytes long: at most 84 are allowed.*export TMPDIR=/tmp"):
        check_socket_folder()


@pytest.mark.parametrize("name", ["nowhere", "file"])
async def test_a_folder_that_is_none_is_named(name: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / name))
    with pytest.raises(UserError, match=rf"{name}', where no file can be made; give a short one on a local disk"):
        async with Runtime():
            pass


async def test_runs_and_host_processes_refuse_a_long_folder(use_folder) -> None:
    use_folder(80)
    with pytest.raises(UserError, match="80 bytes long: at most 77"):
        async with ProcessLauncher().hosts(None):
            pass
    use_folder(90)
    with pytest.raises(UserError, match="90 bytes long"):
        async with Runtime():
            pass
    words = [sys.executable, "-m", "agentgym.actors.child", "--name", "a", "--host", "tcp://:0"]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert "90 bytes long: at most 84" in done.stderr.splitlines()[-1], "which is what the controller is told"
