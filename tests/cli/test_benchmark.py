"""`agentgym benchmark`: `agentgym eval` with a benchmark's official options."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym import Reward, hookimpl
from agentgym.cli.results import eval_table
from agentgym.config import to_mapping
from agentgym.env import Benchmark
from agentgym.hooks import PluginRegistry
from agentgym.models.tiny import policy_path
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.yaml import dump_yaml
from agentgym_envs.code_exec import CodeExec
from tests.cli.conftest import Cli, Counting, measured

ROWS = Path(__file__).parents[1] / "data" / "humaneval_shaped.jsonl"


class Counted(Counting):
    """Counts up, as a published set of numbers asks for it."""

    name = "counted"
    benchmarks = {
        "numbers": Benchmark(
            tasks=7, source="a hub", licence="MIT", options={"start": 3}, settings={"rollout.cut_turns": "score"}
        )
    }


class Plugin:
    @hookimpl
    def environments(self):
        return {"counted": Counted, "counting": Counting, "code_exec": CodeExec}

    @hookimpl
    def rewards(self):
        return {name: Reward(name=name, function=lambda episode: 1.0, inline=True) for name in ("exact", "success")}


@pytest.fixture
def known(cli: Cli) -> Cli:
    def plugins(disabled=()) -> PluginRegistry:
        registry = PluginRegistry([], disabled)
        registry.register(Plugin(), "benchmarks")
        return registry

    cli.plugins = plugins
    return cli


def a_run_of_another_environment() -> str:
    """With an option and a reward that the benchmark's environment does not have."""
    config = {
        "env": {"name": "counting", "options": {"gone": 1}},
        "rewards": {"gone": 1.0},
        "logging": {"sinks": []},
        "rollout": {"max_turn_tokens": 99},
    }
    path = Path("runs/other")
    shutil.copytree(policy_path(), path / "checkpoints/step-000004/hf")
    with RunFolder.create("runs", "started") as folder:
        folder.set_status(RunStatus.DONE)
    (path / "status.json").write_bytes((folder.path / "status.json").read_bytes())
    (path / "config.yaml").write_text(dump_yaml(config))
    return str(path)


def test_it_plays_what_the_command_that_it_shows_plays(known: Cli) -> None:
    for model, more in (("builtin:tiny", ()), (a_run_of_another_environment(), ("--trust",))):
        given = ("numbers", model, "--seed", "5", "--logging.sinks", "[]", *more)
        shown = known("benchmark", *given, "--dry-run")
        assert shown.code == 0, shown.err
        words = shlex.split(shown.out.splitlines()[0])
        assert words[:3] == ["agentgym", "eval", model]
        for command in (("benchmark", *given), words[1:]):
            end = known(*command)
            assert end.code == 0, end.err
        mine, theirs = known.jobs.evaluated[-2:]
        assert to_mapping(mine) == to_mapping(theirs)
        assert (mine.env.name, mine.env.options, mine.rollout.cut_turns) == ("counted", {"start": 3}, "score")
        assert (mine.eval.tasks, mine.eval.greedy, mine.eval.samples_per_task, mine.eval.seed) == (7, True, 1, 5)
    assert mine.eval.benchmark == "numbers" and [*Path("evals").glob("other-step-000004-numbers-*")]
    assert mine.rollout.max_turn_tokens == 99, "the run's own limits"


def test_options_of_eval_win_and_samples_are_sampled(known: Cli) -> None:
    more = ("--tasks", "2", "--samples", "3", "--env.options.start", "9", "--logging.sinks", "[]")
    assert known("benchmark", "numbers", "builtin:tiny", *more).code == 0
    assert known("benchmark", "numbers", "builtin:tiny", "--rollout.temperature", "0.5", *more[-2:]).code == 0
    recipe, hot = known.jobs.evaluated
    assert not hot.eval.greedy and hot.eval.benchmark == "numbers"
    assert (recipe.eval.tasks, recipe.eval.samples_per_task, recipe.eval.greedy) == (2, 3, False)
    assert recipe.env.options == {"start": 9} and recipe.eval.benchmark == "", "it is another one now"


def test_data_of_ones_own_are_read_whole_and_the_short_split_says_so(known: Cli) -> None:
    given = ("humaneval", "builtin:tiny", "--data", str(ROWS), "--dry-run", "--logging.sinks", "[]")
    shown = known("benchmark", *given)
    assert "tasks        10 held-out tasks" in shown.out, shown.err
    assert "10 tasks, not 164: the test split has no more" in shown.out
    held_out = json.loads(known("benchmark", *given, "--json").out)["held_out"]
    assert held_out == {"asked": 164, "found": 10, "note": ""}
    shared = json.loads(known("benchmark", *given, "--json", "--env.options.test_share", "0.3").out)["held_out"]
    assert re.match(rf"The test split is {shared['found']} of the 10 rows of .*test_share 0.3", shared["note"])


def test_what_is_not_a_benchmark_is_refused_and_all_are_listed(known: Cli) -> None:
    rows = {row["name"]: row for row in json.loads(known("benchmark", "--json").out)}
    assert (rows["numbers"]["tasks"], rows["numbers"]["environment"], rows["humaneval"]["tasks"]) == (7, "counted", 164)
    for words, said in (
        (("number", "builtin:tiny"), "there is no benchmark 'number'.* Did you mean 'numbers'"),
        (("numbers",), "needs a MODEL"),
        (("numbers", "builtin:tiny", "--env", "counting"), "has its own environment"),
        (("numbers", "builtin:tiny", "--every-checkpoint"), "one by one"),
        (("humaneval", "builtin:tiny", "--data", "nowhere.jsonl"), "no file or folder 'nowhere.jsonl'"),
    ):
        end = known("benchmark", *words)
        assert end.code == 2 and re.search(said, end.err), end.err


def test_a_table_says_that_fewer_tasks_were_played_than_asked_for() -> None:
    short = replace(measured("tiny", 9), num_asked=164)
    header, [few, all_of_them] = eval_table([short, replace(short, num_asked=20)])
    place = header.index("tasks")
    assert (few[place], all_of_them[place]) == ("20 of 164", "20")
