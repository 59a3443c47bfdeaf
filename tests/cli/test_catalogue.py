"""Commands of third parties: a distribution on the path brings one by an entry point."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs/cli.md"
[COMMAND] = [code for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "EXAMPLES" in code]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Lays out a distribution of one module whose commands have these names."""
    modules = set(sys.modules)

    def install(source: str, *names: str, distribution: str = "counts") -> None:
        site = tmp_path / distribution
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{distribution}_command.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {distribution}_command" for name in names]
        (info / "entry_points.txt").write_text("\n".join(["[agentgym.commands]", *lines, ""]))
        monkeypatch.syspath_prepend(site)

    yield install
    for name in set(sys.modules) - modules:
        if name.endswith("_command"):
            del sys.modules[name]


def test_a_command_is_listed_without_import_and_runs(cli, installed, capsys) -> None:
    installed(COMMAND, "count")
    assert cli("--help").code == 0
    assert "  count     Count the tasks of an environment\n" in capsys.readouterr().out
    assert "counts_command" not in sys.modules
    end = cli("count", "counting")
    assert (end.code, end.out) == (0, "100 tasks\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Broken."""\nimport not_there', "of counts failed to load from counts_command: ModuleNot"),
        ('"""Incomplete."""\nDESCRIPTION = ""', "of counts is incomplete"),
    ],
)
def test_a_broken_command_names_its_distribution_and_stops_no_other(
    cli, installed, capsys, source: str, expected: str
) -> None:
    installed(source, "count")
    end = cli("count")
    assert end.code == 2 and expected in end.err
    assert cli("--help").code == 0 and cli("runs", "--help").code == 0
    assert "  count " in capsys.readouterr().out


def test_our_own_names_win(cli, installed, capsys) -> None:
    installed(COMMAND, "runs", "count")
    cli("--help")
    assert "list the runs" in capsys.readouterr().out
    assert "--runs-dir" in cli("runs").err


def test_two_distributions_with_one_name_are_refused_by_both_names(cli, installed) -> None:
    installed(COMMAND, "count")
    installed(COMMAND, "count", distribution="sums")
    end = cli("count")
    assert end.code == 2 and "counts" in end.err and "sums" in end.err


def test_an_unknown_command_names_the_nearest_of_all(cli, installed) -> None:
    installed(COMMAND, "count")
    end = cli("cuont")
    assert end.code == 2 and "Did you mean 'count'?" in end.err
