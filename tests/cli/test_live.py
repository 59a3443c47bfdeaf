"""The live view: what stands on the screen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentgym.cli.live import LiveReporter

METRICS = {
    "rollout/reward_mean": 0.5,
    "rollout/success_mean": 0.25,
    "loop/staleness_max": 1.0,
    "loop/staleness_mean": 0.6,
    "train/entropy": 0.7,
    "train/kl_ref": 0.002,
    "train/mismatch_kl": 1.5e-7,
    "generator/tokens_per_s": 2480.0,
    "time/step_s": 4.0,
    "time/generate_s": 2.0,
    "time/train_s": 1.0,
    "time/compute_share": 0.75,
}


@pytest.fixture
def live():
    reporter = LiveReporter("one", io.StringIO(), width=150)
    yield reporter
    reporter.close()


def screen(live: LiveReporter, width: int = 150) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(live.render())
    return captured.get()


def test_before_the_first_step_the_phase_is_shown(live: LiveReporter) -> None:
    live.phase("starting 2 generators")
    assert "starting 2 generators" in screen(live) and "one" in screen(live)


def test_a_step_shows_progress_figures_and_where_the_time_goes(live: LiveReporter) -> None:
    live.phase("training")
    for step in range(1, 9):
        live.step(step, 60, {**METRICS, **({"eval/success": 0.41} if step == 8 else {})})
    text = screen(live)
    for word in ("step 8/60", "13%", "left", "0.500", "held-out  0.410", "staleness max 1", "entropy 0.700",
                 "1.5e-07", "tokens/s 2480", "generate 50%", "train 25%", "wait 25%"):  # fmt: skip
        assert word in text, word
    rows = [line.split()[1] for line in text.splitlines() if "2480" in line and "tokens/s" not in line]
    assert rows == ["3", "4", "5", "6", "7", "8"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_the_terminal_with_room_for_an_echoed_interrupt(width: int) -> None:
    reporter = LiveReporter("one", io.StringIO(), width=width)
    reporter.step(1, 60, METRICS)
    reporter.close()
    assert max(map(len, screen(reporter, width).splitlines())) == width - 2


def test_a_step_without_known_metrics_is_shown(live: LiveReporter) -> None:
    live.step(1, 60, {})
    live.step(2, 60, {"rollout/reward_mean": float("nan")})
    assert "step 2/60" in screen(live)


def test_a_run_with_a_sandbox_shows_its_calls(live: LiveReporter) -> None:
    live.step(1, 60, METRICS)
    assert "sandbox" not in screen(live)
    figures = {"sandbox/calls": 48.0, "sandbox/wall_p95_s": 0.0123, "sandbox/calls_waiting": 3.0}
    live.step(
        2,
        60,
        {
            **METRICS,
            **figures,
            "sandbox/replaced_uses": 1.0,
            "sandbox/replaced_uses_total": 9.0,
            "sandbox/calls_oom": 0.0,
        },
    )
    assert "sandbox   48 calls, p95 12.3 ms, 3 waiting, 1 replaced " in screen(live)


def test_notes_and_tables_are_printed_for_good() -> None:
    stream = io.StringIO()
    reporter = LiveReporter("one", stream, width=100)
    reporter.note("sandbox: monty [not markup]")
    reporter.table("result", ["checkpoint", "success"], [["first", "0.4"]])
    reporter.close()
    reporter.close()
    text = stream.getvalue()
    assert "sandbox: monty [not markup]" in text and "first" in text and "0.4" in text
