"""How long the view takes to its first picture from a folder with many episodes, and how much memory its server needs.

The time is the browser's own: from the start of the navigation until the run's sentence and its curves are drawn.

python benchmarks/view_first.py --episodes 10000 --repeats 7
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from playwright.sync_api import Browser, sync_playwright

from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.types import Episode, FinishReason, Group, Outcome, Stop, Task, Turn, VersionSpan

GROUP, GROUPS = 8, 25  # episodes of a group, groups of a step
TOKENS = 60
MARK = "agentgym:first-view"


def write_run(runs_dir: Path, num_episodes: int) -> Path:
    """A run whose episodes have two turns of 30 tokens, as many as asked for."""
    folder = RunFolder.create(runs_dir, "many")
    loop = {"steps": num_episodes // (GROUP * GROUPS), "max_staleness": 1}
    folder.save_config({"model": {"path": "builtin:tiny"}, "env": {"name": "math"}, "loop": loop})
    source = random.Random(0)
    for step in range(1, loop["steps"] + 1):
        groups = [_group(step * GROUPS + number, step - 1, source) for number in range(GROUPS)]
        folder.save_groups(step, groups)
        success = statistics.fmean(episode.success for group in groups for episode in group.episodes)
        metrics = {"rollout/success_mean": success, "rollout/reward_mean": success, "rollout/episodes": 200.0}
        folder.append_metrics(step, {**metrics, "train/loss": source.random(), "time/step_s": 5.0, "time/train_s": 2.0})
    folder.set_status(RunStatus.DONE)
    folder.close()
    return folder.path


def _group(number: int, version: int, source: random.Random) -> Group:
    task = Task(task_id=f"count-{number}", prompt=({"role": "user", "content": f"What follows {number}?"},))
    episodes = [_episode(task, index, version, source) for index in range(GROUP)]
    advantages: list[float | None] = [float(episode.success) - 0.5 for episode in episodes]
    return Group(group_id=number, task=task, start_version=version, episodes=episodes, advantages=advantages)


def _episode(task: Task, index: int, version: int, source: random.Random) -> Episode:
    ids = tuple(source.randrange(1000) for _ in range(TOKENS))
    success = source.random() < 0.3 + 0.01 * version
    turn = Turn(
        prompt_ids=ids[:20],
        completion_ids=ids,
        logprobs=tuple(-source.expovariate(2.0) for _ in ids),
        versions=(VersionSpan(version=version, start=0, end=TOKENS),),
        finish_reason=FinishReason.STOP,
    )
    return Episode(
        episode_id=f"{task.task_id}-{index}",
        task=task,
        seed=index,
        messages=[*task.prompt, {"role": "assistant", "content": "the number " * 8}],
        turns=[turn],
        info={"success": success},
        stop=Stop.DONE,
        rewards={"success": float(success)},
        reward=float(success),
        outcome=Outcome.SCORED,
    )


@contextmanager
def viewing(folder: Path, cache: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The address and the process of `agentgym view`."""
    command = [sys.executable, "-m", "agentgym.cli.main", "view", str(folder), "--no-browser", "--port", "0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = next(line.strip() for line in process.stdout if line.startswith("http"))
        try:
            yield address, psutil.Process(process.pid)
        finally:
            process.terminate()


def first_view_ms(browser: Browser, address: str) -> float:
    """In a context without a cache of its own."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector(".curve canvas")  # made in the same task as the mark, or just before it
        marked = f"""new Promise(done => new PerformanceObserver(list => {{
            const found = list.getEntriesByName('{MARK}');
            if (found.length) done(found[0].startTime);
        }}).observe({{type: 'mark', buffered: true}}))"""
        return float(page.evaluate(marked))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        run = write_run(Path(place) / "runs", given.episodes)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with viewing(run.parent, Path(place) / "cache") as (address, server):
            print(f"{given.episodes:,} episodes; load of the machine {os.getloadavg()[0]:.1f}")
            print(f"first request of the server's life: {first_view_ms(browser, address):.0f} ms")
            times = [first_view_ms(browser, address) for _ in range(given.repeats)]
            print(f"then: median {statistics.median(times):.0f} ms, least {min(times):.0f}, most {max(times):.0f}")
            print(f"the server's memory: {server.memory_info().rss / 2**20:.0f} MiB")
        browser.close()


if __name__ == "__main__":
    main()
