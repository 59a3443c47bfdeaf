"""What the plain and the JSON reporter write."""

from __future__ import annotations

import io
import json

import pytest

from agentgym.commands.text import table_lines
from agentgym.runs.report import JsonReporter, Pace, PlainReporter, Reporter, duration, milliseconds, number

METRICS = {"rollout/reward_mean": 0.5, "train/mismatch_kl": 0.0000012, "generator/tokens_per_s": 1234.5}


def play(reporter: Reporter) -> None:
    reporter.phase("starting 2 generators")
    reporter.note("sandbox: monty")
    reporter.step(1, 2, METRICS)
    reporter.step(2, 2, {"rollout/reward_mean": float("nan")})
    reporter.table("result", ["checkpoint", "success"], [["first", "0.41"], ["last", "0.63"]])
    reporter.close()


def test_plain_lines_say_each_thing_once() -> None:
    stream = io.StringIO()
    play(PlainReporter(stream))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "... starting 2 generators" and lines[1] == "sandbox: monty"
    assert lines[2].startswith("step 1/2  reward 0.500  mismatch 1.2e-06  tokens/s 1234  left ")
    assert lines[3] == "step 2/2  reward nan"
    assert lines[5:] == [
        "result",
        "checkpoint  success",
        "----------  -------",
        "first          0.41",
        "last           0.63",
    ]


def test_a_line_ends_with_the_sandbox_where_there_is_one() -> None:
    stream = io.StringIO()
    reporter = PlainReporter(stream)
    reporter.step(2, 2, {**METRICS, "sandbox/calls": 9.0, "sandbox/wall_p50_s": 0.004, "sandbox/calls_oom": 2.0})
    assert stream.getvalue().endswith("tokens/s 1234  sandbox 9 calls, p50 4 ms, 2 out of memory\n")


def test_json_lines_can_all_be_read() -> None:
    stream = io.StringIO()
    play(JsonReporter(stream))
    events = [json.loads(line, parse_constant=pytest.fail) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["phase", "note", "step", "step", "table"]
    assert events[2]["metrics"] == METRICS and events[3]["metrics"] == {"rollout/reward_mean": None}
    assert events[4]["rows"][1] == {"checkpoint": "last", "success": "0.63"}


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59.4, "59s"), (185, "3m05s"), (7800, "2h10m"), (-1, "0s")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_small_figures_do_not_show_as_zero() -> None:
    assert number(0.0, 3) == "0.000" and number(0.00004, 3) == "4.0e-05" and number(-0.25, 2) == "-0.25"


def test_the_rest_is_guessed_from_the_steps_of_this_process() -> None:
    now_s = 0.0
    pace = Pace(clock=lambda: now_s)
    assert pace.rest_s(10) is None
    now_s = 60.0
    pace.reached(6)  # a resumed run: five steps were done by another process
    assert pace.rest_s(10) == 240.0
    pace.reached(8, after_s=15.0)
    assert pace.rest_s(10) == 55.0
    now_s = 70.0
    assert pace.rest_s(10) == 45.0  # it counts down while a step takes long
    now_s = 80.0
    pace.reached(10, after_s=15.0)
    assert pace.rest_s(10) == 15.0


def test_an_empty_table_says_so() -> None:
    assert table_lines(["a", "b"], []) == ["a  b", "(none)"]


def test_times_of_calls_are_read_at_a_glance() -> None:
    times_s = (0.0, 0.000351, 0.00357, 0.02824, 0.0999, 0.4352, 1.2504, 12.3)
    shown = ["0 ms", "0.351 ms", "3.57 ms", "28.2 ms", "99.9 ms", "435 ms", "1250 ms", "12300 ms"]
    assert [milliseconds(time_s) for time_s in times_s] == shown
