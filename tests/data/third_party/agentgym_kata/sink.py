"""A sink: a page in Markdown, with the best episode of each group that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentgym import Json, MetricSink
from agentgym.sinks import conversation
from agentgym.types import Group


class Report(MetricSink):
    """Writes `report.md` in the run's folder."""

    def __init__(self) -> None:
        self._page = Path()

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        self._page = Path(run_dir) / "report.md"
        self._add(f"# {Path(run_dir).name}\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._add("".join(f"- step {step}: {name} {value}\n" for name, value in metrics.items()))

    def log_group(self, step: int, group: Group) -> None:
        best = max(group.episodes, key=lambda episode: episode.reward or 0.0)
        quoted = "".join(f"    {line}\n" for line in conversation(best).splitlines())
        self._add(f"\n## Step {step}, {best.task.task_id}: {best.reward}\n\n{quoted}\n")

    def close(self) -> None:
        """Nothing is open between two steps."""

    def _add(self, text: str) -> None:
        with self._page.open("a", encoding="utf-8") as page:
            page.write(text)
