"""`agentgym view --export`: the page, and what it asks about the runs, in one HTML file that needs no server."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentgym.errors import UserError
from agentgym.runs.files import write_whole
from agentgym.tables.comparing import sides_json
from agentgym.tables.curves import MAX_POINTS, curves_json, lanes_json, time_json
from agentgym.tables.episode import episode_json
from agentgym.tables.episode_search import MAX_LIMIT, search
from agentgym.tables.evaluation import evaluation_json
from agentgym.tables.problems import Problem
from agentgym.tables.reports import report_json, reports_json
from agentgym.tables.run import Run
from agentgym.tables.summary import run_row
from agentgym.view.app import PAGE, View, as_text
from agentgym.view.bundle import Bundle, NotBundled
from agentgym.view.journal import events_json
from agentgym.view.run_page import page_json

MAX_BYTES = 32 * 2**20  # of data
EPISODES = 200  # of a run, whole
_SCRIPT = re.compile(r'<script\b[^>]*\bsrc="page/(?P<path>[^"]+)"[^>]*>\s*</script>')
_STYLE = re.compile(r'<link\b[^>]*\brel="stylesheet"[^>]*\bhref="page/(?P<path>[^"]+)"[^>]*>')
_LINK = re.compile(r'[ \t]*<link\b[^>]*\bhref="page/[^"]+"[^>]*>\n?')


@dataclass(slots=True)
class Export:
    """answers: by what the page would ask. left_out: one line for each thing that the file does not have."""

    view: View
    max_bytes: int = MAX_BYTES
    episodes: int = EPISODES
    answers: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    _size: int = 0

    def write(self, path: Path, page: Path = PAGE) -> int:
        """Returns the size of the file in bytes. Raises UserError where the page is not installed."""
        self._collect()
        data = f"{one_file(page, self._data())}".encode("utf-8", "backslashreplace")
        write_whole(path, data)
        return len(data)

    def _collect(self) -> None:
        runs = self.view.runs()
        if not runs:
            raise UserError("there is no run to export; give a run, or a folder that holds some")
        self._add("/api/runs", lambda: {"runs": [run_row(run) for run in runs]})
        self._add("/api/compare/sides", lambda: sides_json(runs))
        self._add("/api/leaderboard", self.view.leaderboard)
        reports = reports_json(self.view.roots)
        self._add("/api/reports", lambda: reports)
        for one in reports["reports"]:
            self._add(f"/api/reports/{quoted(one['id'])}", partial(report_json, self.view.roots, one["id"]))
        for run in runs:
            self._add_run(run)
        for run in runs:
            self._add_episodes(run)

    def _add_run(self, run: Run) -> None:
        base = f"/api/runs/{quoted(run.location.id)}"
        self._add(base, lambda: page_json(run, can_steer=False))
        self._add(f"{base}/curves", lambda: curves_json(run, [], MAX_POINTS))
        self._add(f"{base}/lanes", lambda: lanes_json(run, 0, 10**9))
        self._add(f"{base}/time", lambda: time_json(run, 400))
        self._add(f"{base}/events?tail=200", lambda: events_json(run, 200))
        for part in run.episodes.read().parts:
            if part.source == "eval":
                try:
                    self._add(f"{base}/evaluations/{part.step}", partial(evaluation_json, run, part.step))
                except Problem as problem:  # its record is missing, or of another version
                    self.left_out.append(f"{run.location.id}: {problem}")

    def _add_episodes(self, run: Run) -> None:
        """The rows of the newest, and as many of them whole as there is room for."""
        base, table = f"/api/runs/{quoted(run.location.id)}/episodes", run.episodes.read()
        asked = [("source", "all"), ("limit", str(MAX_LIMIT)), ("sort", "-step")]
        listed = search(table, asked)
        self._add(f"{base}?source=all&limit={MAX_LIMIT}&sort=-step", lambda: listed)
        kept = 0
        for row in listed["rows"][: self.episodes]:
            make = partial(episode_json, table, row["key"], weights=run.field("rewards", {}), texts=run.texts)
            kept += self._add(f"{base}/{row['key']}", make)
        if kept < len(table):
            self.left_out.append(
                f"{run.location.id}: {len(table) - kept:,} of {len(table):,} episodes"
                + (f", {len(table) - len(listed['rows']):,} of them from the table, too" * (len(table) > MAX_LIMIT))
            )

    def _add(self, path: str, make: Callable[[], Any]) -> bool:
        if self._size > self.max_bytes:
            return False
        text = as_text(make())
        if self._size + len(text) > self.max_bytes:
            self._size = self.max_bytes + 1
            self.left_out.append(
                f"everything after {path}: the file would be larger than {self.max_bytes / 2**20:.0f} MiB"
            )
            return False
        self._size += len(text)
        self.answers[f"GET {path}"] = text
        return True

    def _data(self) -> str:
        about = {
            **self.view.about(),
            "exported": True,
            "at": time.time(),
            "can": {"steer": False, "play": False},
            "roots": [{"key": root.key, "path": ""} for root in self.view.roots.roots],
            "left_out": "; ".join(self.left_out),
        }
        found = {**self.answers, "GET /api": as_text(about)}
        return "{" + ",".join(f"{as_text(key)}:{text}" for key, text in found.items()) + "}"


def one_file(page: Path, data: str) -> str:
    """The page's index.html with its scripts, styles and `data` in it, and a policy that allows exactly these.

    Raises UserError where the page is not installed.
    """
    try:
        text = (page / "index.html").read_text(encoding="utf-8")
        scripts = [Bundle(page).of(match["path"]) for match in _SCRIPT.finditer(text)]
        styles = [(page / match["path"]).read_text(encoding="utf-8") for match in _STYLE.finditer(text)]
    except (OSError, NotBundled) as error:
        raise UserError(f"the page could not be put into one file: {error}") from None
    scripts = [re.sub(r"<(?=/script|!--)", r"\\x3c", one, flags=re.IGNORECASE) for one in scripts]
    allowed = " ".join(map(_hash, scripts)), " ".join(map(_hash, styles))
    policy = (
        f"default-src 'none'; script-src {allowed[0] or none}; style-src {allowed[1] or none}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    script, style = iter(scripts), iter(styles)
    text = _SCRIPT.sub(lambda match: f'<script type="module">{next(script)}</script>', text)
    text = _STYLE.sub(lambda match: f"<style>{next(style)}</style>", text)
    text = _LINK.sub("", text)
    head = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    safe = data.replace("<", "\\u003c")
    held = f'<script type="application/json" id="agentgym-data">{safe}</script>'
    if "<head>" not in text or "</head>" not in text:
        raise UserError("the page could not be put into one file: index.html has no <head>")
    return text.replace("<head>", head, 1).replace("</head>", f"{held}\n</head>", 1)


none = "'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def quoted(name: str) -> str:
    """Quotes as encodeURIComponent does."""
    return quote(name, safe="-_.!~*'()")
