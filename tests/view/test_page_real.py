"""The page with the real server, from the files of a run: what the server answers is what the page reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from view import pictures
from view.browsers import Browser, Watched, chromium
from view.real_view import viewing
from view_runs import write_run

from agentgym.tables.roots import Roots
from agentgym.view.app import View
from agentgym.view.export import Export

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_every_view_reads_what_the_server_answers(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "one")
    write_run(tmp_path / "runs", "two")
    run = "run=runs:one"
    with viewing(tmp_path / "runs") as url, browser.new_context() as context:
        watched = Watched(context.new_page(), url)
        assert watched.open("runs", "main table").inner_text("tbody").count("done") == 2
        page = watched.open(f"run?{run}", ".curve canvas")
        assert "0.875 [" in page.inner_text(".strip") and "n = 8 tasks" in page.inner_text(".strip")
        assert "no metrics" not in page.inner_text("main")
        page = watched.open(f"episodes?{run}&source=train&sort=step,n", "tr[data-row]")
        page.click("tr[data-row] a >> nth=0")
        page.wait_for_selector(".members a[aria-current]")
        page.click("button:text-is('version')")
        page.focus(".tokens >> nth=1")
        page.wait_for_selector(".inspect dd >> nth=1")
        assert "add(a=1, b=2)" in page.inner_text(".call") and "0.25 s" in page.inner_text(".call")
        page.click("button:text-is('every token')")
        assert page.locator(".tokens .t").count() == 9
        page.click("text=side by side")
        page.wait_for_selector(".side-by-side article")
        page.click("text=diff to the first >> nth=0")
        page.wait_for_selector("section.diff")
        page = watched.open(f"compare?{run}", ".verdict")
        assert "Won by b: 5 tasks" in page.inner_text("main")
        files = page.evaluate("performance.getEntriesByType('resource').map(one => one.name.split('/page/')[1] ?? '')")
        assert [name for name in files if name.endswith(".js")] == ["app.js"]  # all modules at once
        assert not watched.wrong


def test_the_scheme_that_was_chosen_stays(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "one")
    with viewing(tmp_path / "runs") as url, browser.new_context(color_scheme="light") as context:
        page = Watched(context.new_page(), url).open("runs", "main table")
        for chosen in ("light", "dark"):
            page.keyboard.press("t")
            page.wait_for_selector(f"html[data-theme={chosen}]")
        page.reload()
        page.wait_for_selector("html[data-theme=dark] main table")


def test_the_pictures_of_the_documentation_can_be_made_again(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "one")
    with viewing(tmp_path / "runs") as url:
        made = pictures.draw(browser, url, "runs:one", tmp_path, only=["run", "episode"])
    assert [path.name for path in made] == ["view-run.png", "view-episode.png"]
    assert all(0 < path.stat().st_size < 100_000 for path in [*made, *pictures.OUT.glob("view-*.png")])


def test_an_exported_file_needs_no_server(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "one")
    Export(View(roots=Roots.of([tmp_path / "runs"]))).write(tmp_path / "report.html")
    with browser.new_context() as context:
        watched = Watched(context.new_page(), (tmp_path / "report.html").as_uri())
        assert "Exported" in watched.open("run", ".curve canvas").inner_text("main")
        page = watched.open("episodes?success=false&sort=step,n", "tr[data-row]")
        shown = page.inner_text(".pages")
        page.click("tr[data-row] a >> nth=0")
        page.wait_for_selector(".tokens .t")
        page.wait_for_selector(".members a[aria-current]")
        assert "54 of" not in shown and page.locator(".steering, .play").count() == 0
        watched.open("environments", "[role=alert]")
        assert not watched.wrong
