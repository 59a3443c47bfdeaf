"""How soon the view answers from 10,000 episodes, and what an open page costs a run.

    python benchmarks/view.py answers
    python benchmarks/view.py run --steps 124

`answers` writes a folder of 80 steps of 128 episodes of 300 tokens with what a run writes with, starts `agentgym view`
in a process of its own, and asks it what the page asks first; each figure is the first answer of a fresh process, and
the median of the next ones. `run` trains the tiny policy twice, alternating ten times between a page that polls
everything once a second and none, in the same run: steps per second of both, with the interval of the difference.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

from agentgym.runs.episode_index import index_path
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.types import Episode, FinishReason, Group, Outcome, Stop, Task, Turn, VersionSpan

STEPS, GROUPS, SIZE, TOKENS = 80, 16, 8, 300
REPEATS = 10
POLL_S = 1.0


def episode(step: int, group: int, index: int, numbers: random.Random) -> Episode:
    prompt = tuple(numbers.randrange(600) for _ in range(60))
    completion = tuple(numbers.randrange(600) for _ in range(TOKENS))
    turn = Turn(
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=tuple(-numbers.random() for _ in completion),
        versions=(VersionSpan(version=step - 1, start=0, end=TOKENS),),
        finish_reason=FinishReason.STOP,
    )
    success = numbers.random() < 0.5
    text = " ".join(f"word{number}" for number in completion)
    task = Task(task_id=f"task-{group}", prompt=({"role": "user", "content": f"question {group}"},), answer=group)
    return Episode(
        episode_id=f"g{group:06d}-e{index:02d}",
        task=task,
        seed=index,
        messages=[*task.prompt, {"role": "assistant", "content": text}],
        turns=[turn],
        info={"success": success},
        stop=Stop.DONE,
        rewards={"success": float(success)},
        reward=float(success),
        outcome=Outcome.SCORED,
        timing_s={"episode_s": 1.0},
    )


def write_run(runs: Path) -> Path:
    numbers = random.Random(0)
    with RunFolder.create(runs, "big") as folder:
        folder.save_config({"env": {"name": "made"}, "loop": {"steps": STEPS, "max_staleness": 1}})
        for step in range(1, STEPS + 1):
            groups = []
            for number in range((step - 1) * GROUPS, step * GROUPS):
                episodes = [episode(step, number, index, numbers) for index in range(SIZE)]
                advantages = [numbers.uniform(-1, 1) for _ in episodes]
                groups.append(
                    Group(
                        group_id=number,
                        task=episodes[0].task,
                        start_version=step - 1,
                        episodes=episodes,
                        advantages=[*advantages],
                    )
                )
            folder.append_metrics(step, {f"area/metric_{i}": numbers.random() for i in range(80)})
            folder.save_groups(step, groups)
        folder.set_status(RunStatus.DONE)
    return folder.path


class View:
    """`agentgym view` of a folder, in a process of its own."""

    def __init__(self, runs: Path, cache: Path) -> None:
        words = [sys.executable, "-m", "agentgym.cli.main", "view", str(runs), "--no-browser", "--port", "0"]
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": str(cache)}
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().rsplit(":", 1)[1].strip("/\n"))

    def get(self, path: str) -> tuple[float, bytes]:
        """Seconds, and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - began
        connection.close()
        assert answer.status == 200, body[:500]
        return took, body

    @property
    def memory_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def pages(run: str) -> list[str]:
    base = f"/api/runs/{quote(run, safe='')}"
    return [
        "/api/runs",
        base,
        f"{base}/curves",
        f"{base}/lanes",
        f"{base}/episodes?limit=50&sort=-step",
        f"{base}/episodes?success=false&sort=-reward,tokens&limit=50",
        f"{base}/episodes/train-40-77",
    ]


