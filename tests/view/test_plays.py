"""An environment played by hand, through the same runner as a policy plays it."""

from __future__ import annotations

import re
import time

import pytest
from starlette.testclient import TestClient
from view.shops import Shopping, registry

from agentgym.tables.roots import Roots
from agentgym.view.app import View, build_app
from agentgym.view.plays import MAX_PLAYS, Plays
from agentgym.view.security import Access

URL = "http://127.0.0.1:8710"


@pytest.fixture
def shops(runs, open_view) -> TestClient:
    return open_view(runs, plays=Plays(registry))


def begin(view: TestClient, **body) -> dict:
    answer = view.post("/api/plays", json={"env": "shopping", **body})
    assert answer.status_code == 201, answer.text
    return answer.json()


def say(view: TestClient, play: str, **body) -> dict:
    answer = view.post(f"/api/plays/{play}/say", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_task_is_played_with_calls_and_words_to_its_reward(shops: TestClient) -> None:
    play = begin(shops, task_id="shop-1")
    assert (play["done"], play["turn"], play["max_turns"], play["messages"][0]["content"]) == (False, 0, 3, "shop 1")
    assert [one["function"]["name"] for one in play["tools"]] == ["buy"]
    play = say(shops, play["id"], calls=[{"name": "buy", "arguments": {"item": "apple"}}])
    assert play["messages"][-1]["content"] == "one apple" and play["tool_calls"][0]["result"] == "one apple"
    play = say(shops, play["id"], text="done")
    assert (play["done"], play["stop"], play["outcome"], play["reward"], play["success"]) == (
        True,
        "done",
        "scored",
        1.0,
        True,
    )
    assert play["rewards"] == [{"name": "fruit", "value": 1.0, "weight": 1.0}]
    assert Shopping.open_worlds == 0
    assert shops.post(f"/api/plays/{play['id']}/say", json={"text": "more"}).status_code == 410
    assert shops.get(f"/api/plays/{play['id']}").json()["reward"] == 1.0


def test_a_play_ends_at_its_last_turn_and_a_wrong_call_is_told(shops: TestClient) -> None:
    play = begin(shops)
    play = say(shops, play["id"], calls=[{"name": "sell", "arguments": {}}])
    assert play["tool_calls"][0]["error"] == "unknown_tool"
    say(shops, play["id"], text="hm")
    play = say(shops, play["id"], text="hm")
    assert (play["stop"], play["reward"]) == ("max_turns", 0.0)


def test_what_crashes_in_an_environment_is_shown_and_the_view_goes_on(shops: TestClient) -> None:
    play = say(shops, begin(shops)["id"], text="crash")
    assert play["error"]["kind"] == "RuntimeError"
    assert re.fullmatch(r"the till is broken, at .*shops\.py:\d+ in reply", play["error"]["message"])
    assert (play["done"], play["outcome"], play["reward"]) == (True, "infra_error", None)
    assert Shopping.open_worlds == 0
    assert begin(shops)["done"] is False


def test_only_a_few_are_open_at_once_and_closing_the_view_ends_them(runs) -> None:
    app = build_app(View(Roots.of([runs]), None, Plays(registry)), Access.of("127.0.0.1", 8710))
    with TestClient(app, base_url=URL) as view:
        ids = [begin(view)["id"] for _ in range(MAX_PLAYS)]
        refused = view.post("/api/plays", json={"env": "shopping"})
        assert refused.status_code == 429 and ids[0] in refused.json()["error"]["message"]
        ended = view.request("DELETE", f"/api/plays/{ids[0]}", json={})
        assert ended.json() == {"ended": True} and Shopping.open_worlds == MAX_PLAYS - 1
        begin(view)
    assert Shopping.open_worlds == 0


def test_a_play_that_nobody_goes_on_with_ends(runs, open_view) -> None:
    view = open_view(runs, plays=Plays(registry, idle_s=0.01))
    play = begin(view)
    deadline = time.monotonic() + 30
    while not (now := view.get(f"/api/plays/{play['id']}").json())["done"]:
        assert time.monotonic() < deadline
    assert now["stop"] == "abandoned" and Shopping.open_worlds == 0
    assert view.post(f"/api/plays/{play['id']}/say", json={"text": "x"}).status_code == 410


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"text": "x" * 20_001}, 413),
        ({"calls": [{"name": "buy"}]}, 400),
        ({"calls": [{"name": "buy", "arguments": {}}] * 17}, 413),
        ({"text": 3}, 400),
    ],
)
def test_a_turn_has_a_size_and_a_shape(shops: TestClient, body: dict, status: int) -> None:
    play = begin(shops)["id"]
    assert shops.post(f"/api/plays/{play}/say", json=body).status_code == status
    assert shops.get(f"/api/plays/{play}").json()["turn"] == 0


def test_environments_are_listed_with_their_options_and_tasks(shops: TestClient) -> None:
    [one] = shops.get("/api/envs").json()["envs"]
    assert (one["name"], one["summary"], one["error"]) == ("shopping", "Buy an apple, then say `done`.", "")
    found = shops.get("/api/envs/shopping?n=1").json()
    assert [task["task_id"] for task in found["tasks"]] == ["shop-0"] and found["more"] is True
    assert found["options"][0]["key"] == "limit" and found["has_tools"] is True
    assert found["tasks"][0]["answer"] == {"$tuple": ["apple"]}


@pytest.mark.parametrize("name", ["os:getcwd", "shoping", "../shopping", "tests/view/test_plays.py:Shopping"])
def test_no_other_program_is_run_by_its_name(shops: TestClient, name: str) -> None:
    assert shops.get(f"/api/envs/{name}").status_code == 404
    assert shops.post("/api/plays", json={"env": name}).status_code == 404


def test_a_view_without_plays_has_no_such_routes(view: TestClient) -> None:
    assert view.get("/api").json()["can"]["play"] is False
    assert view.get("/api/envs").status_code == 404
    assert view.post("/api/plays", json={"env": "shopping"}).status_code == 404
