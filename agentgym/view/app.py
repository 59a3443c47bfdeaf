"""The routes of the view: JSON about the runs in the given folders, the files of the page, and nothing else."""

from __future__ import annotations

import functools
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from agentgym.runs.folder import RunStatus
from agentgym.stability import VERSION
from agentgym.tables.comparing import compare_json, diff_json, sides_json
from agentgym.tables.curves import MAX_POINTS, curves_json, lanes_json, time_json
from agentgym.tables.episode import NO_TOKENIZER, episode_json
from agentgym.tables.episode_search import group_json, search, whole
from agentgym.tables.evaluation import evaluation_json
from agentgym.tables.leaderboard import leaderboard_json
from agentgym.tables.problems import Problem
from agentgym.tables.reports import report_json, reports_json
from agentgym.tables.roots import Roots
from agentgym.tables.run import Run
from agentgym.tables.steering import ask
from agentgym.tables.summaries import read_evaluations
from agentgym.tables.summary import run_row
from agentgym.view.bundle import Bundle
from agentgym.view.journal import events_json, log_json
from agentgym.view.live import live
from agentgym.view.plays import Plays
from agentgym.view.run_page import page_json
from agentgym.view.security import Access, Guard

PAGE = Path(__file__).parent / "page"
Handler = Callable[[Request], Any]


@dataclass(slots=True)
class View:
    """What the routes answer from. cache: for indexes, outside of the runs. plays: None where nothing is played."""

    roots: Roots
    cache: Path | None = None
    plays: Plays | None = None
    can_steer: bool = True
    closing: threading.Event = field(default_factory=threading.Event)  # ends the streams
    _runs: dict[str, Run] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, name: str) -> Run:
        """Raises Problem for an unknown one."""
        location = self.roots.find(name)
        with self._lock:
            found = self._runs.get(location.id)
            if found is None or found.location != location:
                found = self._runs[location.id] = Run(location, self.cache)
            return found

    def runs(self) -> list[Run]:
        """The runs: active ones first, then by their last activity, newest first."""

        def order(run: Run) -> tuple[bool, float]:
            status, _, changed = run.status()
            return status != RunStatus.RUNNING, -(changed or 0)

        return sorted((self.run(location.id) for location in self.roots.locations()), key=order)

    def api(self, request: Request) -> Any:
        return self.about()

    def about(self) -> dict[str, Any]:
        """What this is, and what it can do."""
        return {
            "name": "agentgym",
            "version": VERSION,
            "exported": False,
            "roots": [{"key": root.key, "path": str(root.path / root.only)} for root in self.roots.roots],
            "can": {"steer": self.can_steer, "play": self.plays is not None},
            "now": time.time(),
        }

    def all(self, request: Request) -> Any:
        return {"runs": [run_row(run) for run in self.runs()]}

    def summary(self, request: Request) -> Any:
        return page_json(self._asked(request), can_steer=self.can_steer)

    def curves(self, request: Request) -> Any:
        keys = [key for key in request.query_params.get("keys", "").split(",") if key]
        return curves_json(self._asked(request), keys, whole(request.query_params, "max", MAX_POINTS, 2, 100_000))

    def lanes(self, request: Request) -> Any:
        first = whole(request.query_params, "from", 0, 0, 10**9)
        return lanes_json(self._asked(request), first, whole(request.query_params, "to", first + 200, 0, 10**9))

    def time(self, request: Request) -> Any:
        return time_json(self._asked(request), whole(request.query_params, "max", 400, 2, 100_000))

    def events(self, request: Request) -> Any:
        return events_json(self._asked(request), whole(request.query_params, "tail", 200, 1, 10_000))

    def log(self, request: Request) -> Any:
        name = request.path_params["name"]
        return log_json(self._asked(request), name, whole(request.query_params, "tail", 200, 1, 10_000))

    def episodes(self, request: Request) -> Any:
        return search(self._asked(request).episodes.read(), request.query_params.multi_items())

    def group(self, request: Request) -> Any:
        asked = request.path_params
        return group_json(self._asked(request).episodes.read(), asked["source"], asked["step"], asked["group"])

    def episode(self, request: Request) -> Any:
        run = self._asked(request)
        wants_texts = request.query_params.get("texts") != "false"
        return episode_json(
            run.episodes.read(),
            request.path_params["key"],
            weights=run.field("rewards", {}),
            texts=run.texts if wants_texts else None,
            text_missing=NO_TOKENIZER if wants_texts else "not asked for",
        )

    def evaluation(self, request: Request) -> Any:
        return evaluation_json(self._asked(request), request.path_params["step"])

    def diff(self, request: Request) -> Any:
        return diff_json(self._asked(request), *(_given(request, name) for name in ("a", "b")))

    def compare(self, request: Request) -> Any:
        given = [_given(request, "a"), _given(request, "b"), *request.query_params.getlist("also")]
        return compare_json(*map(self._side, given))

    def ranked(self, request: Request) -> Any:
        return self.leaderboard()

    def leaderboard(self) -> dict[str, Any]:
        ids = {str(location.path): location.id for location in self.roots.locations()}
        roots = [root.path for root in self.roots.roots]
        found = read_evaluations([Path(path) for path in ids], self.cache, roots)
        return leaderboard_json(found, ids)

    def sides(self, request: Request) -> Any:
        return sides_json(self.runs())

    def reports(self, request: Request) -> Any:
        return reports_json(self.roots)

    def report(self, request: Request) -> Any:
        return report_json(self.roots, request.path_params["report"])

    async def live(self, request: Request) -> Response:
        run = self._asked(request)
        given = request.headers.get("last-event-id") or request.query_params.get("from") or ""
        start = int(given) if given.isdecimal() and len(given) < 16 else None
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        stream = live(run, start, self.closing.is_set)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    def steer(self, request: Request, body: Mapping[str, Any]) -> Any:
        if not self.can_steer:
            raise Problem("forbidden", "this view only reads")
        action, setting = (str(body.get(name, "")) for name in ("action", "setting"))
        return {"steering": ask(self._asked(request), action, setting, body.get("value"))}

    def _asked(self, request: Request) -> Run:
        return self.run(request.path_params["run"])

    def _side(self, given: str) -> tuple[Run, int]:
        name, at, step = given.rpartition("@")
        run = self.run(name if at else given)
        if at and step.isdecimal():
            return run, int(step)
        steps = run.folder.episode_steps(evaluation=True)
        if at or not steps:
            raise Problem("not_found", f"{given[:200]!r} is no evaluation; give RUN or RUN@STEP")
        return run, steps[-1]


