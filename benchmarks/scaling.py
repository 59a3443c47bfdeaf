"""Replicas that follow a load that changes, beside a fixed number of them; and what the order of turns saves.

python benchmarks/scaling.py replicas    # a load of three phases: 1 replica, 4 replicas, 1 to 4
python benchmarks/scaling.py turns       # more conversations than the native engine's cache holds
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from paced_engine import Paced  # noqa: E402

from agentgym.generators.config import GeneratorConfig  # noqa: E402
from agentgym.generators.places import Line  # noqa: E402
from agentgym.models.resolve import resolve_model  # noqa: E402
from agentgym.types import GenerateRequest, SamplingParams  # noqa: E402

PHASES = (("quiet", 4, 10.0), ("busy", 32, 90.0), ("quiet again", 4, 40.0))  # callers at a time, seconds
TOKENS = 50


async def load(name: str, config: GeneratorConfig, folder: Path) -> None:
    """The three phases against one service: what the callers got, and what it cost."""
    from agentgym.actors.runtime import Runtime
    from agentgym.generators.service import GeneratorService
    from agentgym.weights.shared_memory import SharedMemoryStore

    store = SharedMemoryStore("scaling", root=folder)
    async with Runtime(log_dir=folder / "logs") as runtime:
        service = GeneratorService(config=config, store=store, model_path="", runtime=runtime)
        await service.start()
        for phase, callers, seconds in PHASES:
            waits_s: list[float] = []
            replicas: list[float] = []
            until_s = time.monotonic() + seconds

            async def call(waits_s: list[float] = waits_s, until_s: float = until_s) -> None:
                while (began_s := time.monotonic()) < until_s:
                    await service.generate(GenerateRequest(prompt_ids=(1,), sampling=SamplingParams(max_tokens=TOKENS)))
                    waits_s.append(time.monotonic() - began_s)

            async def watch(replicas: list[float] = replicas, until_s: float = until_s) -> None:
                while time.monotonic() < until_s:
                    replicas.append(service.get_metrics()["generator/replicas_up"])
                    await asyncio.sleep(0.5)

            await asyncio.gather(watch(), *(call() for _ in range(callers)))
            rate, up = len(waits_s) * TOKENS / seconds, statistics.fmean(replicas)
            print(
                f"| {name} | {phase} | {up:.1f} | {rate:,.0f} | {statistics.median(waits_s):.2f} "
                f"| {np.percentile(waits_s, 95):.2f} |",
                flush=True,
            )
        await service.close()
        await store.close()


async def replicas() -> None:
    base = GeneratorConfig(engine=Paced(), replicas=1, max_batch=8, device="cpu", grow_after_s=2.0, shrink_after_s=15.0)
    print("| replicas | phase | up (mean) | tokens/s | wait p50, s | p95 |\n|---|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        await load("1", base, Path(folder))
        await load("4", replace(base, replicas=4), Path(folder))
        await load("1 to 4", replace(base, max_replicas=4), Path(folder))


class InOrder(Line[Any]):
    """As if nobody said what continues."""

    def put(self, ticket: int, item: Any, *, continues: bool) -> None:
        super().put(ticket, item, continues=False)


def turns(conversations: int, num_turns: int, max_batch: int) -> None:
    from agentgym.generators.native.engine import NativeEngine

    with tempfile.TemporaryDirectory() as folder:
        path = resolve_model("builtin:tiny", Path(folder), random_weights=False)
        for name in ("as they came", "next turns first"):
            torch.set_num_threads(1)
            engine = NativeEngine(GeneratorConfig(max_batch=max_batch, device="cpu"), str(path))
            scheduler = engine._load()
            if name == "as they came":
                scheduler._waiting = InOrder()
            draw = random.Random(0)
            said = {number: [draw.randrange(200) for _ in range(150)] for number in range(conversations)}
            left = dict.fromkeys(said, num_turns)

            def asked(number: int, said: dict[int, list[int]] = said, left: dict[int, int] = left) -> GenerateRequest:
                sampling = SamplingParams(max_tokens=30, seed=number)
                continues = left[number] < num_turns
                return GenerateRequest(prompt_ids=tuple(said[number]), sampling=sampling, continues=continues)

            for number in said:
                scheduler.submit(number, asked(number))
            began_s = time.process_time()
            with torch.inference_mode():
                while not scheduler.idle:
                    for number, completion in scheduler.step():
                        said[number] += [*completion.completion_ids, *(draw.randrange(200) for _ in range(30))]
                        left[number] -= 1
                        if left[number]:
                            scheduler.submit(number, asked(number))
            spent_s, totals = time.process_time() - began_s, scheduler.totals
            print(
                f"| {name} | {totals.computed_tokens:,} | {scheduler._table.evicted:,} | {totals.prefill_s:.1f} "
                f"| {totals.tokens / spent_s:,.0f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("replicas", "turns"))
    what = parser.parse_args().what
    if what == "replicas":
        asyncio.run(replicas())
    else:
        print("| order | context tokens computed | thrown away | prefill, s | tokens/s |\n|---|--:|--:|--:|--:|")
        turns(conversations=96, num_turns=6, max_batch=8)


if __name__ == "__main__":
    main()
