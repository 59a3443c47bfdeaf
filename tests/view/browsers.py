"""A Chromium of the machine, driven by Playwright without a download of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
else:  # where it is missing the tests are skipped
    Browser = Page = Any

REQUIRED = "AGENTGYM_REQUIRE_BROWSER"  # "1": a missing browser fails the tests instead of skipping them
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@contextmanager
def chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    missing = "" if found else "no Chromium is installed: apt-get install chromium"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing = "playwright is not installed: pip install playwright"
    if missing:
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])  # root has no other way
        try:
            yield browser
        finally:
            browser.close()


def _is_wrong(kind: str, text: str) -> bool:
    """What a slow machine has the browser say is not: the head asks for the first run, which some views do not show."""
    return kind in ("error", "warning") and "was preloaded using link preload but not used" not in text


class Watched:
    """A page and what went wrong in it: uncaught errors, console errors, refused contents, other hosts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.wrong: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"uncaught: {error}"))
        page.on("console", lambda said: self.wrong.append(said.text) if _is_wrong(said.type, said.text) else None)
        page.on("request", lambda asked: None if asked.url.startswith((url, "data:")) else self.wrong.append(asked.url))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))

    def open(self, view: str, ready: str) -> Page:
        """view: the address after `#`. ready: a selector of what has to be seen."""
        self.page.goto(f"{self.url}#/{view}")
        self.page.wait_for_selector(ready)
        return self.page

    def violations(self, rules: list[str] | None = None) -> list[str]:
        """What axe-core finds, one line each. rules: only those."""
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(AXE.read_text())
        options: dict[str, Any] = {"runOnly": rules or RULES, "resultTypes": ["violations"]}
        found = self.page.evaluate("options => axe.run(document, options)", options)
        return [f"{rule['id']}: {node['html'][:200]}" for rule in found["violations"] for node in rule["nodes"]]
