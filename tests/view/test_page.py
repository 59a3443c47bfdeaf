"""The page in a real browser: what it says, what it refuses, and that everybody can use it."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from view.browsers import Browser, Watched, chromium
from view.real_view import viewing
from view.shops import registry
from view.shown_run import BRANCHED, HOSTILE, LONG, TOOLS, write_runs
from view_runs import write_run, write_step

from agentgym.runs.folder import RunFolder
from agentgym.runs.steering import Steering
from agentgym.view.plays import Plays

pytestmark = pytest.mark.browser

VIEWS = {
    "run": ".curve canvas",
    "runs": "main table",
    "leaderboard": "main table",
    "evaluation?step=40": "#tasks",
    "episodes": "tr[data-row]",
    "group?source=train&step=40&group=9000": ".side-by-side article",
    f"episode?key={TOOLS}&diff=train-40-4": ".diff .message",
    f"episode?key={TOOLS}&show=tokens&by=mask": ".tokens .t",
    "compare": ".verdict",
    "audit": "#report",
    "environments": "main td a",
    "environments?env=shopping": "main td a",
    "play?env=shopping&task=shop-0": "textarea",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    with write_runs(tmp_path_factory.mktemp("view") / "runs") as found:
        yield found


@pytest.fixture(scope="module")
def url(run: RunFolder) -> Iterator[str]:
    with viewing(run.path.parent, plays=Plays(registry)) as found:
        yield found


@pytest.fixture
def watched(browser: Browser, url: str) -> Iterator[Watched]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        found = Watched(context.new_page(), url)
        yield found
        assert not found.wrong


def test_first_of_all_a_sentence_then_curves_with_their_n_and_unit(watched: Watched) -> None:
    page = watched.open("run", ".curve canvas")
    assert page.inner_text("main h1").startswith("Learning: held-out success went from 0.250 to 1.000, +0.750 [+0.077,")
    assert "The trainer computed for 25% of the time" in page.inner_text(".findings")
    readings = page.locator(".curve .legend > span").all_inner_texts()
    assert len(readings) > 8 and all(re.search(r"n = \d", text) for text in readings[:-2])
    assert "held-out success 1 [0.631, 1] n = 8 tasks" in readings
    assert any("versions" in text for text in readings)


def test_a_running_run_is_followed(browser: Browser, tmp_path: Path) -> None:
    with (
        write_run(tmp_path / "runs", "one", steps=2, done=False) as run,
        viewing(tmp_path / "runs") as url,
        browser.new_context() as context,
    ):
        page = Watched(context.new_page(), url).open("run", "text=step 2 of 4")
        write_step(run, 3)
        page.wait_for_selector("text=step 3 of 4")


def test_hostile_episodes_do_nothing(watched: Watched) -> None:
    hostile = f"episode?key={HOSTILE}&diff={TOOLS}"
    seen = ""
    for view, ready in {**VIEWS, hostile: ".diff .message", f"{hostile}&show=tokens": ".tokens .t"}.items():
        page = watched.open(view, ready)
        seen += page.inner_text("main")
        assert page.evaluate("typeof window.attacked") == "undefined"
        assert page.locator("main script, main img, main style, main iframe, main object").count() == 0
        assert page.locator("a:not([href^='#/'])").count() == page.locator("a.skip").count()
    assert "<script>window.attacked" in seen and "javascript:window.attacked" in seen
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x07]", seen)
    assert "\\u202e" in seen and "\\x1b[31m" in seen
    assert len(page.inner_text("main")) < 50_000  # of a line of 200,000 characters only the beginning


def test_no_view_is_wider_than_a_telephone(watched: Watched) -> None:
    watched.page.set_viewport_size({"width": 380, "height": 800})
    for view, ready in {**VIEWS, f"episode?key={HOSTILE}": ".tokens .t"}.items():
        page = watched.open(view, ready)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), view


def test_everybody_can_use_every_view_in_light_and_dark(watched: Watched) -> None:
    found = []
    for view, ready in VIEWS.items():
        page = watched.open(view, ready)
        page.emulate_media(color_scheme="light")
        found += [f"{view}: {line}" for line in watched.violations()]
        page.emulate_media(color_scheme="dark")
        found += [f"{view}, dark: {line}" for line in watched.violations(["color-contrast"])]
    assert not found


def test_the_scheme_can_be_chosen(watched: Watched) -> None:
    page = watched.open("runs", "main table")
    page.emulate_media(color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("t")
    page.wait_for_selector("html[data-theme=light]")
    assert page.evaluate(background) == light
    page.keyboard.press("t")
    page.wait_for_selector("html[data-theme=dark]")
    assert page.evaluate(background) != light


def test_nothing_moves_for_who_asked_for_that(watched: Watched) -> None:
    page = watched.open("run", ".dot.running")
    moving = "document.getAnimations().length"
    assert page.evaluate(moving) > 0
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == 0


def test_another_colouring_keeps_the_tokens_as_they_are(watched: Watched) -> None:
    page = watched.open(f"episode?key={TOOLS}", ".tokens .t")
    page.evaluate("document.querySelectorAll('.tokens .t').forEach((token, i) => (token.mark = i))")
    shades = set()
    for kind in ("log-probability", "ratio", "advantage", "version", "mask"):
        page.click(f"button:text-is('{kind}')")
        page.wait_for_selector(f"button[aria-pressed=true]:text-is('{kind}')")
        colours = page.evaluate(
            "[...document.querySelectorAll('.tokens .t')].map(t => getComputedStyle(t).backgroundColor)"
        )
        assert len({*colours}) > (0 if kind in ("advantage", "mask") else 1), kind
        assert colours[2] != "rgba(0, 0, 0, 0)" or kind in ("ratio", "log-probability"), kind
        shades.add(tuple(colours))
        assert page.evaluate("[...document.querySelectorAll('.tokens .t')].every((token, i) => token.mark === i)")
    assert len(shades) == 5


def test_a_token_under_the_pointer_or_the_keys_shows_its_figures(watched: Watched, url: str) -> None:
    page = watched.open(f"episode?key={TOOLS}", ".tokens .t")
    with urllib.request.urlopen(f"{url}api/runs/runs:one/episodes/{TOOLS}") as answered:
        saved = json.load(answered)["tokens"]
    at = saved["origin"].index(2) + 1  # the second that was sampled
    page.hover(".tokens .t >> nth=1")
    shown = page.inner_text(".inspect")
    for part in (
        f"“{saved['text'][at]}”",
        str(saved["id"][at]),
        f"−{-saved['logprob'][at]:.4f} nats",
        f"{at} of {saved['count']}",
        "+0.610",
        "38",
        "policy, trained",
    ):
        assert part in shown, part
    page.focus(".tokens")
    page.keyboard.press("ArrowRight")
    assert f"“{saved['text'][at + 1]}”" in page.inner_text(".inspect")
    page.keyboard.press("End")
    assert "<|im_end|>" in page.inner_text(".inspect") and "39" in page.inner_text(".inspect")


def test_each_branch_of_an_episode_is_shown_whole(watched: Watched) -> None:
    page = watched.open(f"episode?key={BRANCHED}", ".tokens .t")
    first = page.locator(".tokens .t").count()
    page.select_option("label:has-text('branch') select", label="2 of 2: 2 turns, message removed")
    page.wait_for_selector("text=32 tokens")
    assert page.locator(".tokens .t").count() > first
    assert "branch=1" in page.url


def test_long_episodes_hold_elements_only_near_what_is_seen(watched: Watched) -> None:
    page = watched.open(f"episode?key={LONG}", ".tokens .t")
    text = page.inner_text(".tokens").replace("↵", "")
    assert "word0" in text and "word3999" in text
    assert 0 < page.locator(".tokens .t").count() < 10_000
    page.evaluate("document.querySelector('.tokens').lastElementChild.scrollIntoView({block: 'end'})")
    page.wait_for_selector(".tokens .t:text-is('<|im_end|>')")


def test_the_address_is_the_whole_state_of_the_table(watched: Watched) -> None:
    page = watched.open("episodes", "tr[data-row]")
    page.fill("input[placeholder='part of its id']", "count-1")
    page.select_option("label:has-text('success') select", "false")
    page.click("th button:text-is('reward')")
    page.wait_for_selector("th[aria-sort=descending]:has-text('reward')")
    page.click("button:text-is('next')")
    page.wait_for_selector("text=51 to")
    rows = page.inner_text("tbody")
    for part in ("task=count-1", "success=false", "sort=-reward", "offset=50"):
        assert part in page.url
    page.reload()
    page.wait_for_selector("text=51 to")
    assert page.inner_text("tbody") == rows
    assert page.input_value("input[placeholder='part of its id']") == "count-1"
    page.go_back()
    page.wait_for_selector("text=1 to 50")


def test_the_keyboard_reaches_everything(watched: Watched) -> None:
    page = watched.open("run", ".curve canvas")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.type("ge")
    page.wait_for_selector("tr[data-row]")
    page = watched.open("episodes?source=train&sort=-step,n", "tr[data-row]:has-text('train-40-1')")
    page.focus("tr[data-row] a")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('train-40-2')")
    page.keyboard.press("]")
    page.wait_for_selector("h1:has-text('train-40-3')")
    page.keyboard.press("3")
    page.wait_for_selector(".by-advantage .tokens")
    page.keyboard.press("m")
    page.wait_for_selector("text=42 tokens")
    page.keyboard.type("gr")
    page.wait_for_selector(".curve canvas")
    page.focus(".curve .plot")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".curve >> nth=0 >> text=step 39")


def test_a_run_is_steered_only_after_a_question(watched: Watched, run: RunFolder) -> None:
    page = watched.open("run", ".steering")
    page.click("button:text-is('Stop after this step')")
    page.click("dialog button:text-is('Cancel')")
    page.click("button:text-is('Checkpoint now')")
    page.click("dialog button:text-is('Checkpoint now')")
    page.wait_for_selector("dialog", state="detached")
    page.select_option(".steering select", "loop.eval_every")
    page.fill(".steering input", "5")
    page.click("button:text-is('Change')")
    page.click("dialog button:text-is('Set loop.eval_every to 5')")
    page.wait_for_selector("dialog", state="detached")
    asked = [(one.action, one.setting, one.value) for one in Steering(run.path).read()]
    assert asked == [("checkpoint", "", None), ("set", "loop.eval_every", 5)]
    assert page.locator("text=after step 12 optimizer.lr 0.0001 -> 5e-05").count() == 1


def test_a_task_is_played_by_hand(watched: Watched) -> None:
    page = watched.open("play?env=shopping&task=shop-0", "textarea")
    page.fill("textarea >> nth=1", '{"item": ')
    page.click("button:text-is('add this call to the turn')")
    page.wait_for_selector("text=The arguments are not JSON")
    page.fill("textarea >> nth=1", '{"item": "apple"}')
    page.click("button:text-is('add this call to the turn')")
    page.click("button:has-text('Say it')")
    page.wait_for_selector("text=one apple")
    page.fill("textarea >> nth=0", "done")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("h1:has-text('Success, reward 1')")


def test_what_is_not_there_says_so(browser: Browser, url: str) -> None:
    with browser.new_context() as context:
        page = Watched(context.new_page(), url).open("run?run=runs:none", "[role=alert]")
        assert "runs:none" in page.inner_text("[role=alert]")
