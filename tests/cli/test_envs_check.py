"""`agentgym envs check`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym.hooks import PluginRegistry

FAULTY = Path(__file__).parents[1] / "data" / "faulty"
QUICK = "wrong,candidates,oracle"


@pytest.fixture(autouse=True)
def in_folder(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FAULTY)
    cli.plugins = PluginRegistry.discover


def test_a_clean_environment_ends_with_0(cli) -> None:
    end = cli("envs", "check", "sums.py:Sums", "--only", QUICK, "--tasks", "6")
    assert end.code == 0 and end.out.endswith("no finding\n")
    assert "oracle 1.000, floor 0.000, gap 1.000" in end.out


def test_a_finding_ends_with_1_and_is_named(cli) -> None:
    end = cli("envs", "check", "gamed.py:InText", "--only", QUICK)
    assert end.code == 1 and "gamed [candidates]" in end.out and "FINDING" in end.out
    end = cli("envs", "check", "gamed.py:InText", "--only", QUICK, "--allow", "gamed:candidates")
    assert end.code == 0 and "allowed: gamed" in end.out


def test_json_is_for_scripts(cli) -> None:
    end = cli("envs", "check", "gamed.py:InText", "--only", QUICK, "--json")
    report = json.loads(end.out)
    assert end.code == 1 and report["clean"] is False
    assert [(one["kind"], one["where"]) for one in report["findings"]] == [("gamed", "candidates")]
    assert {one["probe"]: one["finding"] for one in report["probes"]}["wrong"] is False


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "the following arguments are required: ENV"),
        (("gamed.py:InTxt",), "Did you mean 'InText'?"),
        (("sums.py:Sums", "--only", "wrnog"), "Did you mean 'wrong'?"),
        (("sums.py:Sums", "--tasks", "1"), "give at least 2"),
        (("sums.py:Sums", "--env.options.size", "3"), "no option 'size'"),
        (("sums.py:Sums", "--loop.steps", "3"), "can be set here"),
        (("sums.py:Sums", "--rewards.sucess", "1"), "no reward 'sucess'"),
        (("sums.py:Sums", "--sandbx", "monty"), "Did you mean '--sandbox'?"),
    ],
)
def test_a_mistake_ends_with_2_and_is_named(cli, words: tuple[str, ...], expected: str) -> None:
    end = cli("envs", "check", *words)
    assert end.code == 2 and expected in end.err


def test_what_is_weighed_can_be_set(cli) -> None:
    end = cli("envs", "check", "broken.py:RewardIsNan", "--only", "empty", "--rewards.success", "1")
    assert end.code == 0 and "rewards: success x 1\n" in end.out
