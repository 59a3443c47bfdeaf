"""The routes and the headers of `agentgym view` over made-up answers: the page is tested without files of a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from view import fake_answers as answers
from view import fake_episodes as episodes

PAGE = Path(__file__).parents[2] / "agentgym" / "view" / "page"
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)


class FakeView(ThreadingHTTPServer):
    """said: the bodies of all that was posted, with their paths. grown: the run is one step further, and says so."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.said: list[tuple[str, str, Any]] = []
        self.grown = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


@contextmanager
def serving() -> Iterator[FakeView]:
    server = FakeView()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeView
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if not url.path.startswith("/api"):
            name = "index.html" if url.path == "/" else url.path.removeprefix("/page/")
            self._send(200, (PAGE / name).read_bytes(), KINDS.get(Path(name).suffix, "text/plain"))
        elif url.path.endswith("/live"):
            self.server.grown.wait(5)
            self._send(200, b"retry: 100000\nevent: step\ndata: {}\n\n", "text/event-stream")
        else:
            found = answer([unquote(part) for part in url.path.split("/")[2:]], dict(parse_qsl(url.query)))
            if found is not None and "diagnosis" in found and self.server.grown.is_set():
                found = {**found, "step": found["step"] + 1}
            self._json(found)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.said.append((self.command, unquote(self.path), body))
        if self.path == "/api/plays":
            self._json({**answers.PLAY, "task_id": body["task_id"]}, 201)
        elif self.path.endswith("/say"):
            reward = {"done": True, "stop": "done", "outcome": "scored", "reward": 1.0, "success": True, "turn": 1}
            said = [*answers.PLAY["messages"], {"role": "assistant", "content": body["text"]}]
            rewards = [{"name": "success", "value": 1.0, "weight": 1.0}]
            self._json({**answers.PLAY, **reward, "messages": said, "rewards": rewards})
        else:
            self._json({"steering": {"able": True, "why_not": "", "requests": []}, "ended": True}, 202)

    do_DELETE = do_POST

    def _json(self, found: dict[str, Any] | None, status: int = 200) -> None:
        missing = {"error": {"kind": "not_found", "message": f"nothing at {self.path}", "nearest": None}}
        data = json.dumps(missing if found is None else found).encode()
        self._send(404 if found is None else status, data, "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.send_header("content-security-policy", POLICY)
        self.send_header("x-content-type-options", "nosniff")
        self.end_headers()
        self.wfile.write(data)


def answer(path: list[str], asked: dict[str, str]) -> dict[str, Any] | None:
    """path: the parts after /api. None: there is no such thing."""
    match path:
        case []:
            return {
                "name": "agentgym",
                "version": "0.1.0",
                "exported": False,
                "roots": [],
                "can": {"steer": True, "play": True},
            }
        case ["runs"]:
            return {"runs": [answers.run_row(), answers.run_row(answers.OTHER)]}
        case ["runs", (answers.RUN | answers.OTHER) as run, *rest]:
            return _of_run(run, rest, asked)
        case ["compare"]:
            return answers.compare()
        case ["compare", "sides"]:
            sides = [(answers.RUN, 0), (answers.RUN, 40), (answers.OTHER, 40)]
            row = {"environment": "math", "success": 0.6, "tasks": 128}
            return {"sides": [{"side": f"{run}@{step}", "run": run, "step": step, **row} for run, step in sides]}
        case ["reports"]:
            report = answers.report()
            row = {key: report[key] for key in ("id", "kind", "title", "time", "ok")}
            return {"reports": [{**row, "findings": 1}]}
        case ["reports", _]:
            return answers.report()
        case ["envs"]:
            row = {"name": "math", "version": 2, "summary": "Arithmetic.", "distribution": "agentgym", "error": ""}
            return {"envs": [row], "can_play": True}
        case ["envs", "math"]:
            return answers.ENV
    return None


def _of_run(run: str, rest: list[str], asked: dict[str, str]) -> dict[str, Any] | None:
    match rest:
        case []:
            return answers.run_answer(run)
        case ["curves"]:
            return answers.curves()
        case ["lanes"]:
            return answers.lanes()
        case ["time"]:
            return answers.time_answer()
        case ["events"]:
            return {"events": [{"time": "2026-11-22T10:00:00.123+00:00", "text": "training began"}], "logs": []}
        case ["episodes"]:
            return _episodes(asked)
        case ["episodes", key]:
            return episodes.episode(key)
        case ["groups", _, step, number]:
            return episodes.group(int(step), int(number))
        case ["diff"]:
            return episodes.diff(asked["a"], asked["b"])
    return None


def _episodes(asked: dict[str, str]) -> dict[str, Any]:
    """Knows only what the tests ask for: the task, success, sorting by reward or step, and pages."""
    rows = [row for row in episodes.ROWS if asked.get("task", "") in row["task_id"]]
    if "success" in asked:
        rows = [row for row in rows if str(row["success"]).lower() == asked["success"]]
    column = asked.get("sort", "-step")
    rows.sort(key=lambda row: row[column.lstrip("-")], reverse=column.startswith("-"))
    offset, limit = int(asked.get("offset", 0)), int(asked.get("limit", 50))
    facets = {
        "outcome": {"scored": 5119, "infra_error": 1},
        "stop": {"done": 4096, "turn_tokens": 1024},
        "difficulty": {"1": 1280},
    }
    page = {
        "offset": offset,
        "limit": limit,
        "rows": rows[offset : offset + limit],
        "reward_names": ["success", "format"],
    }
    return {"total": len(episodes.ROWS), "matched": len(rows), "facets": facets, **page}
