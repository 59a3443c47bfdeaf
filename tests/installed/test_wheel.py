"""The wheel, installed into an environment outside of the checkout, does what a user's first commands ask for.

The environment is a new one. What agentgym depends on is linked into it, package by package, from the tests' own, so
that gigabytes are not installed twice; pip itself, without an index, finds that nothing is missing.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import ROOT

from agentgym.errors import DISTRIBUTION
from agentgym.run.shipped_recipes import shipped_recipes
from agentgym.stability import VERSION

pytestmark = pytest.mark.hostile
BASE = r"packaging|pluggy|ruamel"
TRAINING = "[train,docker,monty,bubblewrap,tools,serve]"


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An environment, and an empty folder in which its commands run."""

    python: Path
    folder: Path

    def run(self, command: str, code: int = 0, **environ: str) -> str:
        """What a command of the shell prints. Its time is printed, too."""
        began = time.monotonic()
        outside = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        pip = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        environ = {**outside, **pip, "PATH": path, "OMP_NUM_THREADS": "1", **environ}
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=environ, capture_output=True, text=True, timeout=900
        )
        print(f"{time.monotonic() - began:6.1f} s  {command}")
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, timeout=120)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def environment(folder: Path, linked: str) -> Installed:
    """A new environment. linked: a pattern of the packages that it gets from the one of the tests."""
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(site.getsitepackages()[0]).iterdir():
        ours = re.match(rf"_?(editable_impl_)?{DISTRIBUTION}|agentgym", entry.name)
        if not ours and entry.name != "__pycache__" and re.match(linked, entry.name):
            (packages / entry.name).symlink_to(entry)
    own = folder / "env" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (own / "linked.pth").write_text(str(packages))
    for name, start in {"pip": f"{sys.executable} -m pip --python {python}"}.items() | {
        (tool, f"{python} -m {tool}") for tool in ("pytest", "mypy")
    }:
        (python.parent / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        (python.parent / name).chmod(0o755)
    (folder / "empty").mkdir()
    return Installed(python=python, folder=folder / "empty")


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    made = environment(tmp_path_factory.mktemp("whole"), ".")
    made.run(f"pip install '{DISTRIBUTION}{TRAINING} @ {built[1].as_uri()}'")
    where = made.run("python -c 'import agentgym, agentgym_envs; print(agentgym.__file__, agentgym_envs.__file__)'")
    assert str(ROOT) not in where and where.count(str(made.python.parents[1])) == 2
    return made


def test_the_sdist_builds_the_same_wheel_and_both_have_the_recipes(built: tuple[Path, Path], tmp_path: Path) -> None:
    sdist, wheel = built
    assert wheel.name.startswith(f"{DISTRIBUTION}-{VERSION}-")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=source, check=True, timeout=120
    )
    again = next(tmp_path.glob("*.whl"))
    names = [{one for one in zipfile.ZipFile(path).namelist() if "__pycache__" not in one} for path in (wheel, again)]
    assert names[0] == names[1]
    assert {f"agentgym/apps/{name}.yaml" for name in shipped_recipes()} <= names[0]
    tops = {name.partition("/")[0] for name in names[0]}
    assert tops == {
        "agentgym", "agentgym_envs", "agentgym_plugins", "agentgym_sandboxes", f"{DISTRIBUTION}-{VERSION}.dist-info",
    }  # fmt: skip


@pytest.mark.timeout(900)
def test_the_first_commands_of_a_user_work(installed: Installed) -> None:
    run = installed.run
    assert "two GPUs" in run("agentgym recipes")
    assert "grpo/qwen3_1.7b.yaml" in run("agentgym recipes --copy qwen3_1.7b")
    assert "rewards" in run("agentgym train grpo/math --dry-run")
    assert "success" in run("agentgym train --env code_exec --loop.steps 2 --name first")
    assert "success" in run("agentgym eval runs/first --env code_exec --tasks 8 --samples 1")
    run("agentgym view runs --export page.html")
    assert "first" in (installed.folder / "page.html").read_text()
    assert "agentgym" in run("agentgym doctor")


@pytest.mark.timeout(900)
def test_the_steps_of_a_new_packages_workflow_run_as_they_are(installed: Installed, built: tuple[Path, Path]) -> None:
    installed.run("agentgym new kite")
    workflow = (installed.folder / "kite" / ".github" / "workflows" / "check.yml").read_text()
    steps = re.findall(r"- run: (.*)", workflow)
    assert len(steps) == 5
    for step in steps:
        installed.run(f"cd kite && {step}", AGENTGYM=built[1].as_uri())
    assert "set AGENTGYM in .github/workflows/check.yml" in installed.run(f"cd kite && {steps[0]}", 1, AGENTGYM="")


def test_without_extras_a_command_says_in_a_line_what_to_install(built: tuple[Path, Path], tmp_path: Path) -> None:
    bare = environment(tmp_path, BASE)
    bare.run(f"pip install {built[1]}")
    for command, extra in {
        "agentgym train --env math": "train",
        "agentgym sft warm_start": "train",
        "agentgym eval builtin:tiny --env math": "train",
        "agentgym view runs --no-browser": "serve",
        "agentgym serve builtin:tiny": "serve",
        "agentgym eval openai:some --base-url http://127.0.0.1:9/v1 --env math": "train",
    }.items():
        [said] = [line for line in bare.run(command, 2).splitlines() if line.startswith("agentgym: ")]
        assert f"pip install '{DISTRIBUTION}[{extra}]'" in said, (command, said)
    assert f"tools need pydantic: pip install '{DISTRIBUTION}[tools]'" in bare.run("agentgym envs check tool_use", 1)
    said = bare.run("agentgym doctor", 1)
    assert f"pip install '{DISTRIBUTION}[train]'" in said and "Traceback" not in said
    assert "no finding" in bare.run("agentgym envs check math") and "math" in bare.run("agentgym envs")
