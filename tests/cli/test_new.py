"""`agentgym new`: the package of each template is installed, and passes its own tests and the steps of its workflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentgym.cli.packages import TEMPLATES, PackagePlan
from agentgym.hooks import PluginRegistry
from agentgym.stability import API

ENVIRONMENTS = [name for name, template in TEMPLATES.items() if "environment" in template.modules]


def plan(template: str, folder: Path = Path()) -> PackagePlan:
    return PackagePlan(name=f"my_own_{template}", template=template, folder=folder / template)


@dataclass(frozen=True)
class Made:
    """The packages of all templates, installed side by side."""

    folder: Path
    site: Path

    def run(self, step: str, folder: Path) -> str:
        """What a line for the shell prints. Its end must be 0."""
        own = {"PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        quiet = {"PYTEST_ADDOPTS": "-q -p no:asyncio -p no:cacheprovider", "MYPY_CACHE_DIR": str(self.site / ".mypy")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", step],
            cwd=folder,
            env={**os.environ, **own, **quiet, "PATH": path},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("site"))
    for template in TEMPLATES:
        plan(template, made.folder).write()
    how = "--no-deps --no-build-isolation --no-index --disable-pip-version-check --quiet"
    made.run(f"python -m pip install {how} --target {made.site} ./*", made.folder)
    return made


@pytest.mark.slow
def test_the_tests_of_every_package_pass(made: Made) -> None:
    assert " passed" in made.run("pytest --import-mode=importlib */tests", made.folder)
    assert not made.run("ruff check --isolated --quiet --select E,F,B,UP --line-length 120 .", made.folder)
    assert not made.run("ruff format --isolated --diff --quiet --line-length 120 .", made.folder)


@pytest.mark.hostile
@pytest.mark.parametrize("template", ENVIRONMENTS)
def test_the_check_of_an_environment_finds_nothing(made: Made, template: str) -> None:
    report = json.loads(made.run(f"{plan(template).commands[0]} --json", made.site))
    assert report["clean"] and report["oracle"] >= 1.0 and report["gap"] > 0.6 * report["oracle"]


@pytest.mark.slow
def test_every_plugin_loads_and_provides_what_its_template_is_for(made: Made) -> None:
    plugins = json.loads(made.run("agentgym plugins --check --json", made.site))
    provided = [thing for plugin in plugins for thing in plugin["provides"]]
    hooks = {
        "env": "environments",
        "reward": "rewards",
        "sandbox": "sandboxes",
        "tools": "environments",
        "sink": "sinks",
    }
    hooks |= {template: about.kind for template, about in TEMPLATES.items() if about.kind}
    assert {f"{hook}:my_own_{template}" for template, hook in hooks.items()} <= {*provided}
    assert "my_own_command" in made.run("agentgym my_own_command --help", made.site)


@pytest.mark.hostile  # mypy reads agentgym first
def test_the_steps_of_every_packages_workflow_pass(made: Made) -> None:
    """Their tests, and the checks of environments, are tests above."""
    typed, checks = [], set[str]()
    for template in TEMPLATES:
        workflow = (made.folder / template / ".github/workflows/check.yml").read_text()
        steps = re.findall(r"- run: (.*)", workflow.partition(" '.[test]'")[2])
        assert steps == ["pytest", "mypy", plan(template).commands[0]]
        typed += [f"{template}/{plan(template).name}", f"{template}/tests"]
        checks |= set() if template in ENVIRONMENTS else {steps[-1]}
    made.run("mypy", made.folder / "env")
    made.run(f"mypy --strict {' '.join(typed)}", made.folder)
    for check in sorted(checks):
        made.run(check, made.site)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_package_has_an_entry_point_a_workflow_and_no_blank_left(cli, tmp_path: Path, template: str) -> None:
    end = cli("new", "kite", "--template", template, "--folder", str(tmp_path / "kite"))
    assert end.code == 0 and "pip install -e" in end.out
    files = {path.relative_to(tmp_path / "kite"): path for path in (tmp_path / "kite").rglob("*") if path.is_file()}
    assert not [path for path, file in files.items() if "{{" in file.read_text()]
    project = tomllib.loads((tmp_path / "kite" / "pyproject.toml").read_text())["project"]
    group, target = ("agentgym.commands", "kite.command") if template == "command" else ("agentgym", "kite")
    assert project["entry-points"] == {group: {"kite": target}}
    assert Path("kite/py.typed") in files
    module = Path("kite/command.py" if template == "command" else "kite/__init__.py")
    assert f'agentgym_api = "{API}"' in files[module].read_text()


def test_openenvs_package_has_what_openenv_validate_looks_for(tmp_path: Path) -> None:
    plan("openenv", tmp_path).write()
    project = tomllib.loads((tmp_path / "openenv/pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"server": "server.app:main"}
    words = [sys.executable, "-m", "server.app", "--help"]
    shown = subprocess.run(words, cwd=tmp_path / "openenv", capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "agentgym envs serve" in shown.stdout


def test_nothing_is_overwritten(cli, tmp_path: Path) -> None:
    mine = tmp_path / "kite" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    end = cli("new", "kite", "--folder", str(mine.parent))
    assert end.code == 2 and "nothing is overwritten" in end.err
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["Word Game"], "Did you mean 'word_game'?"),
        (["2048"], "begins with a letter"),
        (["import"], "give another, such as my_import"),
        (["json"], "a module of Python"),
        (["tests"], "such as my_tests"),
        (["math"], "such as my_math"),
        (["gymwright"], "such as my_gymwright"),
        (["numpy"], "a package 'numpy' is installed here"),
        (["python-dateutil"], "a package 'python_dateutil' is installed here"),
        (["task"], "would call two things 'Task'; give another name, such as my_task"),
        (["house", "--template", "tools"], "two things 'House'"),
        (["score", "--template", "reward"], "two things 'score'"),
        (["max", "--template", "reward"], "two things 'max'"),
        (["rloo", "--template", "advantage"], "built-in advantage 'rloo'; give another name"),
        (["train", "--template", "command"], "built-in command 'train'"),
        (["code_exec"], "there is a plugin 'code_exec' of agentgym"),
        (["kite", "--template", "envv"], "invalid choice: 'envv'"),
        ([], "required: NAME"),
    ],
)
def test_a_name_that_can_not_be_is_refused(cli, tmp_path: Path, monkeypatch, words: list[str], expected: str) -> None:
    cli.plugins = PluginRegistry.discover
    before = set(Path.cwd().iterdir())
    end = cli("new", *words)
    assert end.code == 2 and expected in end.err
    assert set(Path.cwd().iterdir()) == before
