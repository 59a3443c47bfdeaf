"""What a turn costs the controller, with and without rollout workers: processor time, and how late its loop is.

    python benchmarks/rollout_workers.py --workers 0 1 2 --episodes 2000

All episodes at once, of 4 turns each, whose model answers every call after 50 ms; two replicas of it, the workers and
the messages between them are real. Prints a line of JSON for each number of workers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rollout import GROUP, MODEL_S, NUM_TURNS, SAID, watch_lag

from agentgym.actors.runtime import Runtime
from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.generators.config import EngineConfig, GeneratorConfig
from agentgym.generators.service import GeneratorService
from agentgym.hooks import PluginRegistry
from agentgym.models.tiny import policy_path
from agentgym.recipe import build_recipe
from agentgym.rollout.garbage import rare_collections
from agentgym.rollout.playing import GroupOrder, GroupPlayer, Rollouts
from agentgym.run.gym import Gym
from agentgym.run.rollout_worker import WorkerSetup
from agentgym.run.rollout_workers import RolloutWorkers
from agentgym.run.settle import Settled, settle_workers
from agentgym.runs.report import PlainReporter
from agentgym.text.tokenizer import HuggingFaceTokenizer
from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Task, VersionSpan
from agentgym.weights.shared_memory import SharedMemoryStore


def success(episode: Episode) -> float:
    return float(episode.info["turns"] == NUM_TURNS)


class Choices(Environment):
    name, rewards, max_turns = "choices", {"rollout_workers:success": 1.0}, NUM_TURNS

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        for number in itertools.count():
            prompt = ({"role": "user", "content": f"The first or the last, of {number}?"},)
            yield Task(task_id=f"choice/{number}", prompt=prompt, split=split)

    async def reply(self, context: EpisodeContext) -> Reply:
        context.info["turns"] = context.turn
        asked = f"And which of {context.seed} and {context.turn}?"
        return Reply(messages=({"role": "user", "content": asked},), done=context.turn == NUM_TURNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(EngineConfig):
    """Says the same after MODEL_S."""

    def build(self, generator: GeneratorConfig, model_path: str) -> FixedEngine:
        return FixedEngine()


class FixedEngine:
    version = 0

    async def start(self) -> None:
        ids = HuggingFaceTokenizer(str(policy_path())).encode(SAID)
        span = VersionSpan(version=0, start=0, end=len(ids))
        self.said = Completion(
            completion_ids=ids, logprobs=(-0.5,) * len(ids), versions=(span,), finish_reason=FinishReason.STOP
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        await asyncio.sleep(MODEL_S)
        return self.said

    async def update_weights(self, version: int, weights: Iterable[object]) -> None: ...

    def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None: ...


async def measure(workers: int, episodes: int) -> dict[str, float]:
    """Microseconds of the controller's processor time for each turn, and the loop's longest lag in seconds."""
    limits = {"max_episode_tokens": 1024, "episode_time_s": 3600.0, "generate_timeout_s": 3600.0, "workers": workers}
    made = build_recipe({"env": {"name": "rollout_workers:Choices"}, "rollout": limits})
    recipe = settle_workers(replace(made, generator=replace(made.generator, engine=Fixed(), replicas=2)))
    settled = Settled(recipe=recipe, registry=PluginRegistry.discover(), model_path=policy_path())
    with tempfile.TemporaryDirectory() as folder, rare_collections():
        async with Runtime(log_dir=Path(folder)) as runtime:
            store, lags_s = SharedMemoryStore("workers", root=Path(folder)), list[float]()
            generator = GeneratorService(config=recipe.generator, store=store, model_path="", runtime=runtime)
            gym = await Gym.open(settled, PlainReporter(sys.stderr), training=True)
            elsewhere = RolloutWorkers(
                WorkerSetup.of(recipe, policy_path()),
                rollout=recipe.rollout,
                generators=recipe.generator,
                generator=generator,
                runtime=runtime,
                activity=gym.activity,
            )
            rollouts: Rollouts = elsewhere if workers else GroupPlayer(player=gym.player(generator))
            await generator.start()
            if workers:
                await elsewhere.start()
                elsewhere.connect()
            tasks = itertools.islice(gym.environment.tasks("train"), episodes // GROUP)
            orders = [GroupOrder(task=t, group_id=n, version=0, size=GROUP, run_seed=0) for n, t in enumerate(tasks)]
            watching = asyncio.create_task(watch_lag(lags_s, 0.1))  # every 10 ms cost a tenth of the figure
            began_s, used_s = time.monotonic(), time.process_time()
            groups = await asyncio.gather(*map(rollouts.play, orders))
            used_s, wall_s = time.process_time() - used_s, time.monotonic() - began_s
            watching.cancel()
            for close in (elsewhere.close, gym.close, generator.close, store.close):
                await close()
    turns = sum(len(episode.turns) for group in groups for episode in group.episodes)
    assert turns == NUM_TURNS * GROUP * len(orders), turns
    return {"workers": workers, "us": used_s / turns * 1e6, "turns_per_s": turns / wall_s, "lag_s": max(lags_s)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=2000)
    arguments = parser.parse_args()
    from rollout_workers import measure  # the classes by the name that other processes import

    for workers in arguments.workers:
        print(json.dumps(asyncio.run(measure(workers, arguments.episodes))), flush=True)


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.getenv("PYTHONPATH")]))
    main()
