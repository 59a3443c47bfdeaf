"""The table of episodes: filters, order and pages, against plain loops over the same rows."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

ROUTE = "/api/runs/runs:one/episodes"


def rows(view: TestClient, query: str = "") -> list[dict]:
    answer = view.get(f"{ROUTE}?limit=500&{query}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["matched"] == len(answer.json()["rows"])
    return answer.json()["rows"]


@pytest.mark.parametrize(
    ("query", "accepts"),
    [
        ("source=train", lambda r: r["source"] == "train"),
        ("source=eval&success=true", lambda r: r["source"] == "eval" and r["success"]),
        ("step=2&source=train", lambda r: r["step"] == 2 and r["source"] == "train"),
        ("step_from=2&step_to=3", lambda r: 2 <= r["step"] <= 3),
        ("trained=false&stop=max_turns", lambda r: not r["trained"] and r["stop"] == "max_turns"),
        ("reward_min=0.5", lambda r: r["reward"] is not None and r["reward"] >= 0.5),
        ("stale_min=1", lambda r: (r["staleness"] or 0) >= 1),
        ("task=count-1", lambda r: "count-1" in r["task_id"]),
        ("difficulty=2&group=2", lambda r: r["difficulty"] == 2 and r["group"] == 2),
        ("text=E03", lambda r: "e03" in r["episode_id"]),
        ("error=any", lambda r: bool(r["error"])),
    ],
)
def test_a_filter_keeps_exactly_what_it_says(view: TestClient, query: str, accepts) -> None:
    everything = rows(view)
    wanted = [one["key"] for one in everything if accepts(one)]
    assert [one["key"] for one in rows(view, query)] == wanted
    assert len(wanted) < len(everything)


def test_rows_are_sorted_by_several_columns_and_unknown_values_come_last(view: TestClient) -> None:
    found = rows(view, "sort=-staleness,seconds,n")
    values = [(one["staleness"], one["seconds"], one["n"]) for one in found]
    known = [value for value in values if value[0] is not None]
    assert known == sorted(known, key=lambda v: (-v[0], v[1], v[2])) and known
    assert all(value[0] is None for value in values[len(known) :]) and len(known) < len(values)
    best = rows(view, "sort=-reward.exact")
    assert [one["rewards"]["exact"] for one in best] == sorted((one["rewards"]["exact"] for one in best), reverse=True)


def test_pages_follow_each_other(view: TestClient) -> None:
    everything = [one["key"] for one in rows(view, "sort=-n")]
    pages = [view.get(f"{ROUTE}?sort=-n&limit=10&offset={offset}").json() for offset in range(0, len(everything), 10)]
    assert [one["key"] for page in pages for one in page["rows"]] == everything
    assert {page["matched"] for page in pages} == {len(everything)} and pages[0]["reward_names"] == ["exact", "format"]


def test_counts_are_of_all_episodes_whatever_is_filtered(view: TestClient) -> None:
    facets = view.get(f"{ROUTE}?source=train&success=true").json()["facets"]
    assert facets["stop"] == {"max_turns": 24, "done": 12} and facets["steps"] == [1, 3]


@pytest.mark.parametrize(
    "query",
    ["limit=501", "limit=x", "offset=-1", "sort=seed", "colour=red", "success=yes", "reward_min=much", "source=x"],
)
def test_a_wrong_parameter_is_named(view: TestClient, query: str) -> None:
    answer = view.get(f"{ROUTE}?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["kind"] == "invalid"
    assert query.partition("=")[2].removeprefix("-") in answer.json()["error"]["message"] or "colour" in answer.text
