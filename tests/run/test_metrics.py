"""A step's metrics: what is of the step and what is of the run so far."""

from __future__ import annotations

from agentgym.loops.async_rl import StepRecord
from agentgym.rollout.activity import Activity
from agentgym.rollout.agent_faults import dropped_fields, dropped_line
from agentgym.run.metrics import StepClock, StepMeter, rollout_metrics
from agentgym.types import Episode, ErrorRecord, Outcome, Task, ToolTrace


def record(step: int) -> StepRecord:
    return StepRecord(step=step, groups=[], skipped=[], staleness=[0], metrics={}, next_group=0)


def test_counts_are_given_since_the_start_and_for_the_step() -> None:
    meter = StepMeter(clock=StepClock(Activity()), sandbox_before={"sandbox/calls_total": 100.0})
    first = meter.read(record(1), {}, {"sandbox/calls_total": 148.0, "sandbox/calls_waiting": 3.0})
    second = meter.read(
        record(2), {}, {"sandbox/calls_total": 150.0, "sandbox/retries_total": 1.0, "sandbox/wall_p95_s": 0.2}
    )
    assert (first["sandbox/calls_total"], first["sandbox/calls"]) == (148, 48)
    assert (second["sandbox/calls_total"], second["sandbox/calls"]) == (150, 2)
    assert second["sandbox/retries"] == 1, "a count that is new has grown from zero"
    assert first["sandbox/calls_waiting"] == 3 and second["sandbox/wall_p95_s"] == 0.2


def test_a_run_without_a_sandbox_has_no_metrics_of_one() -> None:
    found = StepMeter(clock=StepClock(Activity())).read(record(1), {}, {})
    assert not [name for name in found if name.startswith("sandbox/")]


def test_a_run_that_has_saved_says_how_long_training_stood_still_for_it() -> None:
    activity = Activity()
    meter = StepMeter(clock=StepClock(activity))
    assert "time/save_s" not in meter.read(record(1), {}, {})
    with activity.doing("save"):
        pass
    assert meter.read(record(2), {}, {})["time/save_s"] > 0 == meter.read(record(3), {}, {})["time/save_s"]


def test_prompts_that_are_too_long_and_scores_that_are_missing_are_counted_apart() -> None:
    task = Task(task_id="t", prompt=())
    scored = [
        Episode(episode_id="e", task=task, seed=0, outcome=Outcome.SCORED, reward=1.0, rewards={"style": style})
        for style in (0.5, None, None)
    ]
    errors = [
        ErrorRecord(source="", kind=kind, message="") for kind in ("prompt_too_long", "unsupported", "InfraError")
    ]
    lost = [Episode(episode_id="e", task=task, seed=0, outcome=Outcome.INFRA_ERROR, error=error) for error in errors]
    found = rollout_metrics([*scored, *lost])
    counts = ("prompt_too_long", "unsupported", "infra_errors")
    assert [found[f"rollout/{count}"] for count in counts] == [1, 1, 1]
    assert found["reward/style_mean"] == 0.5 and found["reward/style_missing"] == 2


def test_tool_calls_are_counted_by_what_came_of_them() -> None:
    def episode(*errors: str, outcome: Outcome = Outcome.SCORED) -> Episode:
        calls = [ToolTrace(turn=1, name="f", arguments={}, result="", error=error) for error in errors]
        return Episode(
            episode_id="e", task=Task(task_id="t", prompt=()), seed=0, outcome=outcome, reward=0.0, tool_calls=calls
        )

    played = [
        episode("", "malformed", "arguments"),
        episode("time_limit", ""),
        episode("", outcome=Outcome.INFRA_ERROR),
    ]
    found = rollout_metrics(played)
    assert [found[f"rollout/tool_{name}"] for name in ("calls", "malformed", "errors")] == [5, 1, 2]


def test_what_was_dropped_of_agents_requests_is_counted_by_name() -> None:
    notes = [
        {"not_honoured": {"dropped tool web_search": 2, "overridden_top_p": 7}},
        {"not_honoured": {"dropped tool web_search": 1, "dropped text.format": 3}},
        {}, "a note of its own",
    ]  # fmt: skip
    task = Task(task_id="t", prompt=())
    played = [Episode(episode_id="e", task=task, seed=0, outcome=Outcome.SCORED, info={"agent": one}) for one in notes]
    found = {name: value for name, value in rollout_metrics(played).items() if name.startswith("rollout/dropped")}
    assert found == {"rollout/dropped_tool_web_search": 3, "rollout/dropped_text.format": 3}
    assert dropped_line(dropped_fields(played)).endswith(": 3 x text.format, 3 x tool web_search")
    assert dropped_line(dropped_fields(played[2:])) == ""
