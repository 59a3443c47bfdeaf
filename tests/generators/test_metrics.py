"""What replicas say of themselves, put together."""

from __future__ import annotations

from agentgym.generators.metrics import summed


def test_totals_survive_a_replica_and_shares_are_of_the_live() -> None:
    seen = {
        name: {
            "tokens_total": 10.0 * n,
            "busy_s": float(n),
            "running": 2.0 * n,
            "kv_share": 0.2 * n,
            "join_s_mean": n / 8,
        }
        for n, name in enumerate(("dead", "a", "b"), 1)
    }
    assert summed(seen, {"a", "b"}) == {
        "tokens_total": 60.0,
        "busy_s": 6.0,
        "running": 10.0,
        "kv_share": 0.5,
        "join_s_mean": 2.5 / 8,
    }
    assert summed(seen, set()) == {"tokens_total": 60.0, "busy_s": 6.0}
