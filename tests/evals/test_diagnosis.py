"""Each way in which a run goes wrong is named, from figures of real runs of the shipped policy."""

from __future__ import annotations

from agentgym.evals.diagnosis import diagnose_figures
from agentgym.runs.folder import MetricsRow


def test_a_run_without_steps_is_too_early_to_judge() -> None:
    found = diagnose_figures([])
    assert found.verdict == "too_early" and found.change is None and not found.findings
    assert found.sentence.startswith("Too early to say: no step is finished")


def test_success_in_training_that_rises_is_learning_and_says_it_is_not_paired() -> None:
    rows = [
        MetricsRow(step=step, time=0.0, metrics={"rollout/success_mean": 0.3 + 0.05 * step}) for step in range(1, 13)
    ]
    found = diagnose_figures(rows)
    assert found.verdict == "learning" and found.change is not None and not found.change.paired
    assert "+0.400" in found.sentence and "n = 8 steps, not paired" in found.sentence
