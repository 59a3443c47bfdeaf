"""Draws the live view of a run, as it was after one of its steps, into docs/live.svg.

agentgym train --env code_exec --name code_exec
python benchmarks/live_view_svg.py runs/code_exec --step 42
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

from rich.console import Console

from agentgym.cli.live import LiveReporter
from agentgym.runs.folder import RunFolder

OUT = Path(__file__).parent.parent / "docs" / "live.svg"
WIDTH = 118


def draw(folder: RunFolder, last_step: int, width: int = WIDTH) -> str:
    """The SVG of the view after `last_step`, with the times that the run's own metrics have."""
    rows = [row for row in folder.read_metrics() if row.step <= last_step]
    total = int(folder.load_config()["loop"]["steps"])
    now_s = rows[0].time - rows[0].metrics.get("time/step_s", 0.0)
    view = LiveReporter(folder.name, io.StringIO(), width=width, clock=lambda: now_s)
    try:
        view.phase(f"training {total} steps")
        for row in rows:
            now_s = row.time
            view.step(row.step, total, row.metrics)
        console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True)
        console.print(view.render())
    finally:
        view.close()
    return console.export_svg(title="agentgym train --env code_exec", unique_id="live")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument("--step", type=int, default=10**9, help="default: the last")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    svg = draw(RunFolder.open(arguments.run), arguments.step)
    arguments.out.write_text(re.sub(r" +$", "", svg, flags=re.MULTILINE))
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