def build_app(view: View, access: Access, page: Path = PAGE) -> Guard:
    """The whole application, behind its guard."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        view.closing.set()
        if view.plays is not None:
            await view.plays.close()

    return Guard(Starlette(routes=_routes(view, page), lifespan=lifespan, exception_handlers=_HANDLERS), access)


def _routes(view: View, page: Path) -> list[Route | Mount]:
    run = "/api/runs/{run}"
    reads: dict[str, Handler] = {
        "/api": view.api,
        "/api/runs": view.all,
        run: view.summary,
        f"{run}/curves": view.curves,
        f"{run}/lanes": view.lanes,
        f"{run}/time": view.time,
        f"{run}/events": view.events,
        f"{run}/logs/{{name}}": view.log,
        f"{run}/episodes": view.episodes,
        f"{run}/groups/{{source}}/{{step:int}}/{{group:int}}": view.group,
        f"{run}/episodes/{{key}}": view.episode,
        f"{run}/evaluations/{{step:int}}": view.evaluation,
        f"{run}/diff": view.diff,
        "/api/compare": view.compare,
        "/api/compare/sides": view.sides,
        "/api/leaderboard": view.ranked,
        "/api/reports": view.reports,
        "/api/reports/{report:path}": view.report,
    }
    routes: list[Route | Mount] = [Route(path, _reading(handler)) for path, handler in reads.items()]
    routes.append(Route(f"{run}/live", view.live))
    routes.append(Route(f"{run}/steer", _changing(view.steer, 202), methods=["POST"]))
    if view.plays is not None:
        routes += view.plays.routes(_reading, _changing)
    routes.append(Route("/api/{rest:path}", _missing, methods=["GET", "POST", "DELETE", "PUT", "PATCH"]))
    routes.append(Route("/", functools.partial(_index, view, page)))
    if page.is_dir():
        routes.append(Route("/page/app.js", _script(page)))
        routes.append(Mount("/page", StaticFiles(directory=page)))
    return routes


def _script(page: Path) -> Callable[[Request], Response]:
    """All modules of the page in one answer: thirty requests would take most of the time of the first view."""
    made: dict[tuple[int, ...], str] = {}

    def answer(request: Request) -> Response:
        stamp = tuple(path.stat().st_mtime_ns for path in sorted(page.rglob("*.js")))
        if stamp not in made:
            made.clear()
            made[stamp] = Bundle(page).of("app.js")
        return Response(made[stamp], media_type="text/javascript")

    return answer


def _reading(handler: Handler) -> Callable[[Request], Response]:
    """Starlette runs it in a thread: it reads files."""

    def answer(request: Request) -> Response:
        return as_json(handler(request))

    return answer


def _changing(handler: Callable[[Request, Mapping[str, Any]], Any], status: int) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        body = await read_body(request)
        found = handler(request, body)
        return as_json(await found if hasattr(found, "__await__") else found, status)

    return answer


async def read_body(request: Request) -> Mapping[str, Any]:
    """Raises Problem for a body that is no JSON object."""
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise Problem("invalid", "the body is not JSON") from None
    if not isinstance(body, dict):
        raise Problem("invalid", "the body has to be a JSON object")
    return body


def as_json(value: Any, status: int = 200) -> Response:
    """Pure ASCII, since episodes hold lone surrogates; what is not finite is null."""
    return Response(as_text(value), status, media_type="application/json", headers={"cache-control": "no-store"})


def as_text(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=repr)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"), default=repr)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value


def _given(request: Request, name: str) -> str:
    if value := request.query_params.get(name):
        return value
    raise Problem("invalid", f"give the parameter {name!r}")


def _index(view: View, page: Path, request: Request) -> Response:
    """The index page, whose head names the first requests, so that they start while the script is read, and the chosen
    colours.
    """
    try:
        text = (page / "index.html").read_bytes()
    except OSError:
        raise Problem("not_found", "this installation has no page; the data is at /api") from None
    if (theme := request.cookies.get("agentgym-theme")) in ("light", "dark"):
        text = text.replace(b"<html ", f'<html data-theme="{theme}" '.encode(), 1)
    first = [f"/api/runs/{quote(run.location.id, safe='')}" for run in view.runs()[:1]]
    asked = ["/api/runs", *first, *(f"{run}/curves" for run in first)]
    links = ", ".join(f"<{path}>; rel=preload; as=fetch; crossorigin" for path in asked)
    return Response(text, media_type="text/html; charset=utf-8", headers={"cache-control": "no-cache", "link": links})


def _missing(request: Request) -> Response:
    raise Problem("not_found", f"no route {request.method} {request.url.path[:200]}")


def _of_problem(request: Request, problem: Any) -> Response:
    error = {"kind": problem.kind, "message": problem.message, "nearest": problem.nearest}
    return as_json({"error": error}, problem.status)


def _of_http(request: Request, error: Any) -> Response:
    kind = {404: "not_found", 405: "invalid"}.get(error.status_code, "invalid")
    return as_json({"error": {"kind": kind, "message": str(error.detail), "nearest": ""}}, error.status_code)


def _of_crash(request: Request, error: Exception) -> Response:
    """A file of a run that is not what a run writes; the traceback is logged."""
    problem = Problem("broken", f"this could not be read: {type(error).__name__}: {error}"[:500])
    return _of_problem(request, problem)


_HANDLERS: Any = {Problem: _of_problem, HTTPException: _of_http, Exception: _of_crash}
