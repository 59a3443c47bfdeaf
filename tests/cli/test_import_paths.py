"""`--env my_env.py:Name` and `--reward my.py:short`: files and modules instead of installed plugins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentgym.config import build
from agentgym.recipe import Recipe
from agentgym.runs.folder import RunFolder

ENVIRONMENT = (Path(__file__).parent.parent / "data" / "repeat_number.py").read_text()


@pytest.fixture(autouse=True)
def files(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_env.py").write_text(ENVIRONMENT)
    (tmp_path / "my.py").write_text(
        "from agentgym import reward\n@reward(weight=0.3)\ndef brief(episode): return 1.0\n"
    )
    (tmp_path / "broken.py").write_text("from agentgym import Enviroment\n")
    yield
    for name in [name for name in sys.modules if name == "my_env" or name.startswith("_agentgym_file_")]:
        del sys.modules[name]


def test_an_environment_and_rewards_of_files_are_trained_with_and_kept_in_the_config(cli) -> None:
    words = ("--reward", "my.py:brief", "--reward", "short=2", "--reward=exact=1")
    end = cli("train", "--env", "my_env.py:RepeatNumber", *words, "--set", "logging.sinks=[]")
    assert end.code == 0, end.err
    recipe = cli.jobs.trained[0][0]
    assert recipe.env.name == "my_env.py:RepeatNumber"
    assert recipe.rewards == {"my.py:brief": 0.3, "short": 2.0, "exact": 1.0}
    [path] = Path("runs").iterdir()
    assert path.name.startswith("RepeatNumber-")
    assert build(Recipe, RunFolder.open(path).load_config()) == recipe
    end = cli("train", "--resume", str(path), "--reward", "short")
    assert end.code == 2 and "--reward cannot be given with it" in end.err


def test_a_recipe_and_an_evaluation_take_them_too(cli) -> None:
    Path("r.yaml").write_text("env: {name: 'my_env:RepeatNumber'}\nrewards: {my.py:brief: 1.0, short: 0.5}\n")
    assert cli("eval", "builtin:tiny", "--recipe", "r.yaml", "--set", "logging.sinks=[]").code == 0
    recipe = cli.jobs.evaluated[0]
    assert recipe.env.name == "my_env:RepeatNumber" and set(recipe.rewards) == {"my.py:brief", "short"}


def test_their_tasks_are_shown(cli) -> None:
    end = cli("envs", "show", "my_env.py:RepeatNumber", "--tasks", "1")
    assert end.code == 0 and "rewards: success x 1, short x 0.1" in end.out
    Path("talks.py").write_text("print('loading')\nfrom my_env import RepeatNumber")
    end = cli("envs", "show", "talks.py:RepeatNumber", "--json", "--tasks", "1")
    assert json.loads(end.out)["task_id"] == "repeat/0" and "loading" in end.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--env", "my_env.py:RepeatNumbr"], "Did you mean 'RepeatNumber'?"),
        (["--env", "my_emv.py:RepeatNumber"], "no file 'my_emv.py'. Did you mean 'my_env.py'?"),
        (["--env", "broken.py:X"], "broken.py, line 1: from agentgym import Enviroment"),
        (["--env", "json:JSONDecoder"], "not a subclass of agentgym.Environment"),
        (["--reward", "my.py:breif"], "Did you mean 'brief'?"),
        (["--reward", "exakt"], "Did you mean 'exact'?"),
        (["--reward", "exact=much"], "'much' is not a number; write NAME=WEIGHT"),
        (["--env", "my_env.py:RepeatNumber", "--rewards.shrot", "1"], "Did you mean 'short'?"),
    ],
)
def test_what_is_wrong_with_a_path_is_one_message_and_exit_code_2(cli, words, expected) -> None:
    end = cli.train(*words)
    assert end.code == 2 and expected in end.err, end.err
    assert "Traceback" not in end.err and not Path("runs").exists()
