"""What is in flight, and for how long something was: unions, not sums."""

from __future__ import annotations

from agentgym.rollout.activity import Activity


def test_calls_that_overlap_count_once_and_idle_time_counts_never() -> None:
    activity = Activity()
    first, second, other = activity.begin("generate"), activity.begin("generate"), activity.begin("sandbox")
    assert {kind: len(ages) for kind, ages in activity.in_flight().items()} == {"generate": 2, "sandbox": 1}
    during = activity.totals_s()
    activity.end("generate", first)
    activity.end("sandbox", other)
    activity.end("generate", second)
    after, later = activity.totals_s(), activity.totals_s()
    assert activity.in_flight() == {}
    assert 0 < after["sandbox"] < after["generate"] <= after["any"] <= after["wall"]
    assert during["any"] < after["any"], "what is under way counts up to now, and is not counted again"
    assert {kind: later[kind] for kind in ("generate", "sandbox", "any")} == {
        kind: after[kind] for kind in ("generate", "sandbox", "any")
    }
