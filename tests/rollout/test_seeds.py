"""Seeds that are derived from parts."""

from __future__ import annotations

from agentgym.rollout.episode import derive_seed


def test_a_seed_depends_on_where_each_part_ends() -> None:
    apart = [
        ("a/b", "c"),
        ("a", "b/c"),
        ("a", "b", "c"),
        ("a/b/c",),
        ("/",),
        ("", ""),
        ("", "/"),
        ("//",),
        ("", "", ""),
    ]
    assert len({derive_seed(*parts) for parts in apart}) == len(apart)


def test_seeds_of_recorded_runs_are_what_they_were() -> None:
    assert derive_seed("eval", 0, 3, 1) == 3651678929562903574
    assert derive_seed(7, 12, 3) == 8937335386234627850 and derive_seed("sync", 4) == 85210537557134368
