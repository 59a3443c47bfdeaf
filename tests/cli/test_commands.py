"""The other commands: eval, runs, episodes, curve."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from sampled import sampled_turn

from agentgym.cli.evaluating import find_policy
from agentgym.models.tiny import policy_path
from agentgym.runs.changes import Change, record_change
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.sandbox import Capabilities
from agentgym.types import Episode, ErrorRecord, FinishReason, Group, Outcome, Stop, Task, ToolTrace, Turn, VersionSpan


@pytest.fixture
def run_dir(cli, made_once) -> str:
    """A run of five steps with episodes."""
    made_once(lambda: make_run(cli))
    return "runs/one"


def make_run(cli) -> None:
    assert cli.train("--name", "one", "--loop.steps", "5", "--rollout.temperature", "0.5").code == 0
    task = Task(task_id="sum-1", prompt=({"role": "user", "content": "1 + 1?"},), answer=2)
    versions = (VersionSpan(version=6, start=0, end=1), VersionSpan(version=7, start=1, end=2))
    said_in_turn = ("1 + 1?", "three", "no, try again", "two")
    turns = [
        replace(sampled_turn((1, 2), (3, 4), (-0.1, -3.0)), versions=versions),
        replace(sampled_turn((1, 2, 3, 4, 5), (6,), -0.2, version=7), finish_reason=FinishReason.LENGTH),
    ]
    good = Episode(
        episode_id="g1-0",
        task=task,
        seed=3,
        messages=[{"role": ("user", "assistant")[n % 2], "content": said} for n, said in enumerate(said_in_turn)],
        turns=turns,
        info={"success": True},
        stop=Stop.DONE,
        rewards={"exact": 1.0},
        reward=1.0,
        outcome=Outcome.SCORED,
    )
    broken = Episode(
        episode_id="g1-1",
        task=task,
        seed=4,
        stop=Stop.ERROR,
        outcome=Outcome.INFRA_ERROR,
        error=ErrorRecord(source="reward:exact", kind="Timeout", message="took 10 s"),
    )
    group = Group(group_id=1, task=task, start_version=6, episodes=[good, broken], advantages=[0.7, None])
    with RunFolder.open("runs/one", for_writing=True) as folder:
        folder.save_groups(4, [group])
        folder.save_groups(5, [group])
        folder.save_evaluation(5, [[good]])
        for step in (0, 2, 5):
            folder.checkpoint_dir(step).mkdir()
            (folder.checkpoint_dir(step) / "hf").symlink_to(policy_path())


# eval


EVAL = ("eval", "builtin:tiny", "--env", "counting", "--set", "logging.sinks=[]")


def test_eval_prints_success_with_its_interval_and_saves_its_episodes_and_result(cli) -> None:
    end = cli(*EVAL, "--tasks", "20", "--samples", "1", "--name", "mine")
    assert end.code == 0, end.err
    assert "0.450  [0.231, 0.685]" in end.out
    assert cli.jobs.evaluated[0].eval.tasks == 20 and cli.jobs.evaluated[0].model.path == "builtin:tiny"
    assert "20 episode(s), 9 with success" in cli("runs", "episodes", "evals/mine").out
    assert "what follows 3?" in cli("runs", "episodes", "evals/mine", "--show", "eval-0003-00", "--json").out
    record = read_record(RunFolder.open("evals/mine"), 0)
    assert record["setup"]["environment"] == "counting" and record["result"]["success"] == 0.45
    assert json.loads(cli("runs", "--runs-dir", "evals", "--json").out)[0]["held_out"] == 0.45
    assert cli(*EVAL, "--name", "mine").code == 2


def test_eval_reports_pass_at_k_by_difficulty(cli) -> None:
    cli.jobs.solves = lambda model, task, sample: task % 2 == 0 and sample == task // 2 % 4
    end = cli(*EVAL, "--samples", "4", "--json")
    lines = [json.loads(line) for line in end.out.splitlines()]  # one object a line, the last is the result
    result = lines[-1]
    assert result["event"] == "result" and result["folder"].startswith("evals/tiny-counting-")
    shares = {(one["difficulty"], one["k"]): (one["value"], one["num_tasks"]) for one in result["pass_at"]}
    # every second task is solved by one of its four samples
    assert shares == {
        (None, 1): (0.125, 20), (None, 2): (0.25, 20), (None, 4): (0.5, 20),
        (0, 1): (0.25, 10), (0, 2): (0.5, 10), (0, 4): (1.0, 10),
        (1, 1): (0.0, 10), (1, 2): (0.0, 10), (1, 4): (0.0, 10),
    }  # fmt: skip
    assert "0.500  [0.272, 0.728]" in cli(*EVAL, "--samples", "4").out


def test_an_interrupted_eval_goes_on_where_it_was(cli) -> None:
    cli.jobs.breaks_after = 7
    end = cli(*EVAL, "--name", "cut", "--samples", "1", "--seed", "5")
    assert end.code == 1 and "continue it: agentgym eval --resume evals/cut" in end.err
    assert "7 episode(s)" in cli("runs", "episodes", "evals/cut").out
    assert cli("eval", "--resume", "evals/cut", "--seed", "6").code == 2
    end = cli("eval", "--resume", "evals/cut")
    assert end.code == 0 and "7 were played before" in end.out and "0.450" in end.out
    assert cli.jobs.evaluated[-1].eval.seed == 5
    assert "20 episode(s)" in cli("runs", "episodes", "evals/cut").out
    end = cli("eval", "--resume", "evals/cut")
    assert end.code == 2 and "is done" in end.err


def test_eval_counts_what_was_cut_by_time_in_a_column_of_its_own(cli) -> None:
    cli.jobs.cuts = 5
    end = cli(*EVAL, "--samples", "1")
    header, row = (line.split("  ") for line in end.out.splitlines() if line.startswith(("checkpoint", "builtin:tiny")))
    cells = dict(zip([x.strip() for x in header if x.strip()], [x.strip() for x in row if x.strip()], strict=True))
    assert (cells["success"], cells["episodes"], cells["cut"], cells["infra errors"]) == ("0.600", "15", "5", "0")
    cli.jobs.cuts = 20
    end = cli(*EVAL, "--samples", "1")
    assert end.code == 1 and "builtin:tiny        -" in end.out and "pass@k" not in end.out, "nothing was measured"
    end = cli(*EVAL, "--samples", "1", "--json")
    found = json.loads(end.out.splitlines()[-1])
    assert (end.code, found["success"], found["num_cut"], found["cut_by"]) == (
        1,
        None,
        20,
        "rollout.generate_timeout_s = 60",
    )


def test_a_greedy_eval_plays_each_task_once(cli) -> None:
    assert cli(*EVAL, "--greedy").code == 0
    assert (cli.jobs.evaluated[0].eval.greedy, cli.jobs.evaluated[0].eval.samples_per_task) == (True, 1)
    end = cli(*EVAL, "--greedy", "--samples", "3", "--dry-run", "--name", "x")
    assert "greedily" in end.out and "3 times each" in end.out and "evals/x" in end.out
    assert len(cli.jobs.evaluated) == 1


def test_eval_of_a_run_takes_its_last_checkpoint_and_its_config(cli, run_dir: str) -> None:
    end = cli("eval", run_dir, "--samples", "3", "--json")
    assert end.code == 0, end.err
    recipe = cli.jobs.evaluated[0]
    assert recipe.model.path == "runs/one/checkpoints/step-000005"
    assert (recipe.rollout.temperature, recipe.eval.samples_per_task) == (0.5, 3)
    result = json.loads(end.out.splitlines()[-1])
    assert result["success"] == 0.45 and result["folder"].startswith("evals/one-step-000005-counting-")
    assert RunFolder.open(result["folder"]).episode_steps(evaluation=True) == [5]


def test_eval_of_a_checkpoint_takes_its_runs_config(cli, run_dir: str) -> None:
    assert cli("eval", "runs/one/checkpoints/step-000000").code == 0
    assert cli.jobs.evaluated[0].rollout.temperature == 0.5


def test_eval_of_what_is_not_there_names_the_nearest(cli, run_dir: str) -> None:
    end = cli("eval", "runs/one/checkpoints/step-00005")
    assert end.code == 2 and "Did you mean 'step-000005'?" in end.err
    assert cli("eval", "builtin:tiny", "--tasks", "0").code == 2


def test_eval_says_which_sandbox_ran_the_code(cli) -> None:
    cli.jobs.sandbox = "docker"
    assert "sandbox docker: 200 calls" in cli(*EVAL).out
    assert '"sandbox/calls": 200.0' in cli(*EVAL, "--json").out


# runs, curve


def test_runs_are_listed_with_state_and_figures(cli, run_dir: str) -> None:
    end = cli("runs")
    assert end.code == 0 and "one  done" in end.out and "0.050" in end.out
    assert "+0.300 [+0.027, +0.518]" in end.out  # the last checkpoint minus the first
    [row] = json.loads(cli("runs", "--json").out)
    assert (row["name"], row["step"], row["sandbox"], round(row["gain"]["mean"], 3)) == ("one", 5, "", 0.3)
    able = dict.fromkeys((field.name for field in fields(Capabilities)), False) | {"backend": "plain", "detail": "d"}
    with RunFolder.open(run_dir, for_writing=True) as folder:
        folder.save_sandbox(Capabilities(**able))
    assert "plain (UNSAFE)" in cli("runs").out
    with RunFolder.open(run_dir, for_writing=True) as folder:  # resumed with another one
        folder.save_sandbox(Capabilities(**{**able, "backend": "docker", "isolated": True}))
    assert "docker after plain (UNSAFE)" in cli("runs").out
    assert cli("runs", "--runs-dir", "gone").code == 2


def test_curve_draws_in_the_terminal_and_into_a_file(cli, run_dir: str) -> None:
    end = cli("runs", "curve", run_dir, "--png", "c.png")
    assert end.code == 0 and "first 0.01  last 0.05" in end.out
    assert "last minus first, task by task: +0.300 [+0.027, +0.518]" in end.out
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(cli("runs", "curve", run_dir, "--json").out)["rollout/reward_mean"]["steps"] == [1, 2, 3, 4, 5]
    end = cli("runs", "curve", run_dir, "--metric", "rollout/reward_meen")
    assert end.code == 2 and "Did you mean 'rollout/reward_mean'?" in end.err


# episodes


def test_episodes_are_listed_and_filtered(cli, run_dir: str) -> None:
    end = cli("runs", "episodes", run_dir)
    assert end.code == 0 and "g1-0" in end.out and "g1-1" in end.out and "v6,v7" in end.out
    assert "2 episode(s), 1 with success. Saved are steps 4 to 5." in end.out
    end = cli("runs", "episodes", run_dir, "--step", "all", "--outcome", "infra_error")
    assert "2 episode(s), 0 with success" in end.out and "g1-0" not in end.out
    assert "1 episode(s)" in cli("runs", "episodes", run_dir, "--success").out
    assert "1 episode(s)" in cli("runs", "episodes", run_dir, "--evals").out
    assert "0 episode(s)" in cli("runs", "episodes", run_dir, "--task", "nothing").out


def test_one_episode_is_shown_turn_by_turn(cli, run_dir: str) -> None:
    end = cli("runs", "episodes", run_dir, "--show", "1")
    assert end.code == 0
    order = ["success", "[user]", "1 + 1?", "[assistant]  turn 1: 2 tokens by v6 to token 1, then v7", "three",
             "try again", "turn 2: 1 tokens by v7, mean logprob -0.200, length", "two"]  # fmt: skip
    places = [end.out.index(word) for word in order]
    assert places == sorted(places)
    assert "reward    1.000 = exact 1.000" in end.out and "advantage 0.700" in end.out
    end = cli("runs", "episodes", run_dir, "--show", "g1-1")
    assert "reward:exact: Timeout: took 10 s" in end.out


def test_the_calls_of_an_episode_are_shown_where_they_were_made(cli, run_dir: str) -> None:
    asked = {"type": "function", "id": "call00000", "function": {"name": "buy", "arguments": {"item": "apple"}}}
    calls = [
        ToolTrace(turn=1, name="buy", arguments={"item": "apple"}, result="none left", error="tool", seconds=0.002),
        ToolTrace(turn=2, name="", arguments='{"name":', result="Error: no JSON", error="malformed"),
    ]
    episode = Episode(
        episode_id="shop",
        task=Task(task_id="shop-1", prompt=({"role": "user", "content": "An apple, please."},)),
        seed=3,
        messages=[
            {"role": "user", "content": "An apple, please."},
            {"role": "assistant", "content": "I buy it.", "tool_calls": [asked]},
            {"role": "tool", "content": "none left", "name": "buy", "tool_call_id": "call00000"},
            {"role": "assistant", "content": "", "tool_calls": []},
        ],
        tool_calls=calls,
        stop=Stop.MALFORMED,
        outcome=Outcome.INVALID,
    )
    with RunFolder.open("runs/one", for_writing=True) as folder:
        folder.save_evaluation(9, [[episode]])
    end = cli("runs", "episodes", run_dir, "--evals", "--step", "9", "--show", "shop")
    order = ["calls     2, 1 tool, 1 malformed", "[assistant]", "I buy it.", 'calls buy {"item": "apple"}',
             '[tool]  buy {"item": "apple"}, 2.0 ms, tool', "none left", 'unreadable {"name":, 0.0 ms, malformed',
             "Error: no JSON"]  # fmt: skip
    places = [end.out.index(word) for word in order]
    assert places == sorted(places)


def test_every_token_shows_where_it_came_from(cli, run_dir: str) -> None:
    end = cli("runs", "episodes", run_dir, "--show", "1", "--tokens")
    rows = [line.split() for line in end.out.splitlines() if line[:8].strip().isdigit()]
    assert [(r[2], r[4], r[5], r[6]) for r in rows] == [
        ("1", "context", "-", "-"),
        ("2", "context", "-", "-"),
        ("3", "policy", "6", "-0.1000"),
        ("4", "policy", "7", "-3.0000"),
        ("5", "context", "-", "-"),
        ("6", "policy", "7", "-0.2000"),
    ]


def test_the_branches_of_an_episode_are_shown_with_their_reasons(cli, run_dir: str) -> None:
    span = (VersionSpan(version=0, start=0, end=1),)
    turns = [
        Turn(prompt_ids=ids, completion_ids=(9,), logprobs=(-0.1,), versions=span, finish_reason=FinishReason.STOP)
        for ids in ((1, 2), (1, 2, 9, 3), (1, 2, 9, 4))
    ]
    prompt = {"role": "user", "content": "go"}
    messages = [prompt, {"role": "assistant", "content": "first"}, prompt, {"role": "assistant", "content": "last"}]
    episode = Episode(
        episode_id="forked",
        task=Task(task_id="t", prompt=(prompt,)),
        seed=0,
        messages=messages,
        turns=turns,
        branches=[(0, 1), (0, 2)],
        branch_reasons=["message altered"],
        info={"agent": {"not_honoured": {"dropped tool web_search": 2, "overridden_top_k": 1}}},
    )
    with RunFolder.open("runs/one", for_writing=True) as folder:
        folder.save_evaluation(9, [[episode]])
    where = ("--evals", "--step", "9", "--show", "forked")
    end = cli("runs", "episodes", run_dir, *where)
    order = ["branches  2, 1 message altered", "overruled 2 dropped tool web_search, 1 overridden_top_k",
             "[assistant]  turn 1:", "first", "[assistant]  turn 3:", "last",
             "branch 1 of 2: turns 1, 2", "  turn 2:"]  # fmt: skip
    places = [end.out.index(word) for word in order]
    assert places == sorted(places) and "branch 2 of 2" not in end.out, "all its turns are in the conversation"
    end = cli("runs", "episodes", run_dir, *where, "--tokens")
    rows = [line.split() for line in end.out.splitlines() if line[:8].strip().isdigit()]
    assert [row[2] for row in rows] == ["1", "2", "9", "3", "9", "1", "2", "9", "4", "9"]
    assert "branch 2 of 2: turns 1, 3; message altered" in end.out


def test_an_episode_as_json_is_whole(cli, run_dir: str) -> None:
    shown = json.loads(cli("runs", "episodes", run_dir, "--show", "1", "--json").out)
    assert shown["episode"]["turns"][1]["prompt_ids"] == [1, 2, 3, 4, 5]
    lines = cli("runs", "episodes", run_dir, "--json").out.splitlines()
    assert [json.loads(line)["index"] for line in lines] == [0, 1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--show", "9"], "step 5 has 1 to 2"),
        (["--show", "g1-9"], "Did you mean 'g1-"),
        (["--step", "99"], "saved are: steps 4 to 5"),
        (["--step", "x"], "a number or `all`"),
        (["--tokens"], "--tokens goes with --show"),
        (["--outcome", "bad"], "invalid choice"),
        (["--success", "--failure"], "not allowed with"),
    ],
)
def test_wrong_questions_about_episodes_are_refused(cli, run_dir: str, words, expected) -> None:
    end = cli("runs", "episodes", run_dir, *words)
    assert end.code == 2 and expected in end.err


def test_a_run_is_steered_by_settings_and_actions_and_a_mistake_asks_for_nothing(cli, run_dir: str) -> None:
    folder = RunFolder.open(run_dir, for_writing=True)
    for words, said in (
        (["loop.eval_every=3", "stopp"], "can't be asked for 'stopp'. Did you mean 'stop'?"),
        (["loop.group_size=4"], "'loop.group_size' can't change while a run goes on. These can: "),
        (["optimizer.rl=1"], "there is no setting 'optimizer.rl'. Did you mean 'optimizer.lr'? These can change: "),
        (["loop.eval_every"], "To change it: loop.eval_every=VALUE"),
    ):
        refused = cli("runs", "steer", run_dir, *words)
        assert refused.code == 2 and said in refused.err
    assert "the run is done, not running" in cli("runs", "steer", run_dir, "stop").err
    folder.set_status(RunStatus.RUNNING)
    with folder:
        asked = cli("runs", "steer", run_dir, "optimizer.lr=3e-5", "stop", "--wait", "0.1")
        assert asked.code == 1 and "the run answers after the step that it is in" in asked.out
        shown = json.loads(cli("runs", "steer", run_dir, "--json").out)
    assert [(one["action"], one["setting"], one["value"]) for one in shown["requests"]] == [
        ("set", "optimizer.lr", 3e-5), ("stop", "", None),
    ]  # fmt: skip
    assert {one["key"]: one["value"] for one in shown["settings"]}["loop.max_staleness"] == 1


def test_curves_are_marked_where_a_setting_was_changed(cli, run_dir: str) -> None:
    record_change(Path(run_dir), Change(step=3, setting="optimizer.lr", before=1e-3, value=5e-4))
    drawn = cli("runs", "curve", run_dir).out
    assert "▲ after step 3: optimizer.lr 0.001 -> 0.0005" in drawn
    assert json.loads(cli("runs", "curve", run_dir, "--json").out)["changes"][0]["value"] == 5e-4


def test_checkpoints_are_measured_as_one_curve_in_three_forms(cli, run_dir: str) -> None:
    shown = cli("eval", run_dir, "--every-checkpoint", "--tasks", "4")
    assert shown.code == 0, shown.err
    for step, value in ((0, "0.000"), (2, "0.200"), (5, "0.250")):  # of the last the reward
        assert re.search(rf"^ +{step} +{value}", shown.out, re.MULTILINE)
    assert re.search(r"├─+●─+┤", shown.out) and (Path(run_dir) / "checkpoints.png").stat().st_size > 10_000
    found = json.loads(cli("eval", run_dir, "--checkpoints", "2,last", "--json").out.splitlines()[-1])
    assert [(one["step"], one["success"], one["low"]) for one in found["curve"]] == [(2, 0.2, 0.1), (5, None, None)]
    assert "checkpoints  0 of" in cli("eval", run_dir, "--checkpoints", "0", "--dry-run").out
    assert json.loads(cli("eval", run_dir, "--checkpoints", "0", "--dry-run", "--json").out)["steps"] == [0]
    cli.jobs.breaks_after = 1
    broken = cli("eval", run_dir, "--every-checkpoint")
    assert broken.code == 1 and "continue it: the same command again" in broken.err
    assert RunFolder.open(run_dir).status().status is RunStatus.DONE, "it is the run's, not the evaluation's"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{run}", "--checkpoints", "2,9"], "has no checkpoint '9'; there are 0, 2, 5, and `last`"),
        (["{run}", "--every-checkpoint", "--seed", "3"], "leave out --seed"),
        (["{run}", "--every-checkpoint", "--rollout.temperature", "0.5"], "leave out --rollout.temperature"),
        (["{run}", "--every-checkpoint", "--checkpoints", "2"], "leave out --checkpoints"),
        (["{run}", "--every-checkpoint", "--env", "math"], "plays the run's own environment"),
        (["builtin:tiny", "--every-checkpoint"], "'builtin:tiny' is not the folder of one"),
        (["--every-checkpoint"], "give the run's folder"),
        (["{run}/checkpoints"], "does not name the step of a checkpoint; this run has step-000000, step-000002"),
        (["{run}/checkpoints/best"], "does not name the step of a checkpoint"),
        (["builtin:tiny", "--env", "counting", "--logging.sinks", "[]", "--generator.max_model_len", "4000"],
         "the model has 1024 positions (max_position_embeddings of its config.json); give --generator.max_model_len "
         "1024 --rollout.max_episode_tokens 512"),
    ],
)  # fmt: skip
def test_what_can_not_be_measured_is_said_before_anything_is_loaded(
    cli, run_dir: str, words: list[str], said: str
) -> None:
    Path(run_dir, "checkpoints", "best").mkdir()
    refused = cli("eval", *(word.format(run=run_dir) for word in words))
    assert refused.code == 2 and said in refused.err and not cli.jobs.evaluated


def test_the_weights_of_a_checkpoint_are_of_its_step(run_dir: str) -> None:
    for given in ("checkpoints/step-000002", "checkpoints/step-000002/hf"):
        assert find_policy(f"{run_dir}/{given}").step == 2
