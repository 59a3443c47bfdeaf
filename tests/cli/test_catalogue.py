"""Commands of third parties: a distribution on the path brings one by an entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

COMMAND = '''"""Say hello."""
DESCRIPTION = "Say hello to somebody."
EXAMPLES = "agentgym greet --name you"
TAKES_OVERRIDES = False

def add_arguments(parser):
    parser.add_argument("--name", default="world")

def run(arguments, shell):
    shell.say(f"hello {arguments.name}")
    return 3
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Lays out a distribution of one module whose commands have these names."""
    modules = set(sys.modules)

    def install(source: str, *names: str, distribution: str = "greetings") -> None:
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
    installed(COMMAND, "greet")
    assert cli("--help").code == 0
    assert "  greet     Say hello\n" in capsys.readouterr().out
    assert "greetings_command" not in sys.modules
    end = cli("greet", "--name", "you")
    assert (end.code, end.out) == (3, "hello you\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Broken."""\nimport not_there', "of greetings failed to load from greetings_command: ModuleNot"),
        ('"""Incomplete."""\nDESCRIPTION = ""', "of greetings is incomplete"),
    ],
)
def test_a_broken_command_names_its_distribution_and_stops_no_other(
    cli, installed, capsys, source: str, expected: str
) -> None:
    installed(source, "greet")
    end = cli("greet")
    assert end.code == 2 and expected in end.err
    assert cli("--help").code == 0 and cli("runs", "--help").code == 0
    assert "  greet " in capsys.readouterr().out


def test_our_own_names_win(cli, installed, capsys) -> None:
    installed(COMMAND, "runs", "greet")
    cli("--help")
    assert "list the runs" in capsys.readouterr().out
    assert "hello" not in cli("runs").out


def test_two_distributions_with_one_name_are_refused_by_both_names(cli, installed) -> None:
    installed(COMMAND, "greet")
    installed(COMMAND, "greet", distribution="salutations")
    end = cli("greet")
    assert end.code == 2 and "greetings" in end.err and "salutations" in end.err


def test_an_unknown_command_names_the_nearest_of_all(cli, installed) -> None:
    installed(COMMAND, "greet")
    end = cli("gret")
    assert end.code == 2 and "Did you mean 'greet'?" in end.err
