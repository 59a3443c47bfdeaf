"""The page of an evaluation and the list of runs: their data, and what Chromium shows on a desk and a telephone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from view.browsers import Browser, Page, Watched, chromium
from view.real_view import viewing
from view_runs import HOSTILE, broken, episode

from agentgym.evals.play import EvalSetup, summarize
from agentgym.evals.statistics import success_interval, success_share
from agentgym.evals.summary import evaluation_summary
from agentgym.runs.episode_index import build_index
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder
from agentgym.tables.roots import Roots
from agentgym.types import Episode, Stop
from agentgym.view.app import View
from agentgym.view.export import Export

TASKS, SAMPLES = 12, 4
SIZES = ((1280, 900), (390, 844))  # of a desk and of a telephone
ATTACK = "<script>window.attacked=1</script>"
SETUP = EvalSetup(
    environment="counting", version=3, data_hash="x", num_tasks=TASKS, samples_per_task=SAMPLES, seed=1, greedy=False
)


def rows_of(solved: Sequence[int]) -> list[list[Episode]]:
    """Of each task so many samples succeed. The first has a hostile id and answer; a sample of the last broke."""
    rows = []
    for number, wins in enumerate(solved):
        row = [episode(number, i, success=i < wins, name=f"eval-{number:04d}-{i:02d}") for i in range(SAMPLES)]
        task = replace(row[0].task, category="long" if number % 2 else "short")
        if number == 0:
            task = replace(task, task_id=f"count-0{ATTACK}")
            row[0].messages[-1] = {"role": "assistant", "content": ATTACK + HOSTILE}
        for one in row:
            one.task = task
        rows.append(row)
    rows[-1][-1] = replace(broken(TASKS - 1, SAMPLES - 1), task=rows[-1][0].task, retries=2)
    return rows


SOLVED = [0, 4, 1, 4, 2, 4, 3, 4, 0, 4, 1, 3]
ROWS = rows_of(SOLVED)


@contextmanager
def begun(folder: Path, name: str) -> Iterator[EvaluationFiles]:
    """An evaluation that runs until the block ends."""
    with RunFolder.create(folder, name) as run:
        run.save_config({"model": {"path": f"vendor:{name}"}, "env": {"name": "counting"}}, {"model.path": "file"})
        files = EvaluationFiles(run, 0)
        files.begin(SETUP.to_mapping(), resume=False)
        yield files


def finish(files: EvaluationFiles, rows: list[list[Episode]]) -> None:
    files.save_episodes(rows)
    files.save_result(SETUP.to_mapping(), summarize(rows, "").to_mapping())


def write(folder: Path, name: str, rows: list[list[Episode]] = ROWS) -> None:
    with begun(folder, name) as files:
        finish(files, rows)


@pytest.fixture
def evals(tmp_path: Path) -> Path:
    write(tmp_path / "evals", "first")
    write(tmp_path / "evals", "second", rows_of([4, *SOLVED[1:]]))
    return tmp_path / "evals"


def get(view: TestClient, path: str) -> dict:
    answer = view.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_evaluation_is_measured_by_kind_of_task_and_by_task(evals: Path, open_view) -> None:
    found = get(open_view(evals), "/api/runs/evals:first/evaluations/0")
    difficulty, category = found["by"]
    assert (difficulty["name"], category["name"]) == ("difficulty", "category")
    assert [row["kind"] for row in difficulty["rows"]] == [0, 1, 2]
    scores = [[i < wins for i in range(SAMPLES)] for wins in SOLVED]
    scores[-1].pop()
    for row, first in zip(category["rows"], (1, 0), strict=True):
        chosen = scores[first::2]
        assert row["kind"] == ("long" if first else "short") and row["tasks"] == 6
        assert row["value"] == pytest.approx(sum(sum(one) / len(one) for one in chosen) / 6)
        assert (row["low"], row["high"]) == success_interval(chosen)
        assert [one["k"] for one in row["pass_at"]] == [1, 2, 4]
    assert [(row["stop"], row["episodes"], row["successes"]) for row in found["stops"]] == [
        (Stop.DONE, 30, 30), (Stop.MAX_TURNS, 17, 0)
    ]  # fmt: skip
    [left] = found["left_out"]
    assert (left["why"], left["episodes"], left["n"]) == ("sandbox: TimeoutError", 1, TASKS * SAMPLES)
    assert (found["retries"], found["played"], found["planned"]) == (2, 48, 48)
    assert [(one["solved"], one["counted"]) for one in found["tasks"]] == [
        *((wins, 4) for wins in SOLVED[:-1]), (3, 3)
    ]  # fmt: skip


def test_an_unfinished_evaluation_is_summed_up_as_if_it_ended_now(evals: Path, open_view) -> None:
    summary = evaluation_summary(RunFolder.open(evals / "first"), 0)
    assert summary is not None
    path = evals / "first" / "evals" / "step-000000.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"result": None}))
    found = get(open_view(evals), "/api/runs/evals:first/evaluations/0")
    wanted = json.loads(json.dumps(summary.to_mapping()))
    for key in ("folder", "run_dir", "time"):
        wanted.pop(key), found["summary"].pop(key, None)
    assert found["finished"] is False and found["summary"] == wanted


def test_of_a_file_that_grows_only_its_new_lines_are_read(tmp_path: Path) -> None:
    with begun(tmp_path / "evals", "live") as files:
        for sample in range(3):
            files.add(0, sample, ROWS[0][sample])
    path = tmp_path / "evals" / "live" / "evals" / "step-000000.part.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])  # the third line is not written to its end
    before = build_index(path)
    path.write_bytes(whole)
    assert len(before.locations) == 2 and build_index(path, before) == build_index(path)
    path.write_bytes(b"x" * 100 + whole[100:])  # of lines that are known
    assert len(build_index(path, before).locations) == 3
    path.write_bytes(whole[: before.locations[0].length] * 4)  # another file
    assert build_index(path, before) == build_index(path)


def test_nothing_of_a_run_elsewhere_is_read_to_name_a_checkpoint(evals: Path, open_view) -> None:
    elsewhere = evals.parent / "elsewhere" / "run"
    elsewhere.mkdir(parents=True)
    (elsewhere / "config.yaml").write_text("model: {path: a secret}\n")
    (evals / "first" / "config.yaml").write_text(f"model: {{path: '{elsewhere}/checkpoints/step-000002'}}\n")
    assert evaluation_summary(RunFolder.open(evals / "first"), 0).model == "a secret"
    found = get(open_view(evals), "/api/runs/evals:first/evaluations/0")
    assert "secret" not in json.dumps(found)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def fits(page: Page) -> bool:
    """Whether the page is as wide as each screen; the last is a telephone's."""
    wide = []
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        wide.append(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
    return not any(wide)


@pytest.mark.browser
def test_an_evaluation_says_its_success_first_and_its_tasks_beside_those_of_another(
    browser: Browser, evals: Path
) -> None:
    with viewing(evals) as url, browser.new_context() as context:
        watched = Watched(context.new_page(), url)
        page = watched.open("evaluation?run=evals:first&step=0", "#tasks")
        main = page.inner_text("main").splitlines()
        assert main[0] == "vendor:first on counting"
        scores = [[i < wins for i in range(SAMPLES)] for wins in SOLVED[:-1]] + [[True] * 3]
        low, high = success_interval(scores)
        assert page.inner_text(".headline p >> nth=0") == f"{success_share(scores):.3f} success [{low:.3f}, {high:.3f}]"
        strip = page.inner_text(".strip").replace("\n", " ")
        assert f"pass@4 {9 / 11:.3f}" in strip and "cost –" in strip and "left out 1 of 48" in strip
        headings = page.locator("main h2").all_inner_texts()
        assert headings[:5] == ["By difficulty", "By category", "Rewards", "How episodes ended", "Worst tasks"]
        assert page.inner_text("#by-category + .scroll tbody tr >> nth=0").split("\t")[:3] == ["long", "6", "1.000"]
        assert "0/4" in page.inner_text("#worst + .scroll tbody tr >> nth=0")
        assert fits(page)
        page.click("button:has-text('beside other evaluations')")
        page.select_option("#tasks ~ label select, .head label select", label="evals:second@0 (0.729, 12 tasks)")
        page.check("text=only tasks that differ")
        page.wait_for_selector("text=1 tasks")
        row = page.locator(".listing tbody tr")
        assert row.count() == 1 and [cell.inner_text() for cell in row.locator("a.share").all()] == ["0/4", "4/4"]
        assert fits(page)
        row.locator("a.share").first.click()
        page.wait_for_selector("h2:has-text('evals:second step 0: 4 of 4 episodes succeeded')")
        said = page.inner_text("main")
        assert said.count(ATTACK) == 3 and page.evaluate("typeof window.attacked") == "undefined"
        assert fits(page)
        page.go_back()
        page.wait_for_selector("text=1 tasks")
        assert not watched.wrong


@pytest.mark.browser
def test_an_evaluation_is_followed_while_it_runs(browser: Browser, tmp_path: Path) -> None:
    with (
        begun(tmp_path / "evals", "live") as files,
        viewing(tmp_path / "evals") as url,
        browser.new_context() as context,
    ):
        watched = Watched(context.new_page(), url)
        page = watched.open("run?run=evals:live", "text=No episode has ended yet")
        for number, sample in ((3, 0), (3, 1), (0, 0)):
            files.add(number, sample, ROWS[number][sample])
        page.wait_for_selector("text=3 of 48 episodes. Short episodes end first")
        assert page.inner_text(".headline b") == "0.500"
        assert page.locator("#worst + .scroll tbody tr").count() == 1, "one that was solved is none of the worst"
        finish(files, ROWS)
        page.wait_for_selector(".headline b:text-is('0.646')")
        assert page.inner_text("main").splitlines()[0] == "vendor:live on counting"
        assert page.locator("progress").count() == 0 and not watched.wrong


@pytest.mark.browser
def test_an_exported_file_has_the_evaluation_and_its_tasks_beside_others(
    browser: Browser, evals: Path, tmp_path: Path
) -> None:
    Export(View(Roots.of([evals]))).write(tmp_path / "out.html")
    with browser.new_context() as context:
        watched = Watched(context.new_page(), f"file://{tmp_path}/out.html")
        page = watched.open("evaluation?run=evals:first&step=0&with=evals%253Asecond%400", ".listing a.share >> nth=20")
        assert page.inner_text(".headline b") == "0.646"
        assert page.locator(".listing tbody tr").count() == TASKS and not watched.wrong


@pytest.mark.browser
def test_the_list_of_runs_is_searched_and_sorted_and_found_again_as_it_was_left(
    browser: Browser, tmp_path: Path
) -> None:
    named = "run-{:02d}-of-a-name-that-is-rather-long-for-a-telephone"
    for number in range(10):
        with begun(tmp_path / "evals", named.format(number)) as files:
            if number % 2 == 0:
                finish(files, rows_of([number % 5, 0]))
    for number in range(10, 40):
        shutil.copytree(tmp_path / "evals" / named.format(number % 10), tmp_path / "evals" / named.format(number))
    with viewing(tmp_path / "evals") as url, browser.new_context() as context:
        watched = Watched(context.new_page(), url)
        page = watched.open("runs", ".listing tbody tr >> nth=39")
        headings = page.locator(".listing th:visible")
        assert {"run", "kind", "status", "environment", "success", "tasks"} <= set(headings.all_inner_texts())
        assert fits(page) and headings.all_inner_texts() == ["run", "success", "tasks", "changed ↓"]
        page.fill("input[type=search]", "nothing")
        page.click("text=Show all")
        page.wait_for_selector("text=40 runs")
        page.fill("input[type=search]", "run rather")
        page.click("th button:text-is('success')")
        page.wait_for_selector("th[aria-sort=descending]:has-text('success')")
        names = page.locator(".listing tbody tr a").all_inner_texts()
        assert {name[4:6] for name in names[:4]} == {f"{n:02d}" for n in range(40) if n % 2 == 0 and n % 5 == 4}
        page.locator(".listing tbody tr a >> nth=30").scroll_into_view_if_needed()
        before = page.evaluate("scrollY")
        assert before > 300
        page.locator(".listing tbody tr a >> nth=30").click()
        page.wait_for_selector("text=No episode has ended yet")
        assert page.evaluate("scrollY") == 0
        page.go_back()
        for _ in range(500):
            if abs(page.evaluate("scrollY") - before) < 3:
                break
            page.wait_for_timeout(20)
        else:
            pytest.fail(f"scrolled to {page.evaluate('scrollY')} instead of {before}")
        assert page.input_value("input[type=search]") == "run rather"
        assert page.locator(".listing tbody tr a").all_inner_texts() == names and not watched.wrong
