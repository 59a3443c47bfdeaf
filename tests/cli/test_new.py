"""`agentgym new`: each template's package is installed, passes its own tests, and its check finds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agentgym.cli.packages import TEMPLATES
from agentgym.hooks import PluginRegistry


def finished(folder: Path, site: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_templates_package_is_installed_tested_and_checked(cli, tmp_path: Path, template: str) -> None:
    made = json.loads(
        cli("new", "my-own-thing", "--template", template, "--folder", str(tmp_path / "made"), "--json").out
    )
    folder, site = tmp_path / "made", tmp_path / "site"
    how = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    finished(tmp_path, site, "pip", "install", *how, "--target", str(site), "./made")
    assert " passed" in finished(folder, site, "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "tests")
    report = json.loads(finished(tmp_path, site, "agentgym.cli.main", "envs", "check", made["environment"], "--json"))
    assert report["clean"] and report["oracle"] >= 1.0 and report["gap"] > 0.6 * report["oracle"]
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E,F,B,UP", "--line-length", "120"]
    assert subprocess.run([*lint, str(folder)]).returncode == 0


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_package_has_an_entry_point_a_workflow_and_no_blank_left(cli, tmp_path: Path, template: str) -> None:
    end = cli("new", "kite", "--template", template, "--folder", str(tmp_path / "kite"))
    assert end.code == 0 and "pip install -e" in end.out
    files = {path.relative_to(tmp_path / "kite"): path for path in (tmp_path / "kite").rglob("*") if path.is_file()}
    assert not [path for path, file in files.items() if "{{" in file.read_text()]
    project = tomllib.loads((tmp_path / "kite" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["agentgym"] == {"kite": "kite"}
    workflow = files[Path(".github/workflows/check.yml")].read_text()
    assert f"run: agentgym envs check {'kite_trial' if template == 'reward' else 'kite'}\n" in workflow


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
        (["task"], "would call two things 'Task'; give another name, such as my_task"),
        (["house", "--template", "tools"], "two things 'House'"),
        (["score", "--template", "reward"], "two things 'score'"),
        (["max", "--template", "reward"], "two things 'max'"),
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
