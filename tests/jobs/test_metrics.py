"""A step's metrics: what is of the step and what is of the run so far."""

from __future__ import annotations

from agentgym.jobs.metrics import StepMeter
from agentgym.rl.loop import StepRecord
from agentgym.rollout.activity import Activity


def record(step: int) -> StepRecord:
    return StepRecord(step=step, groups=[], skipped=[], staleness=[0], metrics={}, next_group=0)


def test_counts_are_given_since_the_start_and_for_the_step() -> None:
    meter = StepMeter(activity=Activity(), tokens_before=0.0, sandbox_before={"sandbox/calls_total": 100.0})
    first = meter.read(record(1), {}, {"sandbox/calls_total": 148.0, "sandbox/calls_waiting": 3.0})
    second = meter.read(
        record(2), {}, {"sandbox/calls_total": 150.0, "sandbox/retries_total": 1.0, "sandbox/wall_p95_s": 0.2}
    )
    assert (first["sandbox/calls_total"], first["sandbox/calls"]) == (148, 48)
    assert (second["sandbox/calls_total"], second["sandbox/calls"]) == (150, 2)
    assert second["sandbox/retries"] == 1, "a count that is new has grown from zero"
    assert first["sandbox/calls_waiting"] == 3 and second["sandbox/wall_p95_s"] == 0.2


def test_a_run_without_a_sandbox_has_no_metrics_of_one() -> None:
    found = StepMeter(activity=Activity(), tokens_before=0.0).read(record(1), {}, {})
    assert not [name for name in found if name.startswith("sandbox/")]
