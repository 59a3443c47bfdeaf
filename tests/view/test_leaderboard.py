"""The leaderboard's tab: its data, and in a real browser its table, filters and notes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from view.browsers import Browser, chromium
from view.browsers import Watched as Page
from view.conftest import Open
from view.real_view import viewing
from view_runs import write_evaluation

from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.notes import write_note


def write_policies(runs: Path, evals: Path) -> None:
    """Five checkpoints of a run, one of each of two seeds, an API model, and one task set more of another version."""
    base = {"model": {"path": "builtin:tiny"}, "env": {"name": "counting"}, "optimizer": {"lr": 1}}
    for name, rate, wins in (("long", 1, {0: 1, 5: 3, 10: 5, 15: 7, 20: 6}), ("grpo-s0", 2, {9: 4}),
                             ("grpo-s1", 2, {9: 7})):  # fmt: skip
        run = RunFolder.create(runs, name)
        run.save_config(base | {"optimizer": {"lr": rate}, "loop": {"seed": int(name[-1] == "1")}})
        (run.checkpoint_dir(9) / "hf").mkdir(parents=True)
        for step, count in wins.items():
            write_evaluation(run, step, wins=count)
        run.set_status(RunStatus.DONE)
        run.close()
    for name, version in (("api", 1), ("later", 2)):
        run = RunFolder.create(evals, name)
        run.save_config(base | {"model": {"path": f"openai:{name}"}})
        write_evaluation(run, 0, wins=2)
        record = run.evaluation_file(0, ".json")
        saved = json.loads(record.read_text())
        saved["setup"]["version"] = version
        record.write_text(json.dumps(saved))
        run.set_status(RunStatus.DONE)
        run.close()
    write_note(evals / "api", step=None, text="<b>a note</b>", add=["paper"], remove=[])


def test_the_data_has_rows_of_evaluations_and_of_seeds(tmp_path: Path, open_view: Open) -> None:
    write_policies(tmp_path / "runs", tmp_path / "evals")
    damaged = RunFolder.create(tmp_path / "evals", "damaged")
    write_evaluation(damaged, 0, wins=1)
    damaged.evaluation_file(0, ".json").write_text('{"setup": {}, "result": {}}')
    damaged.close()
    found = open_view(tmp_path / "runs", tmp_path / "evals").get("/api/leaderboard").json()
    rows = {row["policy"]: row for row in found["rows"]}
    assert len(found["rows"]) == 10 and rows["grpo step 9, 2 seeds"]["success"] == 5.5 / 8
    assert [one["id"] for one in rows["grpo step 9, 2 seeds"]["runs"]] == ["runs:grpo-s0", "runs:grpo-s1"]
    assert rows["grpo-s0 step 9"]["joined"] and not rows["long step 5"]["joined"]
    assert [(part["version"], part["count"]) for part in found["sections"]] == [(1, 7), (2, 1)]
    assert "can't read the evaluation" in found["notes"][1] and "evals:damaged" in found["notes"][1]
    assert str(tmp_path) not in json.dumps(found)


def test_a_link_out_of_a_run_is_not_followed(tmp_path: Path, open_view: Open) -> None:
    """Nor does a foreign evaluation have the settings of a run read that is outside of the folders."""
    write_policies(tmp_path / "runs", tmp_path / "evals")
    (tmp_path / "shown").mkdir()
    linked, foreign = tmp_path / "shown" / "linked", tmp_path / "shown" / "foreign"
    for run in (linked, foreign):
        (tmp_path / "evals" / "api").rename(run) if run == foreign else linked.mkdir()
    (linked / "status.json").write_text((foreign / "status.json").read_text())
    (linked / "evals").symlink_to(tmp_path / "runs" / "long" / "evals")
    secret = {"model": {"path": f"{tmp_path}/runs/long/checkpoints/step-000000"}}
    (foreign / "config.yaml").write_text(json.dumps(secret))
    found = open_view(tmp_path / "shown").get("/api/leaderboard").json()
    [row] = found["rows"]
    assert (row["policy"], row["model"]) == ("long step 0", ""), "not the model that the run began with"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_table_is_ranked_filtered_and_opened(browser: Browser, tmp_path: Path, width: int) -> None:
    write_policies(tmp_path / "runs", tmp_path / "evals")
    with (
        viewing(tmp_path / "runs", tmp_path / "evals") as url,
        browser.new_context(viewport={"width": width, "height": 900}) as context,
    ):
        watched = Page(context.new_page(), url)
        page = watched.open("leaderboard", "main table")

        def policies() -> list[str]:
            return [text.partition("\n")[0].strip() for text in page.locator("tbody td:first-child").all_inner_texts()]

        ranked = ["long step 15", "long step 20", "grpo step 9, 2 seeds", "long step 10", "long step 5", "openai:api",
                  "long step 0"]  # fmt: skip
        assert [re.sub(r" paper$", "", name) for name in policies()] == ranked
        assert "over runs" in page.inner_text("main .note") and "0.875 [" in page.inner_text("tbody tr:first-child")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.locator("th:visible").count() == (3 if width < 400 else 9), page.locator("th").all_inner_texts()
        assert not watched.violations()
        page.get_by_label("each seed").check()
        assert len(policies()) == 8 and "grpo-s1 step 9" in policies()
        page.fill("input[type=search]", "a note")
        assert policies() == ["openai:api paper"] and page.locator("tbody b b").count() == 0
        page.fill("input[type=search]", "")
        page.click("th button:has-text('success')")
        assert policies()[0] == "long step 0"
        page.get_by_label("benchmark").select_option("counting@2")
        assert policies() == ["openai:later"]
        page.get_by_label("benchmark").select_option("all")
        assert "no ranking" in page.inner_text("main")
        page.click("tbody a:has-text('long step 15')")
        page.wait_for_selector("h1:has-text('long step 15 on counting')")
        page.go_back()
        page.wait_for_selector("main table")
        assert not watched.wrong
