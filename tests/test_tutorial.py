"""The tutorial, followed word for word: each file is written where it says, each command is typed, for fewer steps."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "tutorial.md"
SHORTER = {
    "agentgym eval ": "--eval.tasks 32",
    "agentgym train ": "--loop.steps 18 --eval.tasks 48 --generator.replicas 1",
}
"""What is added to the words of the page: its own lengths need minutes on a busy machine, and find no other fault."""
PROGRAMS = {"pip": "pip", "pytest": "pytest -p no:cacheprovider -p no:asyncio", "agentgym": "agentgym.cli.main"}


@dataclass(frozen=True)
class Reader:
    """Somebody with an empty folder, and a virtual environment of their own in which agentgym is installed."""

    folder: Path

    def follows(self, block: Block) -> None:
        if path := block.marks.get("path"):
            assert (self.folder / path).is_file(), f"{block.name} replaces {path}, which was not made"
            (self.folder / path).write_text(block.text)
        elif block.language == "sh" and "once" not in block.marks:
            *lines, last = block.text.splitlines()
            for line in lines:
                self.types(line)
            self.types(last, int(block.marks.get("exits", 0)))

    def types(self, line: str, expected: int = 0) -> str:
        more = next((options for start, options in SHORTER.items() if line.startswith(start)), "")
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            ["bash", "-c", f"{line} {more}" if more else line],
            cwd=self.folder,
            env={**os.environ, **offline, "PATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == expected, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout


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
    yield Reader(tmp_path)


@pytest.mark.hostile
@pytest.mark.timeout(1200)
def test_a_newcomer_who_follows_it_has_a_trained_policy(reader: Reader) -> None:
    for block in blocks(PAGE):
        reader.follows(block)
    run = reader.folder / "runs" / "house"
    difference = json.loads((run / "comparison.json").read_text())["difference"]
    assert difference["mean"] >= 0.2 and difference["low"] > 0
