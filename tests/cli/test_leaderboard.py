"""`agentgym leaderboard` and `agentgym.results`: eight measured policies, in every form, and read back."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from policy_servers import FaultyServer, completion

from agentgym import Environment, Episode, Reply, Task, hookimpl, results, reward
from agentgym.cli.jobs import Jobs
from agentgym.errors import UserError
from agentgym.models.resolve import policy_path
from agentgym.runs.folder import RunFolder

SOLVED = {"long": {0: 2, 5: 5, 10: 8, 15: 12, 20: 11}, "grpo-s0": {9: 6}, "grpo-s1": {9: 10}}
"""Of the checkpoints of runs: how many of the 16 tasks they solve."""


class Doubles(Environment):
    name, version = "doubles", 3

    @reward(inline=True)
    def correct(self, episode: Episode) -> float:
        return float(bool(episode.info["success"]))

    @reward(weight=0.5, inline=True)
    def brief(self, episode: Episode) -> float:
        return 0.25

    def tasks(self, split, seed=0) -> Iterable[Task]:
        for number in range(100):
            prompt = ({"role": "user", "content": f"twice {number}?"},)
            yield Task(task_id=f"twice-{number}", prompt=prompt, answer=2 * number, split=split)

    async def reply(self, context) -> Reply:
        context.info["success"] = context.messages[-1]["content"] == str(context.task.answer)
        return Reply(done=True)


class Plugin:
    @hookimpl
    def environments(self):
        return {"doubles": Doubles}


def answers(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Right for every fourth number."""
    number = int(re.sub(r"\D", "", body["messages"][0]["content"]))
    return completion(str(2 * number if number % 4 == 0 else "?"), usage=(100, 10))


