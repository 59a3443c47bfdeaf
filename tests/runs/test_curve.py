"""Curves: the numbers that are drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.runs import curve
from agentgym.runs.metrics import MetricsRow

ROWS = [
    MetricsRow(
        step=step,
        time=0.0,
        metrics={
            "rollout/reward_mean": step / 50,
            "rollout/success_mean": step / 60,
            **({"eval/success": step / 55} if step % 10 == 0 else {}),
            **({"train/loss": math.nan} if step == 3 else {"train/loss": 1.0}),
        },
    )
    for step in range(1, 41)
]


def test_a_series_has_the_steps_where_the_metric_is_known_and_finite() -> None:
    assert curve.series(ROWS, "eval/success").steps == (10, 20, 30, 40)
    assert 3 not in curve.series(ROWS, "train/loss").steps


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'rollout/reward_mean'"):
        curve.series(ROWS, "reward_mean")
    with pytest.raises(UserError, match="finished no step"):
        curve.series([], "reward_mean")


def test_smoothing_is_the_mean_of_neighbours() -> None:
    assert curve.smooth([0.0, 3.0, 6.0, 0.0], 3) == [1.5, 3.0, 3.0, 3.0]
    assert curve.smooth([1.0, 2.0], 1) == [1.0, 2.0]


def test_a_sparkline_rises_with_its_values() -> None:
    assert curve.sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert curve.sparkline([0.0] * 50 + [1.0] * 50, width=4) == "▁▁██"
    assert curve.sparkline([2.0, 2.0]) == "▅▅"
    assert curve.sparkline([]) == "" and curve.sparkline([math.nan]) == ""


def test_a_terminal_plot_goes_from_the_lower_left_to_the_upper_right() -> None:
    lines = curve.terminal_plot(curve.series(ROWS, "rollout/reward_mean"), width=40, height=6).splitlines()
    body = [line.split("┤")[1] for line in lines[1:7]]
    assert len({len(row) for row in body}) == 1
    assert body[-1][0] != "\u2800" and body[0][-1] != "\u2800"
    assert body[0][0] == "\u2800" and body[-1][-1] == "\u2800"
    assert lines[1].strip().startswith("0.8") and lines[6].strip().startswith("0.02")
    assert lines[-1].split() == ["1", "40", "step"]
    assert max(map(len, lines)) <= 48


@pytest.mark.parametrize("values", [(0.5,), (0.5, 0.5), (1.0, -1.0)])
def test_short_and_flat_curves_are_drawn(values: tuple[float, ...]) -> None:
    line = curve.Series(key="k", steps=tuple(range(len(values))), values=values)
    drawn = curve.terminal_plot(line, width=20, height=4)
    assert any(0x2801 <= ord(c) <= 0x28FF for c in drawn)


@pytest.mark.parametrize(("value", "ends"), [(0.0, (1, 0)), (1.0, (1, 0)), (0.25, (1, 0)), (7.0, (7.5, 6.5))])
def test_the_axis_of_one_value_is_that_of_a_share_where_it_could_be_one(
    value: float, ends: tuple[float, float]
) -> None:
    line = curve.Series(key="k", steps=(1, 2), values=(value, value))
    rows = curve.terminal_plot(line, width=20, height=5).splitlines()[1:6]
    assert (float(rows[0].split()[0]), float(rows[-1].split()[0])) == ends
    [drawn] = [at for at, row in enumerate(rows) if any(0x2801 <= ord(c) <= 0x28FF for c in row)]
    assert drawn == {0.0: 4, 1.0: 0, 0.25: 3, 7.0: 2}[value]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    curve.write_png(ROWS, tmp_path / "curve.png", "a run")
    data = (tmp_path / "curve.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 10_000


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to draw"):
        curve.write_png([MetricsRow(step=1, time=0.0, metrics={"a": 1.0})], tmp_path / "c.png", "x")
