"""Results of `agentgym envs check --json` and `agentgym sandbox verify --json` that lie in the folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym.tables.problems import Problem
from agentgym.tables.roots import Root, Roots, inside

MAX_BYTES = 8 * 2**20
MAX_FILES = 500
CHECK, VERIFY = "envs check", "sandbox verify"
CHECK_HEADER = ("probe", "episodes", "reward", "success", "finding", "what was said")
VERIFY_HEADER = ("trial", "category", "outcome", "what it tries", "what happened")


def reports_json(roots: Roots) -> dict[str, Any]:
    """`/api/reports`, the newest first."""
    found = [_head(name, path, record) for name, path, record in _reports(roots)]
    return {"reports": sorted(found, key=lambda one: -one["time"])}


def report_json(roots: Roots, wanted: str) -> dict[str, Any]:
    """`/api/reports/{id}`. Raises Problem."""
    known = []
    for name, path, record in _reports(roots):
        known.append(name)
        if name == wanted:
            rest = _of_check(record) if _kind(record) == CHECK else _of_verify(record)
            return {**_head(name, path, record), "raw": record, **rest}
    raise Problem.unknown("report", wanted, known)


def _reports(roots: Roots) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    for root in roots.roots:
        for name, path in _candidates(root):
            try:
                if path.stat().st_size > MAX_BYTES:
                    continue
                record = json.loads(path.read_bytes())
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(record, dict) and _kind(record):
                yield f"{root.key}:{name}", path, record


def _candidates(root: Root) -> list[tuple[str, Path]]:
    """JSON files of the folder and of its folders that are no runs."""
    if root.only:
        return []
    folders = [root.path, *(one for one in sorted(root.path.iterdir()) if _is_plain_folder(root.path, one))]
    found = []
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            if inside(folder, path.name) is not None:
                found.append((str(path.relative_to(root.path)), path))
    return found[:MAX_FILES]


def _is_plain_folder(root: Path, path: Path) -> bool:
    return inside(root, path.name) is not None and path.is_dir() and not (path / "status.json").exists()


def _kind(record: Mapping[str, Any]) -> str:
    if {"environment", "probes", "findings", "clean"} <= record.keys() and isinstance(record["findings"], list):
        return CHECK
    return VERIFY if {"holds", "counts", "capabilities", "findings", "trials"} <= record.keys() else ""


def _head(name: str, path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    kind = _kind(record)
    head = {"id": name, "kind": kind, "time": path.stat().st_mtime}
    if kind == CHECK:
        findings = record["findings"]
        return {
            **head,
            "title": f"{record['environment']} version {record.get('version')}",
            "findings": len(findings),
            "ok": not findings,
        }
    able, counts = record["capabilities"], record["counts"]
    bad = sum(counts.get(name, 0) for name in ("escaped", "broken")) if isinstance(counts, Mapping) else 0
    backend = able.get("backend", "?") if isinstance(able, Mapping) else "?"
    return {**head, "title": f"sandbox {backend}", "findings": bad, "ok": record["holds"] is True}


def _of_check(record: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [one.get("probe"), one.get("episodes"), one.get("reward"), one.get("success"), one.get("finding"),
         f"{one.get('what', '')} ({one['variant']})" if one.get("variant") else one.get("what", "")]
        for one in record["probes"]
        if isinstance(one, Mapping)
    ]  # fmt: skip
    return {
        "findings": [one for one in record["findings"] if isinstance(one, Mapping)],
        "header": CHECK_HEADER,
        "rows": rows,
        "notes": record.get("notes", []),
    }


def _of_verify(record: Mapping[str, Any]) -> dict[str, Any]:
    found = [one for one in record["trials"] if isinstance(one, Mapping)]
    return {
        "findings": [one for one in record["findings"] if isinstance(one, Mapping)],
        "header": VERIFY_HEADER,
        "rows": [[one.get(key) for key in ("name", "category", "outcome", "tries", "detail")] for one in found],
        "notes": [],
    }
