"""The pictures of the view in README.md and docs/view.md, from a real run.

agentgym train --env code_exec --loop.steps 20 --loop.eval_every 8 --name learning
PYTHONPATH=tests python -m view.pictures runs/learning

Those of evaluations, from a folder of several of one environment:
PYTHONPATH=tests python -m view.pictures --evals evals
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from view.browsers import Browser, Watched, chromium
from view.real_view import viewing

OUT = Path(__file__).parents[2] / "docs" / "images"
SIZE = (1180, 800)  # pixels
PHONE = (390, 844)
COLOURS = 96  # of a picture: it stays small, and text stays sharp


def draw(browser: Browser, url: str, run: str, out: Path, only: Sequence[str] = ()) -> list[Path]:
    """run: the id of one with an episode that was trained on, in a group of several outcomes, and two evaluations.

    only: these pictures; empty is all.
    """
    name = quote(run, safe="")
    rows = _get(f"{url}api/runs/{name}/episodes?source=train&trained=true&success=true&sort=-step,n&limit=500")["rows"]
    best = max(rows, key=lambda row: (row["turns"], abs(row["advantage"] or 0), row["step"]))
    group = f"source=train&step={best['step']}&group={best['group']}"
    views = {
        "leaderboard": ("leaderboard", "main table", "light"),
        "run": (f"run?run={name}", ".curve canvas", "light"),
        "run-dark": (f"run?run={name}", ".curve canvas", "dark"),
        "episode": (f"episode?run={name}&key={best['key']}", ".members", "light"),
        "group": (f"group?run={name}&{group}", ".side-by-side article", "light"),
        "compare": (f"compare?run={name}", ".verdict", "dark"),
    }
    out.mkdir(parents=True, exist_ok=True)
    return [
        _picture(browser, url, *view, out / f"view-{part}.png")
        for part, view in views.items()
        if part in (only or views)
    ]


def draw_evaluations(browser: Browser, url: str, out: Path) -> list[Path]:
    """The first evaluation by name on a desk and a telephone, and its tasks beside those of the others."""
    first, *others = sorted(one["id"] for one in _get(f"{url}api/runs")["runs"])
    view = f"evaluation?run={quote(first, safe='')}&step=0"
    beside = quote(",".join(f"{quote(one, safe='')}@0" for one in others), safe="")
    scroll = "document.querySelector('#tasks').scrollIntoView()"
    return [
        _picture(browser, url, view, "#tasks", "light", out / "view-evaluation.png"),
        _picture(browser, url, view, "#tasks", "light", out / "view-evaluation-phone.png", size=PHONE),
        _picture(browser, url, f"{view}&with={beside}", "text=differs by", "dark", out / "view-tasks.png", then=scroll),
    ]


def _picture(
    browser: Browser, url: str, view: str, ready: str, scheme: Any, path: Path, *,
    size: tuple[int, int] = SIZE, then: str = "",
) -> Path:  # fmt: skip
    """then: JavaScript that is run before the picture is made."""
    viewport: Any = {"width": size[0], "height": size[1]}
    with browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce") as context:
        watched = Watched(context.new_page(), url)
        page = watched.open(view, ready)
        if view.startswith("episode"):
            page.focus(".tokens")
            page.keyboard.press("End")
            page.keyboard.press("ArrowLeft")
        if then:
            page.evaluate(then)
        page.screenshot(path=path)
        assert not watched.wrong, watched.wrong
    _shrink(path)
    return path


def _shrink(path: Path) -> None:
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(COLOURS)
    small.save(path, optimize=True)


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url) as answered:
        found: dict[str, Any] = json.load(answered)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pictures of the view")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--evals", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    made = []
    with chromium() as browser:
        if given.run:
            with viewing(given.run) as url:
                (run,) = _get(f"{url}api/runs")["runs"]
                made += draw(browser, url, run["id"], given.out)
        if given.evals:
            with viewing(given.evals) as url:
                made += draw_evaluations(browser, url, given.out)
    for path in made:
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
