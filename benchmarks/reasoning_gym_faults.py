"""Checks every generator of reasoning-gym with `agentgym envs check`, one process each, and lists the findings."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RAW = str(Path(__file__).with_name("reasoning_gym_raw.py")) + ":Raw"


def checked(name: str, tasks: int, timeout_s: float) -> dict[str, Any]:
    """The report of one generator; `failed` says why there is none."""
    words = ["envs", "check", RAW, "--env.options.dataset", name, "--tasks", str(tasks), "--json"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "agentgym.cli.main", *words], capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "failed": f"no report within {timeout_s:g} s"}
    _, begins, rest = done.stdout.rpartition('{"environment"')  # some generators print
    if done.returncode not in (0, 1) or not begins:
        return {"name": name, "failed": (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]}
    return {"name": name, **json.loads(begins + rest)}


def table(reports: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row for each kind of finding of a generator, with the first place where it was found."""
    rows = ["| generator | finding | where | what |", "|---|---|---|---|"]
    for report in sorted(reports, key=lambda one: one["name"]):
        if failed := report.get("failed"):
            rows.append(f"| `{report['name']}` | no report | | {_cell(failed)} |")
        kinds: dict[str, list[dict[str, str]]] = {}
        for found in report.get("findings", ()):
            kinds.setdefault(found["kind"], []).append(found)
        for kind, found in kinds.items():
            where = ", ".join(one["where"] for one in found)
            rows.append(f"| `{report['name']}` | {kind} | {_cell(where)} | {_cell(found[0]['message'])} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("`", "'").split())[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--timeout-s", type=float, default=90.0)
    parser.add_argument("--out", type=Path, default=Path("reasoning_gym_faults.jsonl"))
    arguments = parser.parse_args()
    import reasoning_gym  # noqa: F401  registers its generators
    from reasoning_gym.factory import DATASETS

    names = arguments.only.split(",") if arguments.only else sorted(DATASETS)
    known = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    reports = {one["name"]: one for one in known}
    for number, name in enumerate(names, start=1):
        if name not in reports:
            print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
            reports[name] = checked(name, arguments.tasks, arguments.timeout_s)
            with arguments.out.open("a") as file:
                file.write(json.dumps(reports[name]) + "\n")
    clean = sum(not report.get("failed") and not report["findings"] for report in reports.values())
    version = importlib.metadata.version("reasoning-gym")
    print(
        f"reasoning-gym {version}: {len(reports)} generators, {clean} without a finding\n\n{table([*reports.values()])}"
    )


if __name__ == "__main__":
    main()
