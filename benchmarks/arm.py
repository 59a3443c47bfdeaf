"""One arm of an experiment: a whole training run in this process, and its figures as JSON on the last line.

    python benchmarks/arm.py --name seed0 --set loop.seed=0
    python benchmarks/arm.py --name coin --random-reward
    python benchmarks/arm.py --name slow --delay-ms 200 --set loop.max_staleness=2
    python benchmarks/arm.py --name stale --lag 16 --set loop.max_staleness=0

`--random-reward` pays a coin toss instead of the environment's rewards; `--delay-ms` makes every sandbox call
take that much longer: both are plugins of this file alone. `--lag` keeps the generators that many updates behind
the trainer until the last step; the comparison of the two is off, because they differ on purpose.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from agentgym import Episode, Reward, hookimpl
from agentgym.config import apply_overrides, to_mapping
from agentgym.hooks import PluginRegistry
from agentgym.loops.async_rl import TrainingLoop
from agentgym.rollout.generator import Generator
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import read_recipe_files
from agentgym.run.train import TrainResult, train
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.report import PlainReporter
from agentgym.sandbox import GradeRequest, SandboxOptions, Verdict
from agentgym.types import Completion, GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingGenerator:
    """Loads the weights of `lag` versions before each one that is published. The store must keep lag + 1 versions."""

    generator: Generator
    lag: int

    @property
    def version(self) -> int:
        return self.generator.version

    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.generator.generate(request)

    async def update_weights(self, version: int) -> None:
        await self.generator.update_weights(max(0, version - self.lag))


def lag_behind(loop: TrainingLoop, lag: int) -> None:
    """Make the generators of a loop that has not run yet lag, and its bound allow it."""
    loop.generator = LaggingGenerator(generator=loop.generator, lag=lag)
    loop.staleness_bound = loop.config.max_staleness + lag


def coin(episode: Episode) -> float:
    """A fair coin that only the episode's number decides."""
    return float(hashlib.blake2b(f"coin/{episode.episode_id}".encode()).digest()[0] & 1)


class BenchmarkPlugin:
    """Things that no user should find in a list."""

    def __init__(self, registry: PluginRegistry, delay_s: float) -> None:
        self._registry = registry
        self._delay_s = delay_s

    @hookimpl
    def rewards(self) -> dict[str, Reward]:
        return {"coin": Reward(name="coin", function=coin, inline=True)}

    @hookimpl
    def sandboxes(self) -> dict[str, object]:
        return {"delayed": self._delayed}

    def _delayed(self, options: SandboxOptions) -> object:
        inner = self._registry.sandbox("monty")({})
        delay_s = self._delay_s
        grade = inner.grade

        async def slower(request: GradeRequest) -> Verdict:
            await asyncio.sleep(delay_s)
            return await grade(request)

        inner.grade = slower  # type: ignore[method-assign]
        return inner


class PeakMemory:
    """Samples the memory of this process and its children: proportional set sizes, in MiB."""

    def __init__(self) -> None:
        self.peak_mib = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        me = psutil.Process()
        while True:
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_mib = max(self.peak_mib, total / 2**20)
            time.sleep(2.0)


def figures(arm: str, result: TrainResult, folder: RunFolder, wall_s: float, peak_mib: float) -> dict[str, object]:
    """What a table needs, from the result and the run's own metrics."""
    rows = folder.read_metrics()

    def total(key: str) -> float:
        return sum(row.metrics.get(key, 0.0) for row in rows)

    steps_s = total("time/step_s")
    return {
        "arm": arm,
        "first": result.first.success if result.first else None,
        "last": result.last.success if result.last else None,
        "rise": result.difference.mean if result.difference else None,
        "rise_low": result.difference.low if result.difference else None,
        "rise_high": result.difference.high if result.difference else None,
        "steps": result.steps,
        "training_s": steps_s,
        "wall_s": wall_s,
        "peak_mib": peak_mib,
        "signal": total("loop/groups") / max(1.0, total("loop/groups") + total("loop/skipped_groups")),
        "compute_share": total("time/compute_share") / max(1, len(rows)),
        "time": {kind: total(f"time/{kind}_s") / steps_s for kind in ("generate", "sandbox", "train", "publish")},
        "staleness_max": max((row.metrics["loop/staleness_max"] for row in rows), default=0),
        "staleness_mean": total("loop/staleness_mean") / max(1, len(rows)),
        "rewards": [row.metrics["rollout/reward_mean"] for row in rows],
        "successes": [row.metrics["rollout/success_mean"] for row in rows],
        "run": str(folder.path),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--recipe", help="a YAML recipe; the embedded defaults otherwise")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs-dir", default="runs/benchmarks")
    parser.add_argument("--random-reward", action="store_true")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--lag", type=int, default=0)
    arguments = parser.parse_args()

    overrides = list(arguments.set)
    if arguments.random_reward:
        overrides.append("rewards={coin: 1.0}")
    registry = PluginRegistry.discover()
    if arguments.delay_ms:
        overrides.append("sandbox.name=delayed")
    registry.register(BenchmarkPlugin(registry, arguments.delay_ms / 1000), "benchmark")
    if arguments.lag:
        overrides += [f"weights.keep={arguments.lag + 2}", "loop.check_sync_every=0"]
    read, _ = read_recipe_files([Path(arguments.recipe)]) if arguments.recipe else ({}, "")
    given = apply_overrides(read, overrides)
    recipe, sources = finish_recipe(given)
    name = f"{arguments.name}-{time.strftime('%H%M%S')}"
    Path(arguments.runs_dir).mkdir(parents=True, exist_ok=True)
    memory, began = PeakMemory(), time.monotonic()
    with RunFolder.create(arguments.runs_dir, name) as folder:
        folder.save_config(to_mapping(recipe), sources)
        reporter, lag = PlainReporter(sys.stderr), partial(lag_behind, lag=arguments.lag)
        result = asyncio.run(train(recipe, folder, reporter, registry=registry, change_loop=lag))
        folder.set_status(RunStatus.DONE)
        wall_s = time.monotonic() - began
        print(json.dumps(figures(arguments.name, result, folder, wall_s, memory.peak_mib)))


if __name__ == "__main__":
    main()
