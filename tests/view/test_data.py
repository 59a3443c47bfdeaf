"""What the view says about a run is what its files hold."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from view_runs import HOSTILE, broken, episode, group, task, turn, write_evaluation, write_run, write_step

from agentgym.evals.compare import Saved, compare, compare_all
from agentgym.evals.diagnosis import diagnose
from agentgym.evals.statistics import paired_difference
from agentgym.runs.episode_index import index_path
from agentgym.runs.folder import RunFolder
from agentgym.tables.comparing import comparison_json, comparisons_json
from agentgym.tables.roots import Roots
from agentgym.types import Group
from agentgym.view.app import View, build_app
from agentgym.view.security import Access


def get(view: TestClient, path: str) -> dict:
    answer = view.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_the_list_has_every_run_of_the_folders_and_evaluations_too(runs: Path, open_view) -> None:
    evals = RunFolder.create(runs.parent / "evals", "other")
    write_evaluation(evals, 20, wins=3)
    found = get(open_view(runs, runs.parent / "evals"), "/api/runs")["runs"]
    assert [(one["id"], one["kind"], one["status"]) for one in found] == [
        ("evals:other", "eval", "running"),
        ("runs:one", "train", "done"),
    ]
    assert found[1]["held_out"] is None or found[1]["held_out"] == 7 / 8
    assert (found[1]["step"], found[1]["steps"], found[1]["environment"]) == (3, 4, "counting")
    assert found[0]["held_out"] == 3 / 8
    evals.close()


def test_the_list_counts_what_was_played_and_leaves_out_a_difference_of_other_tasks(runs: Path, open_view) -> None:
    run = RunFolder.open(runs / "one")
    difference = {"mean": 0.5, "low": 0.25, "high": 0.75, "num_tasks": 8}
    shard = RunFolder.create(runs.parent / "evals", "part")
    write_evaluation(shard, 0, wins=1)
    path = shard.evaluation_file(0, ".json")
    saved = json.loads(path.read_text())
    saved["setup"] |= {"shard": "1/4"}
    path.write_text(json.dumps(saved))
    shard.close()
    for tasks, gain in ((8, 0.5), (5, None)):
        record: dict = {"difference": difference, "last": {"num_tasks": tasks}}
        (run.path / "comparison.json").write_text(json.dumps(record))
        part, one = get(open_view(runs, runs.parent / "evals"), "/api/runs")["runs"]
        assert (one["gain"] or {"mean": None})["mean"] == gain and (one["tasks"], part["tasks"]) == (8, 2)


def test_runs_that_go_on_come_first_and_then_the_one_that_last_did_something(tmp_path: Path, open_view) -> None:
    for name, status, when, step in (
        ("old", "done", 1.6e9, 1.65e9),
        ("done", "done", 1.7e9, 0),
        ("on", "running", 1e9, 0),
    ):
        with write_run(tmp_path / "runs", name, steps=0, done=False) as folder:
            there = {"host": "elsewhere", "status": status, "reason": "", "time": when}
            (folder.path / "status.json").write_text(json.dumps(there))
            (folder.path / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": step}) + "\n")
    found = get(open_view(tmp_path / "runs"), "/api/runs")["runs"]
    assert [(one["name"], one["changed"]) for one in found] == [("on", 1e9), ("done", 1.7e9), ("old", 1.65e9)]


def test_a_single_run_can_be_given_and_nothing_beside_it_is_shown(runs: Path, open_view) -> None:
    write_run(runs, "two", steps=1)
    view = open_view(runs / "two")
    assert [one["id"] for one in get(view, "/api/runs")["runs"]] == ["runs:two"]
    assert view.get("/api/runs/runs:one").status_code == 404


def test_the_page_names_what_it_asks_first_so_that_it_comes_early(view: TestClient) -> None:
    links = re.findall("<([^>]*)>; rel=preload; as=fetch; crossorigin", view.get("/").headers["link"])
    assert links == ["/api/runs", "/api/runs/runs%3Aone", "/api/runs/runs%3Aone/curves"]
    assert get(view, links[1])["id"] == "runs:one" and get(view, links[2])["curves"]


def test_the_page_comes_in_the_colours_that_were_chosen(view: TestClient) -> None:
    plain = b"<html lang"
    for said, first in (("dark", b'<html data-theme="dark" lang'), ('"><script>', plain), ("system", plain)):
        page = view.get("/", headers={"cookie": f"other=1; agentgym-theme={said}"}).content
        assert page.startswith(b"<!doctype html>\n" + first)


def test_a_summary_adds_up_what_the_steps_measured(view: TestClient) -> None:
    found = get(view, "/api/runs/runs:one")
    shares = {one["phase"]: (one["seconds"], one["share"]) for one in found["time_shares"]}
    assert shares["generate"] == (4.5, 0.75) and shares["train"] == (1.5, 0.25)
    assert found["busy_share"] == 0.875 and found["time"]["wall_s"] == 6.0
    assert found["episodes"] == {"train": [1, 2, 3], "eval": [0, 3], "count": 3 * 12 + 2 * 16}
    steps, text = found["config"]["loop.steps"], "Training steps of the whole run; a resumed run may be given more."
    assert steps == {"value": 4, "source": "command line", "text": text}
    assert found["config"]["env.name"]["source"] is None


def test_the_sentence_is_that_of_the_command_line(runs: Path, view: TestClient) -> None:
    found = get(view, "/api/runs/runs:one")["diagnosis"]
    wanted = diagnose(RunFolder.open(runs / "one"))
    assert (found["verdict"], found["sentence"]) == (wanted.verdict, wanted.sentence) and found["sentence"]
    assert [one["kind"] for one in found["problems"]] == [one.kind for one in wanted.findings]
    assert not wanted.findings or found["problems"][0]["advice"] == wanted.findings[0].advice


def test_evaluations_are_paired_by_task_with_the_first(view: TestClient) -> None:
    first, last = get(view, "/api/runs/runs:one")["evaluations"]
    assert (first["success"], last["success"], first["difference"]) == (2 / 8, 7 / 8, None)
    wanted = paired_difference([[n < 2] * 2 for n in range(8)], [[n < 7] * 2 for n in range(8)], shares=True)
    got = last["difference"]
    assert (got["mean"], got["low"], got["high"], got["n"]) == (5 / 8, wanted.low, wanted.high, 8)
    assert got["to_step"] == 0 and got["clear"] is wanted.is_clear


def test_an_evaluation_says_how_many_episodes_were_cut_by_time(tmp_path: Path, open_view) -> None:
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        write_evaluation(folder, 0, wins=2, cut=3)
        write_evaluation(folder, 1, wins=2, cut=8)
    some, every = get(open_view(tmp_path / "runs"), "/api/runs/runs:one")["evaluations"]
    assert (some["success"], some["episodes"], some["cut"]) == (2 / 5, 10, 6)
    assert (every["success"], every["episodes"], every["cut"], every["difference"]) == (None, 0, 16, None)


def test_evaluations_with_other_seeds_are_not_paired(tmp_path: Path, open_view) -> None:
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        write_evaluation(folder, 0, wins=2)
        write_evaluation(folder, 1, wins=4, seed=2)
    found = get(open_view(tmp_path / "runs"), "/api/runs/runs:one")["evaluations"]
    assert [one["difference"] for one in found] == [None, None]


def test_curves_have_intervals_counts_and_units(view: TestClient) -> None:
    found = get(view, "/api/runs/runs:one/curves")
    curves = {one["key"]: one for one in found["curves"]}
    held_out = curves["eval/success"]
    assert (held_out["steps"], held_out["values"], held_out["n"]) == ([0, 3], [0.25, 0.875], [8, 8])
    assert all(a < v < b for a, v, b in zip(held_out["low"], held_out["values"], held_out["high"], strict=True))
    assert curves["eval/difference"]["values"] == [5 / 8]
    assert curves["rollout/success_mean"]["n"] == [3, 3, 3] and curves["rollout/success_mean"]["n_of"] == "groups"
    assert curves["view/no_signal_share"]["values"] == [1 / 3] * 3
    assert curves["view/truncated_share"]["values"] == [8 / 12] * 3  # of 12 episodes, 4 succeed
    assert curves["train/entropy"]["values"] == [None] * 3  # not a number
    assert curves["loop/staleness_max"]["bound"] == 1
    assert "train/loss" in found["names"]
    [one] = get(view, "/api/runs/runs:one/curves?keys=time/generate_s")["curves"]
    assert (one["values"], one["unit"]) == ([1.5] * 3, "s")


def test_long_curves_are_thinned_to_means_with_the_extremes_around_them(tmp_path: Path, open_view) -> None:
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        for step in range(1, 101):
            folder.append_metrics(step, {"train/loss": float(step)})
    [curve] = get(open_view(tmp_path / "runs"), "/api/runs/runs:one/curves?keys=train/loss&max=10")["curves"]
    assert curve["thinned"] and len(curve["values"]) == 10
    assert (curve["values"][0], curve["low"][0], curve["high"][0]) == (5.5, 1.0, 10.0)


def test_lanes_name_the_versions_that_sampled_each_group(view: TestClient) -> None:
    found = get(view, "/api/runs/runs:one/lanes?from=3&to=3")
    [step] = found["steps"]
    trained, _, skipped = step["groups"]
    assert (step["trained_at"], found["bound"]) == (2, 1)
    assert (trained["start"], trained["oldest"], trained["newest"], trained["staleness"]) == (1, 1, 2, 1)
    assert trained["tokens"] == [[1, 4], [2, 16]]  # of each episode's 5 tokens the first is of version 1
    assert (skipped["trained"], skipped["staleness"], skipped["success"]) == (False, None, 0.0)


def test_an_episode_comes_in_columns_each_token_once(view: TestClient) -> None:
    found = get(view, "/api/runs/runs:one/episodes/train-3-1")
    tokens = found["tokens"]
    assert tokens["id"] == [1, 2, 3, 10, 11, 4, 12, 13, 14] and tokens["count"] == 9
    assert tokens["origin"] == [0, 0, 0, 2, 2, 1, 2, 2, 2]
    assert tokens["mask"] == [0, 0, 0, 1, 1, 0, 1, 1, 1]
    assert tokens["logprob"] == [None, None, None, -0.125, -0.25, None, -0.125, -0.25, -0.375]
    assert tokens["version"] == [None, None, None, 1, 2, None, 2, 2, 2]
    assert tokens["advantage"] == [None, None, None, 1.0, 1.0, None, 1.0, 1.0, 1.0]
    assert tokens["turn"] == [0] * 5 + [1] * 4
    assert tokens["ratio"] is None and "trainer_logprobs" in tokens["ratio_missing"]
    places = [(one["first"], one["sampled"], one["end"], one["parent"]) for one in found["turns"]]
    assert places == [(0, 3, 5, None), (5, 6, 9, 0)]
    assert tokens["text"] is not None and len(tokens["text"]) == 9  # by the tokenizer of the shipped policy
    assert found["seed"] == str(2**60)  # more than JavaScript's numbers hold
    assert found["rewards"] == [
        {"name": "exact", "value": 1.0, "weight": 1.0}, {"name": "format", "value": None, "weight": None},
    ]  # fmt: skip
    assert [one.get("turn") for one in found["messages"]] == [None, 0, None, 1]
    assert found["messages"][1]["calls"] == [0] and found["messages"][2]["trace"] == 0
    assert found["sandbox_calls"][0] == {
        "turn": 1, "status": "ok", "seconds": 0.5, "error": "", "detail": {"passed": 2},
    }  # fmt: skip
    assert found["neighbours"] == {"previous": "train-2-12", "next": "train-3-2"}
    assert found["group_keys"] == [f"train-3-{n}" for n in range(1, 5)]


def test_an_episode_of_a_skipped_group_has_no_trained_token(view: TestClient) -> None:
    tokens = get(view, "/api/runs/runs:one/episodes/train-3-9")["tokens"]
    assert set(tokens["mask"]) == {0} and set(tokens["advantage"]) == {None}


def test_branches_share_the_turns_before_them(tmp_path: Path, open_view) -> None:
    """The third turn goes on from the first, with other words than the second."""
    one = episode(0, 0, success=True)
    one.turns.append(turn((1, 2, 3, 10, 11, 5, 6), (20, 21), old=0, new=0))
    one.branches, one.branch_reasons = [(0, 1), (0, 2)], ["message altered"]
    one.messages[2]["content"] = "4"
    one.messages.insert(1, {"role": "assistant", "content": "not of the policy"})
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        folder.save_groups(1, [Group(group_id=0, task=task(0), start_version=0, episodes=[one], advantages=[1.0])])
    view = open_view(tmp_path / "runs")
    found = get(view, "/api/runs/runs:one/episodes/train-1-1")
    assert found["tokens"]["id"] == [1, 2, 3, 10, 11, 4, 12, 13, 14, 5, 6, 20, 21]
    assert [one["parent"] for one in found["turns"]] == [None, 0, 0]
    assert [(one["turns"], one["reason"]) for one in found["branches"]] == [([0, 1], ""), ([0, 2], "message altered")]
    assert [one["turn"] for one in found["messages"]] == [None, None, 0, None, 2]
    assert get(view, "/api/runs/runs:one/episodes")["rows"][0]["branches"] == 2


def test_a_file_that_is_not_what_a_run_writes_is_an_answer_not_a_crash(runs: Path) -> None:
    record = {"format": 1, "step": 1, "group_id": 0, "index": 0, "start_version": 0, "advantage": None, "trained": True,
              "episode": {"episode_id": 3, "task": {"task_id": None}, "turns": [{"versions": 7}]}}  # fmt: skip
    (runs / "one" / "episodes" / "step-000009.jsonl.gz").write_bytes(
        gzip.compress(json.dumps(record).encode() + b"\n[1]\n")
    )
    (runs / "one" / "evals" / "step-000003.json").write_text('{"result": [], "setup": 3}')
    (runs / "one" / "config.yaml").write_text("[1, 2")
    (runs / "one" / "comparison.json").write_text("{")
    app = build_app(View(Roots.of([runs])), Access.of("127.0.0.1", 8710))
    with TestClient(app, base_url="http://127.0.0.1:8710", raise_server_exceptions=False) as view:
        for path in ("", "/curves", "/lanes", "/episodes?sort=-tokens", "/episodes/train-9-1", "/episodes/train-1-1"):
            answer = view.get(f"/api/runs/runs:one{path}")
            assert answer.headers["content-type"] == "application/json", path
            assert answer.status_code in (200, 404, 503), answer.text
        assert view.get("/api/runs").status_code == 200


def _edit(path: Path, change) -> None:
    """Rewrite the records of an episode file, which leaves its index behind."""
    from agentgym.runs.files import read_json_lines, write_json_lines

    records = list(read_json_lines(path))
    for record in records:
        change(record)
    write_json_lines(path, records)


def test_the_ratio_is_of_the_trainer_to_the_sampler(tmp_path: Path, open_view) -> None:
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        folder.save_groups(1, [group(0)])
        path = folder.path / "episodes" / "step-000001.jsonl.gz"
        _edit(path, lambda record: record.update(trainer_logprobs=[[-0.125, -1.25], [-0.125, -0.25, -0.375]]))
    tokens = get(open_view(tmp_path / "runs"), "/api/runs/runs:one/episodes/train-1-1")["tokens"]
    assert tokens["ratio"] == [None, None, None, 1.0, math.exp(-1.0), None, 1.0, 1.0, 1.0]


def test_an_index_of_another_file_is_not_used(tmp_path: Path, open_view) -> None:
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        folder.save_groups(1, [group(0)])
        path = folder.path / "episodes" / "step-000001.jsonl.gz"
        _edit(path, lambda record: record["episode"].update(reward=0.5))
    rows = get(open_view(tmp_path / "runs"), "/api/runs/runs:one/episodes")["rows"]
    assert [one["reward"] for one in rows] == [0.5] * 4 and index_path(path).is_file()


def test_what_broke_is_counted_by_its_source(tmp_path: Path, open_view) -> None:
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        bad = Group(
            group_id=0, task=task(0), start_version=0, episodes=[broken(0, 0), broken(0, 1)], advantages=[None] * 2
        )
        folder.save_groups(1, [group(1)], [bad])
    found = get(open_view(tmp_path / "runs"), "/api/runs/runs:one")["infra"]
    [one] = found["by_source"]
    assert (one["source"], one["kind"], one["count"], one["example"]) == ("sandbox", "TimeoutError", 2, "train-1-6")


def test_two_checkpoints_compare_as_on_the_command_line(runs: Path, view: TestClient) -> None:
    found = get(view, "/api/compare?a=runs:one@0&b=runs:one")
    folder = RunFolder.open(runs / "one")
    sides = [Saved.load(folder, step, f"one step {step}") for step in (0, 3)]
    links = [found[name].pop("keys") for name in ("first", "second")]
    assert [found[name].pop("run") for name in ("first", "second")] == ["runs:one", "runs:one"]
    assert found == json.loads(json.dumps(comparison_json(*sides, compare(*sides))))
    won = found["won"][0]
    assert (won["task_id"], won["first"], won["second"]) == ("count-2", 0, 2) and len(found["won"]) == 5
    keys = [
        [side[one] for one in won[f"{name}_episodes"]] for name, side in zip(("first", "second"), links, strict=True)
    ]
    assert keys == [["eval-0-5", "eval-0-6"], ["eval-3-5", "eval-3-6"]]
    assert found["sentence"].startswith("No clear difference: one step 3 minus one step 0 is +0.625 [-0.029, +1.000]")
    assert [one["side"] for one in get(view, "/api/compare/sides")["sides"]] == ["runs:one@0", "runs:one@3"]
    many = get(view, "/api/compare?a=runs:one@0&b=runs:one&also=runs:one@0")  # two are called alike
    named = [replace(one, name=f"runs:{one.name}") for one in (*sides, sides[0])]
    assert many == json.loads(json.dumps(comparisons_json(named, compare_all(named[0], named[1:]))))


def test_a_difference_of_two_episodes_marks_what_only_one_says(view: TestClient) -> None:
    found = get(view, "/api/runs/runs:one/diff?a=train-1-1&b=train-1-3")
    assert found["same_task"] and found["first_difference"] == {"message": 3, "token": 8}
    assert found["messages"][3]["parts"] == [["-", "four"], ["+", "five, 2"]]
    assert [one["same"] for one in found["messages"]] == [True, True, True, False]


def test_a_group_shows_its_episodes_and_their_last_words(view: TestClient) -> None:
    found = get(view, "/api/runs/runs:one/groups/train/2/3")
    assert [one["key"] for one in found["rows"]] == [f"train-2-{n}" for n in range(1, 5)]
    assert found["finals"]["train-2-1"] == "four" and found["finals"]["train-2-3"] == "five, 2"
    assert found["neighbours"] == {"previous": None, "next": 4}


@pytest.mark.parametrize("indexed", [True, False])
def test_hostile_texts_come_back_as_text(tmp_path: Path, open_view, indexed: bool) -> None:
    with RunFolder.create(tmp_path / "runs", "one") as folder:
        one = episode(0, 0, success=True, text=HOSTILE + "x" * 300_000)
        folder.save_groups(
            1, [Group(group_id=0, task=task(0, HOSTILE), start_version=0, episodes=[one], advantages=[1.0])]
        )
        if not indexed:
            index_path(folder.path / "episodes" / "step-000001.jsonl.gz").unlink()
    answer = open_view(tmp_path / "runs").get("/api/runs/runs:one/episodes/train-1-1")
    assert (
        answer.headers["content-type"] == "application/json" and answer.headers["x-content-type-options"] == "nosniff"
    )
    last = json.loads(answer.content)["messages"][-1]
    assert last["content"].startswith(HOSTILE) and len(last["content"]) == 200_000
    assert last["cut"] == len(HOSTILE) + 100_000
    assert answer.content.isascii()


def test_a_copied_folder_that_cannot_be_written_reads_the_same(runs: Path, tmp_path: Path, open_view) -> None:
    """Also one without indexes, as older runs have none: they are made in the cache."""
    copied, cache = tmp_path / "copies" / "runs", tmp_path / "cache"
    shutil.copytree(runs, copied)
    for path in copied.rglob("*.index.json"):
        path.unlink()
    before = sorted((path, path.stat().st_mtime_ns) for path in copied.rglob("*"))
    for path in [copied, *copied.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        first, second = open_view(runs), open_view(copied, cache=cache)
        for route in ("", "/episodes?limit=100&sort=-reward,n", "/episodes/train-2-5", "/curves", "/lanes"):
            one, other = (get(view, f"/api/runs/runs:one{route}") for view in (first, second))
            one.pop("steering", 0), other.pop("steering", 0)
            assert one == other, route
        assert sorted((path, path.stat().st_mtime_ns) for path in copied.rglob("*")) == before
        assert len(list(cache.iterdir())) == 5
    finally:
        for path in [copied, *copied.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_the_view_follows_a_run_that_goes_on(tmp_path: Path, open_view) -> None:
    """New steps, a torn last line, an evaluation that is being played, and a resume that undoes a step."""
    from agentgym.runs.checkpoints import drop_undone
    from agentgym.runs.evaluations import EvaluationFiles

    with write_run(tmp_path / "runs", "one", steps=1, done=False) as folder:
        view = open_view(tmp_path / "runs")

        def shown() -> tuple[int, int]:
            row = next(one for one in get(view, "/api/runs")["runs"] if one["id"] == "runs:one")
            return row["step"], get(view, "/api/runs/runs:one/episodes?source=train")["total"]

        assert shown() == (1, 12)
        write_step(folder, 2)
        with (folder.path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 3, "ti')
        assert shown() == (2, 24)
        files = EvaluationFiles(folder, 2)
        files.begin({"num_tasks": 8, "samples_per_task": 2}, resume=False)
        for index in range(3):
            files.add(0, index, episode(0, index, success=True, name=f"eval-0000-{index:02d}"))
        with (folder.path / "evals" / "step-000002.part.jsonl").open("a") as file:
            file.write('{"step": 2, "gro')
        found = [one for one in get(view, "/api/runs/runs:one")["evaluations"] if one["step"] == 2]
        assert [(one["finished"], one["episodes"], one["planned_episodes"]) for one in found] == [(False, 3, 16)]
        assert get(view, "/api/runs/runs:one/episodes/eval-2-3")["episode_id"] == "eval-0000-02"
        drop_undone(folder, 1)
        assert shown() == (1, 12)
        assert get(view, "/api/runs/runs:one")["status"] == "running"
        os.utime(folder.path)
