"""The site builds strictly (`make site`), and a person finds a page in it by menu, by search and in a narrow window."""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pages import ROOT
from view.browsers import Browser, Watched, chromium

from agentgym.public import PUBLIC
from agentgym.stability import VERSION

BIN = Path(os.environ.get("AGENTGYM_SITE", ROOT / ".venv-site")) / "bin"

pytestmark = [pytest.mark.hostile, pytest.mark.xdist_group("site")]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built as `make site` builds it."""
    if not (BIN / "mkdocs").exists():
        pytest.skip("no .venv-site: make site")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [BIN / "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def test_all_public_modules_and_environments_have_their_texts(site: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(site + "api/index.html")
    assert page.locator("article table a").all_inner_texts() == sorted(PUBLIC)
    page.goto(site + "api/agentgym.sinks.html")
    assert "Opened when the run starts" in page.inner_text("article")
    page.goto(site + "environments_catalogue.html")
    assert "max_difficulty" in page.inner_text("article") and page.locator("h2#code_exec").count() == 1
    page.goto(site)
    page.locator("article a", has_text="A notebook").click()
    page.wait_for_url("**/first_steps.html")
    assert "step-000008" in page.inner_text("article") and page.locator("article a[href$=ipynb]").count() == 1
    page.goto(site + f"changes/{VERSION}.html")
    assert page.locator("h2#what-it-does").count() == 1 and VERSION in page.inner_text("h1")
    page.close()


@pytest.mark.browser
def test_a_reader_gets_around_by_menu_and_search_without_another_host(site: str, browser: Browser) -> None:
    watched = Watched(browser.new_page(viewport={"width": 1280, "height": 800}), site)
    page = watched.page
    page.goto(site)
    for door in ("Train", "Write an environment", "Bring an agent or a benchmark", "Understand"):
        assert page.locator("article h2", has_text=door).count() == 1
        page.locator(".md-tabs a", has_text=door).wait_for()
    page.locator(".md-tabs a", has_text="Understand").click()
    page.wait_for_url("**/architecture.html")
    page.fill("input[name=query]", "staleness glossary")
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url("**/architecture.html?h=*")
    assert "staleness" in page.inner_text("article").lower()
    assert not watched.wrong
    page.close()


@pytest.mark.browser
def test_a_narrow_window_shows_the_text_whole_and_the_menu_on_demand(site: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 380, "height": 700})
    for name in ("index.html", "settings.html", "api/agentgym.env.html"):
        page.goto(site + name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, name
    menu = page.locator(".md-nav--primary").first
    assert not menu.evaluate("menu => menu.getBoundingClientRect().right > 0")
    page.locator("label.md-header__button[for=__drawer]").click()
    page.wait_for_function("document.querySelector('.md-nav--primary').getBoundingClientRect().left >= 0")
    page.close()