def answers() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        path = write_run(Path(place) / "runs")
        size = sum(one.stat().st_size for one in path.rglob("*") if one.is_file()) / 2**20
        indexes = sum(one.stat().st_size for one in path.rglob("*.index.json")) / 2**20
        found: dict[str, object] = {
            "episodes": STEPS * GROUPS * SIZE,
            "folder_mib": round(size, 1),
            "indexes_mib": round(indexes, 1),
        }
        for name in ("indexed", "not indexed"):
            if name == "not indexed":
                for one in (path / "episodes").glob("*.gz"):
                    index_path(one).unlink()
            found[name] = ask_all(path.parent, Path(place) / f"cache-{name}")
        return found


def ask_all(runs: Path, cache: Path) -> dict[str, object]:
    view = View(runs, cache)
    try:
        rows: dict[str, object] = {}
        for path in pages("runs:big"):
            first = view.get(path)[0]
            later = statistics.median(view.get(path)[0] for _ in range(REPEATS))
            rows[path.removeprefix("/api/runs")] = {
                "first_ms": round(1000 * first, 1),
                "then_ms": round(1000 * later, 1),
            }
        return {"answers": rows, "memory_mib": round(view.memory_mib, 1)}
    finally:
        view.close()


class Poller(threading.Thread):
    """A page that is open: everything once a second, as long as `on` is set."""

    def __init__(self, view: View, run: str) -> None:
        super().__init__(daemon=True)
        self.on, self.ended, self.polls = threading.Event(), threading.Event(), 0
        self._view, self._run = view, run

    def run(self) -> None:
        while not self.ended.is_set():
            if self.on.is_set():
                for path in pages(self._run)[:5]:
                    self._view.get(path)
                self.polls += 1
            time.sleep(POLL_S)


def with_and_without(steps: int, every: int) -> dict[str, object]:
    """One run; a page is open in every second stretch of `every` steps."""
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place) / "runs"
        words = ["train", "--env", "code_exec", "--runs-dir", str(runs), "--name", "run", "--plain"]
        words += ["--loop.steps", str(steps), "--eval.at_end", "false", "--loop.check_sync_every", "0"]
        words += ["--loop.groups_per_step", "8", "--logging.sinks", "[]", "--loop.checkpoint_every", "0"]
        with (Path(place) / "log").open("w") as log:
            run = subprocess.Popen([sys.executable, "-m", "agentgym.cli.main", *words], stdout=log, stderr=log)
        while not (runs / "run" / "status.json").is_file():
            assert run.poll() is None, (Path(place) / "log").read_text()
            time.sleep(0.1)
        view = View(runs, Path(place) / "cache")
        poller = Poller(view, "runs:run")
        poller.start()
        folder = RunFolder(runs / "run", None)
        while run.poll() is None:
            done = len(folder.read_metrics())
            (poller.on.set if (done // every) % 2 else poller.on.clear)()
            time.sleep(0.05)
        poller.ended.set()
        poller.join()
        view.close()
        assert run.returncode == 0, (Path(place) / "log").read_text()
        rows = folder.read_metrics()
    times = [row.metrics["time/step_s"] for row in rows]
    stretches = [times[at : at + every] for at in range(every, len(times) - every + 1, every)]  # the first warms up
    means = [statistics.fmean(one) for one in stretches]
    pairs = [math.log(means[i] / means[i + 1]) for i in range(0, len(means) - 1, 2)]  # open against closed after it
    error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan
    return {
        "steps": len(times),
        "polls": poller.polls,
        "open_step_s": round(statistics.fmean(means[0::2]), 3),
        "closed_step_s": round(statistics.fmean(means[1::2]), 3),
        "slower_by": round(math.exp(statistics.fmean(pairs)) - 1, 3),
        "standard_error": round(error, 3),
        "pairs": len(pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("answers", "run"))
    parser.add_argument("--steps", type=int, default=44, help="of the run (default 44)")
    parser.add_argument("--every", type=int, default=4, help="steps with the page open, and then closed (default 4)")
    arguments = parser.parse_args()
    found = answers() if arguments.what == "answers" else with_and_without(arguments.steps, arguments.every)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