@contextlib.contextmanager
def serving(server: FaultyServer) -> Iterator[None]:
    """In a loop and thread of its own: the command has the main one."""
    loop, opened = asyncio.new_event_loop(), server.open()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def eight(cli, made_once, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Five checkpoints of a run, a checkpoint of two seeds of another recipe, an API model whose server fails."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made_once(lambda: measure(cli))
    return cli


def measure(cli) -> None:
    registry, jobs = cli.plugins(), cli.jobs
    registry.register(Plugin(), "doubles")
    cli.plugins = lambda disabled=(): registry
    solved = {f"runs/{run}/checkpoints/step-{step:06d}": n for run, some in SOLVED.items() for step, n in some.items()}
    jobs.solves = lambda model, task, sample: (7 * task + sample) % 16 < solved[model]
    which = ("--tasks", "16", "--samples", "2")
    for name, rate in (("long", "1e-4"), ("grpo-s0", "2e-4"), ("grpo-s1", "2e-4")):
        own = ("--optimizer.lr", rate, "--loop.seed", name[-1] if name != "long" else "0", "--loop.steps", "1")
        assert cli("train", "--env", "doubles", "--set", "logging.sinks=[]", "--name", name, *own).code == 0
        for step in SOLVED[name]:
            path = RunFolder.open(f"runs/{name}").checkpoint_dir(step)
            path.mkdir()
            (path / "hf").symlink_to(policy_path())
            assert cli("eval", str(path), *which, "--name", f"{name}-{step}").code == 0
    server = FaultyServer(says=answers, faults=["500", "cut", "garbage", "429 after=0.01;", "500"])
    cli.jobs = Jobs()
    with serving(server):
        api = ("openai:tester", "--base-url", server.url, "--env", "doubles", "--policy.max_wait_s", "0.01")
        prices = ("--policy.price_prompt", "10", "--policy.price_completion", "50", "--set", "logging.sinks=[]")
        ended = cli("eval", *api, *prices, *which, "--name", "api", "--rollout.max_turns", "1")
        assert ended.code == 0, ended.err


def numbers(frame: list[dict[str, Any]], column: str) -> dict[str, float | None]:
    return {row["policy"]: None if row[column] in ("", None) else float(row[column]) for row in frame}


def test_eight_policies_are_ranked_and_every_form_reads_back_as_the_same(eight) -> None:
    assert eight("runs", "note", "evals/api", "with_errors & 5%", "--tag", "api").code == 0
    shown = eight("leaderboard", "evals")
    assert shown.code == 0, shown.err
    assert "doubles, version 3, 16 tasks\n" in shown.out
    lines = [line for line in shown.out.splitlines() if " step " in line or "openai" in line]
    assert [re.split(r"  +", line)[0] for line in lines] == [
        "long step 15", "long step 20", "grpo step 9, 2 seeds", "long step 10", "long step 5", "openai:tester",
        "long step 0",
    ]  # fmt: skip
    rows = json.loads(eight("leaderboard", "evals", "--each", "--json").out)["rows"]
    success = numbers(rows, "success")
    assert len(rows) == 8 and success["long step 15"] == 0.75 and success["openai:tester"] == 0.25
    cost = numbers(rows, "cost")
    assert cost["openai:tester"] == pytest.approx(32 * (100 * 10 + 10 * 50) / 1e6) and cost["long step 0"] is None
    assert numbers(rows, "num_broken")["openai:tester"] == 0, "what failed was asked for again"

    for name in ("all.csv", "all.md", "all.tex", "all.json"):
        ended = eight("leaderboard", "evals", "--each", "--output", name)
        assert ended.code == 0 and "8 rows of 8 evaluations" in ended.out, ended.err
    with Path("all.csv").open(encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert json.loads(Path("all.json").read_text())["rows"] == rows
    for column in ("success", "success_low", "success_high", "pass@2", "cost", "num_episodes", "version", "step"):
        assert numbers(read, column) == numbers(rows, column), column
    shown_success = {name: f"{value:.3f}" for name, value in success.items()}
    latex = re.sub(r"\\([&%_])", r"\1", Path("all.tex").read_text().replace(" & ", "\0"))
    for text, mark, body in ((Path("all.md").read_text(), " | ", "| "), (latex, "\0", "")):
        cells = [line.removeprefix("| ").split(mark) for line in text.splitlines() if mark in line and body in line]
        assert {line[0]: line[1] for line in cells if line[0] in success} == shown_success
        assert any("with_errors & 5%" in cell for line in cells for cell in line)


def test_a_group_of_seeds_has_the_interval_over_runs(eight) -> None:
    rows = json.loads(eight("leaderboard", "evals", "--json").out)["rows"]
    [group] = [row for row in rows if row["num_runs"] == 2]
    assert (group["success"], group["train_seeds"], group["num_episodes"]) == (0.5, "0 1", 64)
    half = 12.7062 * 0.125  # Student's t of one degree of freedom, and the standard error of 6/16 and 10/16
    assert [group["reward_low"], group["reward_high"]] == pytest.approx([0.5 - half, 0.5 + half], abs=1e-4)
    assert (group["success_low"], group["success_high"]) == (0, 1)
    searched = json.loads(eight("leaderboard", "evals", "--search", "GRPO", "--json").out)["rows"]
    assert [row["policy"] for row in searched] == [group["policy"]]
    last = eight("leaderboard", "evals", "--last", "--format", "csv").out.splitlines()
    assert len(last) == 1 + 3 and "long step 20" in "".join(last) and "long step 15" not in "".join(last)


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """In place, with the same size and times: only who reads it again sees that."""
    stat, text = path.stat(), path.read_text()
    path.write_text(change(text)[: len(text)].ljust(len(text)))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_only_what_has_changed_is_read_again(eight) -> None:
    for path in [*Path("evals").rglob("*"), *Path("runs").rglob("*")]:
        os.utime(path, (1e9, 1e9))

    def success() -> dict[str, float | None]:
        return numbers(json.loads(eight("leaderboard", "evals", "--each", "--json").out)["rows"], "success")

    before = success()
    for path in Path("evals").glob("*/evals/*.json"):
        rewrite(path, lambda text: "{}")
    assert success() == before, "none was read again"
    record = Path("evals/long-15/evals/step-000015.json")
    record.unlink()
    assert success() == {name: value for name, value in before.items() if name != "long step 15"}
    eight("runs", "note", "evals/api", "--tag", "new")
    assert success().keys() == before.keys() - {"long step 15", "openai:tester"}, "this one is damaged, and read again"


def test_what_is_not_finished_and_shards_are_left_out_by_name(eight) -> None:
    for name, step, change in (("long-5", 5, {"result": None}), ("long-0", 0, {"setup": {"shard": "1/2"}})):
        path = Path(f"evals/{name}/evals/step-{step:06d}.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    shown = eight("leaderboard", "evals", "--each")
    assert shown.code == 0 and len(re.findall(r" step |openai", shown.out)) == 6
    assert "left out, not finished: evals/long-5; agentgym eval --resume" in shown.out
    assert "left out, shards: evals/long-0; agentgym eval merge" in shown.out
    shutil.copytree("evals/long-5/evals", "runs/long/evals")
    shown = eight("leaderboard", "runs", "evals").out
    assert "left out, not finished, of runs: runs/long; agentgym eval RUN --every-checkpoint" in shown
    assert "evaluation of step 5: 32 of 32 episodes; if nothing plays it" in eight("status", "runs/long").out
    audited = json.loads(eight("runs", "audit", "runs/long", "--json").out)
    assert audited["interrupted"] == ["evals/step-000005.part.jsonl"]


def test_a_broken_file_of_prices_is_said_once(eight) -> None:
    Path("evals/prices.yaml").write_text("tester: {prompt: abc}")
    ended = eight("leaderboard", "evals/api")
    assert ended.code == 2 and "none of their evaluations could be read" in ended.err
    assert ended.err.count("prompt is 'abc'") == 1 and "UserError" not in ended.err


def test_versions_are_apart_and_other_tasks_are_named(eight) -> None:
    for name, step, change in (("long-5", 5, {"version": 4}), ("long-0", 0, {"num_tasks": 9})):
        path = Path(f"evals/{name}/evals/step-{step:06d}.json")
        saved = json.loads(path.read_text())
        saved["setup"] |= change
        path.write_text(json.dumps(saved))
    shown = eight("leaderboard", "evals").out
    assert "doubles, version 3\n" in shown and "doubles, version 4, 16 tasks\n" in shown
    assert "was played in versions 3, 4: figures of different versions do not compare" in shown
    assert "the rows differ in tasks (9, 16), " in shown and "rollout.max_turns (1, None)" in shown
    [_, header, *_] = eight("leaderboard", "evals", "--matrix").out.splitlines()
    assert re.split(r"  +", header) == ["policy", "doubles v3", "doubles v4"]
    only = eight("leaderboard", "evals", "--env", "doubles@4", "--json").out
    assert [row["policy"] for row in json.loads(only)["rows"]] == ["long step 5"]


def test_without_pandas_summaries_are_there_and_a_data_frame_says_what_to_install(eight, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert len(results.summaries("evals")) == 8
    with pytest.raises(UserError, match="a DataFrame needs pandas: pip install pandas"):
        results.load("evals")


def test_data_frames_of_summaries_seeds_and_episodes(eight) -> None:
    pandas = pytest.importorskip("pandas")
    found = results.load("evals")
    assert isinstance(found, pandas.DataFrame) and len(found) == 8 and found["success"].max() == 0.75
    assert len(results.load("evals", rows="seeds", env="doubles@3")) == 7
    episodes = results.load("evals", rows="episodes")
    assert len(episodes) == 8 * 32
    api = episodes[episodes["policy"] == "openai:tester"]
    assert api["success"].mean() == 0.25 and set(api["reward.correct"]) == {0.0, 1.0}
    with pytest.raises(UserError, match=r"of the environment 'double'\. Did you mean 'doubles'"):
        results.summaries("evals", env="double")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("leaderboard", "empty"), "there is no run and no evaluation in 'empty'"),
        (("leaderboard", "nowhere"), "no folder 'nowhere'"),
        (("leaderboard", "runs"), "but nothing was measured in them; measure a run's checkpoints with agentgym eval"),
        (("leaderboard", "evals/long-5/evals"), "it is inside of"),
        (("leaderboard", "evals", "--metric", "pas@2"), "Did you mean 'pass@2'"),
        (("leaderboard", "evals", "--sort", "cots"), "Did you mean 'cost'"),
        (("leaderboard", "evals", "--output", "a.xls"), "no format has '.xls'"),
        (("leaderboard", "evals", "--output", "evals/api/status.json/a.csv"), "a.csv: "),
        (("leaderboard", "evals", "--matrix", "--json"), "--matrix is a table; json has all columns of all rows"),
        (("leaderboard", "evals", "--tag", "x"), "none of 8 evaluations fits"),
        (("runs", "note", "evals/api", "--tag", "two words"), "can't be a tag"),
        (("runs", "note", "evals/api", "--untag", "x"), "there is no tag 'x' to remove"),
        (("runs", "note", "evals/long-5", "--step", "7", "--tag", "x"), "no evaluation of step 7; it has of steps 5"),
    ],
)
def test_mistakes(eight, words: tuple[str, ...], expected: str) -> None:
    Path("empty").mkdir()
    ended = eight(*words)
    assert ended.code == 2 and expected in ended.err, ended.err
