"""`agentgym` on PyPI is another project: what we ship, print, generate or document installs ours by its own name."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import tomllib
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pages import ROOT

from agentgym import __version__
from agentgym.cli.catalogue import load_command
from agentgym.cli.packages import TEMPLATES
from agentgym.errors import DISTRIBUTION, pip_install, pip_install_only
from agentgym.hooks import PluginRegistry, PluginStatus
from agentgym.stability import API
from agentgym.yaml import read_yaml
from agentgym_envs.gymnasium.environment import GymnasiumEnvironment
from agentgym_envs.reasoning_gym.environment import ReasoningGym
from agentgym_sandboxes.monty import sandboxes

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SOURCE = "git+https://example.org/me/agentgym@v1"
USES = re.compile(
    r"""
    (?<![\w/.-])agentgym(?:\[[\w,]*\]|\{\{\w+\}\})?[ ]*@[ ]\S  # pip would refuse it: what is there has our name
    | (?<![\w/.-])agentgym\[
    | pypi\.org/\w+/agentgym\b
    | \b(?:(?:pip3?|pipx|uv|poetry|pdm|conda|mamba)[ ](?:pip[ ])?(?:install|add|run|download|inject)|uvx)
      [ ](?:[^\s&;|{}`]+[ ])*?['"]?agentgym(?![\w/.\[-])
    | (?:dependencies|requires)[ ]*=[ ]*\[[^\]]*['"]agentgym(?:['"]|[ ]*[<>=!~;,])
    """,
    re.VERBOSE,
)


def uses(text: str) -> list[str]:
    return [match[0] for match in USES.finditer(text)]


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'agentgym[docker]'",
        "python -m pip install -U agentgym",
        'f"pip install agentgym[{extra}], or leave it out"',
        "uv add agentgym",
        "uvx agentgym train",
        "uv pip install agentgym==0.1",
        "[agentgym](https://pypi.org/project/agentgym/)",
        f"pip install agentgym @ {SOURCE}",
        'needs = "agentgym{{extras}} @ $PLACE"',
        'dependencies = ["agentgym"]',
        'dependencies = [\n  "pluggy",\n  "agentgym>=0.1",\n]',
    ],
)
def test_a_use_of_the_name_is_seen(text: str) -> None:
    assert uses(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install -e '.[docker]'",
        "pip install 'gymwright[docker]'",
        f"pip install 'gymwright[docker] @ {SOURCE}'",
        "pip install -e . && agentgym train",
        "pip install ./agentgym-env",
        '[project.entry-points.agentgym]\nname = "agentgym"',
    ],
)
def test_another_use_is_none(text: str) -> None:
    assert not uses(text)


def test_no_file_installs_it() -> None:
    rooms = (".ci", "agentgym", "apps", "benchmarks", "docs", "envs", "plugins", "sandboxes", "tests")
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".tmpl", ".txt", ".sh", ".js", ".html", ".cfg", ".json", ""}
    files = [path for room in rooms for path in (ROOT / room).rglob("*") if path.suffix in kinds and path.is_file()]
    files += [ROOT / name for name in ("README.md", "AGENTS.md", "Makefile", "pyproject.toml")]
    assert len(files) > 1000
    found = {}
    for path in files:
        if path != Path(__file__) and (seen := uses(path.read_text(errors="replace"))):
            found[str(path.relative_to(ROOT))] = seen
    assert not found, f"{found}: use errors.pip_install(EXTRA), or `pip install 'gymwright[EXTRA]'` on pages"


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("source", ["", SOURCE])
def test_a_made_package_depends_on_what_the_user_named(cli, tmp_path: Path, template: str, source: str) -> None:
    words = ["new", "kite", "--template", template, "--folder", str(tmp_path / "kite")]
    end = cli(*words, *(["--source", source] if source else []))
    texts = {path: path.read_text() for path in (tmp_path / "kite").rglob("*") if path.is_file()}
    assert end.code == 0 and not [use for text in (end.out, *texts.values()) for use in uses(text)]
    needs = tomllib.loads(texts[tmp_path / "kite" / "pyproject.toml"])["project"]["dependencies"]
    [need] = map(Requirement, needs)
    assert (need.name, need.url, str(need.specifier)) == (DISTRIBUTION, source or None, "" if source else f">={API}")
    assert need.extras <= set(EXTRAS)
    path = tmp_path / "kite" / ".github" / "workflows" / "check.yml"
    assert read_yaml(path)["env"] == {"AGENTGYM": source}
    assert "set AGENTGYM in" in texts[path] and ("--source" in end.out) != bool(source)


def test_a_file_of_this_machine_is_named_by_its_address(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my wheels").mkdir()
    wheel = tmp_path / "my wheels" / "gymwright-0.1.0-py3-none-any.whl"
    wheel.touch()
    monkeypatch.chdir(tmp_path)
    assert cli("new", "kite", "--source", "my wheels/gymwright-0.1.0-py3-none-any.whl").code == 0
    project = tomllib.loads((tmp_path / "kite" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == [f"gymwright @ {wheel.as_uri()}"]
    assert project["tool"]["hatch"]["metadata"] == {"allow-direct-references": True}


@pytest.mark.parametrize(
    "source",
    ["agentgym", "agentgym==0.1", "agentgym @ git+https://example.org/a", "a://b c", 'git+https://a/"b', "no/such.whl"],
)
def test_a_source_that_is_no_place_is_refused(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    end = cli("new", "kite", "--source", source)
    assert end.code == 2 and "git+https://" in end.err and not [*tmp_path.iterdir()]


def test_the_name_is_in_one_place_and_so_is_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dynamic"]) == (DISTRIBUTION, ["version"])
    assert importlib.metadata.version(DISTRIBUTION) == __version__


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"all"}))
def test_advice_for_an_extra_names_it_or_its_packages_alone(extra: str) -> None:
    assert pip_install(extra) == f"pip install '{DISTRIBUTION}[{extra}]'"
    _, command, *packages = shlex.split(pip_install_only(extra))
    assert command == "install" and {*map(Requirement, packages)} == {*map(Requirement, EXTRAS[extra])}


def test_what_an_older_name_left_installed_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, (found,) = tmp_path / "agentgym-0.1.0.dist-info", Distribution.discover(name=DISTRIBUTION)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agentgym\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(found.read_text("entry_points.txt") or "")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(importlib.metadata.entry_points(group="agentgym", name="math")) == 2
    records = [record for record in PluginRegistry.discover().records if record.name == "math"]
    assert [(one.distribution, one.status) for one in records] == [("agentgym", PluginStatus.FOUND)]
    assert load_command("sandbox")


def test_what_plugins_declare_is_what_the_extras_have() -> None:
    assert GymnasiumEnvironment.requirements == pip_install_only("gym")
    assert ReasoningGym.requirements == pip_install_only("reasoning_gym")
    assert sandboxes()["monty"].setup == f"`{pip_install_only('monty')}`"
