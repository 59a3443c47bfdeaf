"""Two pages, followed word for word: each file is written where it says, each command is typed."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pages import ROOT, Block, blocks

DOCS = ROOT / "docs"
SHORTER = {
    "agentgym eval builtin:tiny --env house_style ": "--eval.tasks 32",
    "agentgym train --env house_style ": "--loop.steps 18 --eval.tasks 48 --generator.replicas 1",
    "agentgym sft --env goods.py": "--generator.replicas 1",
    "agentgym train --env goods.py": "--generator.replicas 1",
}
"""What is added to the words of the page: its own lengths need minutes on a busy machine, and find no other fault."""
SERVER = "http://127.0.0.1:8720"  # of the page; the port that the test gets is another
PROGRAMS = {"pip": "pip", "pytest": "pytest -p no:cacheprovider -p no:asyncio", "agentgym": "agentgym.cli.main"}


@dataclass(frozen=True)
class Reader:
    """Somebody with an empty folder, and a virtual environment of their own in which agentgym is installed."""

    folder: Path
    servers: list[subprocess.Popen[str]] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)

    def follows(self, block: Block) -> None:
        if path := block.marks.get("path"):
            assert (self.folder / path).is_file(), f"{block.name} replaces {path}, which was not made"
            (self.folder / path).write_text(block.text)
        elif name := block.marks.get("file"):
            (self.folder / name).write_text(block.text)
        elif "server" in block.marks:
            self.serves(block.text.strip())
        elif block.language == "sh" and "once" not in block.marks:
            *lines, last = block.text.splitlines()
            for line in lines:
                self.types(line)
            self.types(last, int(block.marks.get("exits", 0)))

    def types(self, line: str, expected: int = 0) -> str:
        more = next((options for start, options in SHORTER.items() if line.startswith(start)), "")
        for shown, real in self.addresses.items():
            line = line.replace(shown, real)
        done = subprocess.run(
            ["bash", "-c", f"{line} {more}" if more else line],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == expected, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serves(self, line: str) -> None:
        """In a second terminal, until the test ends; returns when the server is ready."""
        command = ["bash", "-c", f"exec {line} --port 0 --json"]
        server = subprocess.Popen(command, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, text=True)
        self.servers.append(server)
        assert server.stdout is not None
        for printed in server.stdout:
            if url := json.loads(printed).get("url"):
                self.addresses[SERVER] = url
                return
        raise AssertionError(f"{line} ended with {server.wait()}")

    @property
    def environ(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return {**os.environ, **offline, "PATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """What pip installs goes into the reader's own environment; the packages of this one are seen from there."""
    venv.create(tmp_path / "own", with_pip=False)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "own")}))
    own.mkdir(parents=True, exist_ok=True)
    borrowed = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(borrowed)]
    (own / "borrowed.pth").write_text("\n".join(lines) + "\n")
    (tmp_path / "bin").mkdir()
    for name, module in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{tmp_path}/own/bin/python" -m {module} "$@"\n')
        program.chmod(0o755)
    reader = Reader(tmp_path)
    yield reader
    for server in reader.servers:
        with server:
            server.terminate()


@pytest.mark.hostile
@pytest.mark.timeout(1200)
def test_a_newcomer_who_follows_it_has_a_trained_policy(reader: Reader) -> None:
    for block in blocks(DOCS / "tutorial.md"):
        reader.follows(block)
    run = reader.folder / "runs" / "house"
    difference = json.loads((run / "comparison.json").read_text())["difference"]
    assert difference["mean"] >= 0.2 and difference["low"] > 0


@pytest.mark.hostile
@pytest.mark.timeout(1200)
def test_an_agent_on_data_of_its_own_is_fine_tuned_trained_and_compared(reader: Reader) -> None:
    for block in blocks(DOCS / "fifteen_minutes.md"):
        reader.follows(block)
    runs = reader.folder / "runs"
    warm, trained = (json.loads((runs / name / "comparison.json").read_text()) for name in ("warm", "trained"))
    assert warm["first"]["success"] == 0 and warm["difference"]["low"] > 0
    assert trained["first"]["success"] > 0 and trained["difference"]["low"] > 0
