"""Who may ask, what is never answered, and what the page may do."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from view_runs import write_run

from agentgym.runs.steering import FILE
from agentgym.view.security import Access

JSON = {"content-type": "application/json"}
STEER = "/api/runs/runs:one/steer"


@pytest.fixture
def running(tmp_path: Path):
    with write_run(tmp_path / "runs", "one", steps=1, done=False) as folder:
        yield folder


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8710",
        "127.0.0.1:80",
        "127.0.0.1.evil.example:8710",
        "192.168.1.2:8710",
        "[::2]:8710",
        "",
    ],
)
def test_a_name_that_was_pointed_here_is_refused(view: TestClient, host: str) -> None:
    answer = view.get("/api/runs", headers={"host": host})
    assert answer.status_code == 403 and "runs:one" not in answer.text


@pytest.mark.parametrize("host", ["localhost:8710", "127.0.0.1:8710", "[::1]:8710", "LOCALHOST:8710"])
def test_this_machine_is_answered(view: TestClient, host: str) -> None:
    assert view.get("/api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "https://127.0.0.1:8710"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_another_sites_page_changes_nothing(running, open_view, headers, status: int) -> None:
    view = open_view(running.path.parent)
    answer = view.post(STEER, content='{"action": "stop"}', headers={**JSON, **headers})
    assert answer.status_code == status
    assert not (running.path / FILE).exists()
    assert view.post(STEER, json={"action": "stop"}, headers={"origin": "http://127.0.0.1:8710"}).status_code == 202
    assert (running.path / FILE).exists()


def test_another_sites_page_reads_nothing(view: TestClient) -> None:
    cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": "http://evil.example"}
    answer = view.get("/api/runs", headers=cross)
    assert answer.status_code == 403
    for one in (answer, view.get("/api/runs")):
        assert "access-control-allow-origin" not in one.headers


@pytest.mark.parametrize("path", ["/", "/api", "/api/runs", "/api/nothing", "/page/nothing.js", "/nothing"])
def test_every_answer_confines_what_a_browser_does_with_it(view: TestClient, path: str) -> None:
    answer = view.get(path)
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'" and policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/runs:..",
        "/api/runs/runs:..%2fsecret",
        "/api/runs/runs:%2e%2e%2fsecret",
        "/api/runs/runs:%252e%252e%252fsecret",
        "/api/runs/runs:one%2f..%2f..%2fsecret",
        "/api/runs/runs:..%5csecret",
        "/api/runs/:secret",
        "/api/runs/runs:",
        "/api/runs/runs:one%00",
        "/api/runs/runs:link",
        "/api/runs/runs:" + "x" * 5000,
        "/api/runs/runs:one/logs/..%2fconfig.yaml",
        "/api/runs/runs:one/logs/%2e%2e%2f%2e%2e%2f%2e%2e%2fsecret%2fstatus.json",
        "/api/runs/runs:one/logs/link.log",
        "/api/runs/runs:one/episodes/..%2f..%2fsecret",
        "/api/runs/runs:one/episodes/train-1-999999999999",
        "/api/reports/runs:..%2fsecret%2freport.json",
        "/page/..%2f..%2fapp.py",
        "/page/%2e%2e/%2e%2e/app.py",
        "/page//etc/passwd",
        "/../secret/status.json",
    ],
)
def test_nothing_outside_of_the_folders_is_read(runs: Path, open_view, path: str) -> None:
    secret = write_run(runs.parent, "secret", steps=1).path
    (secret / "report.json").write_text('{"environment": "x", "probes": [], "findings": [], "clean": true}')
    (runs / "link").symlink_to(secret)
    (runs / "one" / "logs").mkdir()
    (runs / "one" / "logs" / "link.log").symlink_to(secret / "status.json")
    (runs / "linked.json").symlink_to(secret / "report.json")
    view = open_view(runs)
    answer = view.get(path)
    assert answer.status_code in (400, 404), answer.text
    assert "import" not in answer.text and "process" not in answer.text
    assert [one["id"] for one in view.get("/api/runs").json()["runs"]] == ["runs:one"]
    assert view.get("/api/reports").json() == {"reports": []}


def test_a_steering_file_that_is_a_link_is_not_written_through(running, open_view) -> None:
    target = running.path.parent.parent / "target"
    target.write_text("mine\n")
    (running.path / FILE).symlink_to(target)
    view = open_view(running.path.parent)
    assert view.post(STEER, json={"action": "stop"}).status_code == 400
    assert target.read_text() == "mine\n"


def test_beyond_this_machine_the_token_is_needed(runs: Path, open_view) -> None:
    access = Access.of("0.0.0.0", 8710)
    assert len(access.token) >= 32 and access.token != Access.of("0.0.0.0", 8710).token
    view = open_view(runs, access=access, url="http://192.168.1.2:8710")
    for path in ("/", "/api/runs", "/page/app.js", "/api/runs?token=wrong"):
        assert view.get(path).status_code == 403
    assert view.post(STEER, json={"action": "stop"}).status_code == 403
    first = view.get(f"/?token={access.token}", follow_redirects=False)
    assert first.status_code == 303 and first.headers["location"] == "/"
    assert "HttpOnly" in first.headers["set-cookie"]
    assert view.get("/api/runs").status_code == 200  # by the cookie
    assert view.get("/api/runs", headers={"host": "evil.example:8710"}).status_code == 403


def test_a_body_that_is_too_large_or_no_object_is_refused(view: TestClient) -> None:
    assert view.post(STEER, content=b" " * (2**20 + 1), headers=JSON).status_code == 413
    for body in ("[1]", "{", "[" * 100_000, '"x"'):
        assert view.post(STEER, content=body, headers=JSON).status_code == 400


def test_a_method_that_a_route_does_not_know_is_refused_as_json(view: TestClient) -> None:
    answer = view.delete("/api/runs/runs:one", headers=JSON)
    assert answer.status_code in (404, 405) and answer.json()["error"]["message"]
