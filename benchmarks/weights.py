"""What one weight update costs, while requests run: the trainer's push, the generators' load, and their pause.

    python benchmarks/weights.py FOLDER --gpus 1 --replicas 1 --rounds 5
    python benchmarks/weights.py FOLDER --device cpu --rounds 2 --requests 4 --tokens 64
    python benchmarks/weights.py FOLDER_8B --store cuda_ipc --lora-rank 16      8B's adapters on two GPUs
    python benchmarks/weights.py FOLDER_8B --store cuda_ipc --gpus 2 --first 0 --vllm-share 0.17    all weights
    python benchmarks/weights.py FOLDER_8B --store cuda_ipc --gpus 2 --first 1 --replicas 3 --vllm-share 0.17
    python benchmarks/weights.py FOLDER --store cuda_ipc --gpus 2 --first 0 --trainer tensor_parallel=2
    python benchmarks/weights.py FOLDER_OF_EXPERTS --trainer router_replay=rollout --rounds 2

FOLDER: a model with weights or, as benchmarks/random_model.py writes it, without: then they are random, drawn at each
start (its --weights draws them once). --lora-rank: the trainer trains and publishes adapters alone, in a fraction of
the memory. Trainer ranks take the first GPUs, each replica the next one; with --first they begin earlier, at one of
the trainer's, where vLLM takes half of the memory. --vllm-share: another part of it. --trainer: fields of the recipe's
`trainer`. --options: more of vLLM's engine arguments; one that has its `kv_cache_memory_bytes` starts beside the
trainer. --turn: a file that runs share which start on the same GPUs side by side: each warms up, and measures when no
other does. Before each push every trained weight is changed by an optimizer step.
Samples of each replica are compared with the trainer's new weights before and after the update: stale and fresh. The
exit code is 1 where the two can't be told apart. With router_replay=rollout the generators return the experts of each
token, and k3 is exp(x) - 1 - x of x = trainer - sampler, a token, without and with their replay: of samples of the
weights before the update (before_) and of those after it (after_); moved: of the former, by the weights after it.

gb: of a version in the store. push_s: of the trainer. load_s: until the last replica has the weights. cpu_s: of all
processes in both; with --requests 0 of nothing else. paused_s: requests stood still, of the slowest replica.
link_share: the weights' bytes over load_s, of what a plain copy between the two GPUs reaches, for each of the replicas;
not of adapters, which are merged. host_gb: of weights in /dev/shm. Prints one line of JSON a round, then a Markdown
table of the first update and of the others' medians.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import psutil

from agentgym.actors.runtime import Runtime
from agentgym.commands import run_until_stopped
from agentgym.config import apply_overrides, build, to_mapping
from agentgym.generators.actor import Generator
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import AutoEngine, VllmEngineConfig
from agentgym.generators.service import GeneratorService
from agentgym.models.resolve import resolve_model
from agentgym.rl.losses.grpo import Grpo
from agentgym.routes import Routes, joined
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import LoraConfig, OptimizerConfig, TrainerConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import GenerateRequest, Sample, SamplingParams
from agentgym.weights.config import WeightsConfig
from agentgym.weights.select import CudaIpcConfig, NcclConfig, SharedMemoryConfig, TorchStoreConfig

STORES = {
    "shared_memory": SharedMemoryConfig,
    "cuda_ipc": CudaIpcConfig,
    "nccl": NcclConfig,
    "torchstore": TorchStoreConfig,
}


def sample(
    name: str, prompt: tuple[int, ...], tokens: tuple[int, ...], logprobs: tuple[float, ...], routes: Routes | None
) -> Sample:
    """One trained sequence with an advantage of 1."""
    known, new = len(prompt), len(tokens)
    return Sample(
        sample_id=name,
        token_ids=prompt + tokens,
        loss_mask=(0.0,) * known + (1.0,) * new,
        logprobs=(0.0,) * known + logprobs,
        advantages=(0.0,) * known + (1.0,) * new,
        versions=(-1,) * known + (0,) * new,
        routes=joined((routes,), known + new),
    )


def cpu_seconds() -> float:
    """So far, of this process and of all that it has started."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))


def shm_bytes() -> int:
    return shutil.disk_usage("/dev/shm").used


COPY = """
import sys, time, torch
source = torch.empty(2**30, dtype=torch.uint8, device="cuda:0")
target = torch.empty_like(source, device=f"cuda:{sys.argv[1]}")
for _ in range(4):
    torch.cuda.synchronize(0), torch.cuda.synchronize(int(sys.argv[1]))
    begin_s = time.perf_counter()
    target.copy_(source)
    torch.cuda.synchronize(0), torch.cuda.synchronize(int(sys.argv[1]))
    took_s = time.perf_counter() - begin_s
print(source.nbytes / took_s)
"""


def link_bytes_per_s(gpu: int) -> float:
    """The rate of a plain copy from the first GPU to that one, in a process of its own, which leaves both GPUs."""
    return float(
        subprocess.run([sys.executable, "-c", COPY, str(gpu)], capture_output=True, text=True, check=True).stdout
    )


class Sync:
    """A trainer and generators with requests in flight."""

    def __init__(self, trainer: TrainerClient, generator: GeneratorService, arguments: argparse.Namespace) -> None:
        self.trainer = trainer
        self.generator = generator
        self.arguments = arguments

    async def requests(self) -> None:
        """Keeps a constant number of requests running."""

        async def one(index: int) -> None:
            while True:
                sampling = SamplingParams(max_tokens=self.arguments.tokens, temperature=1.0)
                await self.generator.generate(GenerateRequest(prompt_ids=(5 + index, 6, 7), sampling=sampling))

        async with asyncio.TaskGroup() as group:
            for index in range(self.arguments.requests):
                group.create_task(one(index % 50))

    async def round(self, version: int) -> dict[str, float]:
        """One step, one push, one update; returns seconds and the mismatch of fresh samples."""
        drawn = await self._samples(16)
        mismatch = await self._mismatch("before", drawn)
        await self.trainer.train_step(drawn)
        mismatch |= await self._mismatch("moved", drawn)
        stale = await self._distance(await self._samples(4))
        used = shm_bytes()
        paused = await self._paused()
        begin_s, used_s = time.perf_counter(), cpu_seconds()
        await self.trainer.push_weights(version)
        pushed_s = time.perf_counter()
        await self.generator.update_weights(version)
        end_s, cpu_s = time.perf_counter(), cpu_seconds() - used_s
        pauses = [after - before for before, after in zip(paused, await self._paused(), strict=True)]
        return {
            "push_s": pushed_s - begin_s,
            "load_s": end_s - pushed_s,
            "cpu_s": cpu_s,
            "paused_s": max(pauses),
            "host_gb": max(0, shm_bytes() - used) / 1e9,
            "stale": stale,
            "fresh": await self._distance(await self._samples(4)),
            **mismatch,
            **(await self._mismatch("after", await self._samples(16)) if mismatch else {}),
        }

    async def _paused(self) -> list[float]:
        """Seconds so far, by replica."""
        answers = await self.generator._started().fanout(Generator.metrics)
        return [answer.get("generator/paused_s", 0.0) for answer in answers]

    async def _distance(self, samples: list[Sample]) -> float:
        """The largest difference of their log-probabilities from the trainer's."""
        return max(map(abs, await self._differences(samples)))

    async def _differences(self, samples: list[Sample]) -> list[float]:
        """The trainer's log-probabilities of their trained tokens, less the sampler's."""
        scored = await self.trainer.call(TrainerActor.logprobs, samples)
        return [
            ours - theirs
            for one, logprobs in zip(samples, scored, strict=True)
            for theirs, ours, trained in zip(one.logprobs, logprobs, one.loss_mask, strict=True)
            if trained
        ]

    async def _mismatch(self, when: str, samples: list[Sample]) -> dict[str, float]:
        """Nothing of samples without routes."""
        if samples[0].routes is None:
            return {}
        found: dict[str, float] = {}
        for name, given in (("k3", [replace(one, routes=None) for one in samples]), ("k3_replayed", samples)):
            k3 = [math.expm1(x) - x for x in await self._differences(given)]
            found |= {f"{when}_{name}": statistics.fmean(k3), f"{when}_{name}_max": max(k3)}
        return found

    async def _samples(self, count: int) -> list[Sample]:
        """Draws so many samples of each replica."""
        sampling = SamplingParams(max_tokens=64, temperature=1.0)
        prompts = [(5 + index, 6, 7, 8) for index in range(count)]
        requests = [GenerateRequest(prompt_ids=prompt, sampling=sampling) for prompt in prompts]
        answers = await asyncio.gather(*map(self.generator.generate_everywhere, requests))
        return [
            sample(f"fresh-{index}-{replica}", prompt, one.completion_ids, one.logprobs, one.routes)
            for index, (prompt, completions) in enumerate(zip(prompts, answers, strict=True))
            for replica, one in enumerate(completions)
        ]


async def started(name: str, start: Awaitable[None]) -> None:
    begin_s = time.perf_counter()
    await start
    print(f"{name} started after {time.perf_counter() - begin_s:.1f} s", file=sys.stderr, flush=True)


async def turn(file: IO[str]) -> None:
    """Waits for the lock, and ends when it is cancelled: a thread that waits would keep the process."""
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(0.2)


async def measure(arguments: argparse.Namespace, folder: Path, rows: list[dict[str, float]]) -> None:
    """Adds a row for each update when it is done."""
    gpu = arguments.device == "cuda"
    dtype = "bfloat16" if gpu else "float32"
    model_path = str(resolve_model(str(arguments.folder), folder, random_weights=arguments.random))
    first = arguments.gpus if arguments.first is None else arguments.first
    shared = first < arguments.gpus
    share = arguments.vllm_share or (0.5 if shared else 0.7)
    routes = "router_replay=rollout" in arguments.trainer
    vllm = VllmEngineConfig(gpu_memory_utilization=share, enforce_eager=arguments.eager, options=arguments.options)
    config = GeneratorConfig(
        engine=vllm if gpu else AutoEngine(),
        replicas=arguments.replicas,
        max_batch=arguments.requests + 16,  # the samples that are compared don't wait for the requests
        max_model_len=512,
        dtype=dtype,
        device=arguments.device,
        gpus=tuple(range(first, first + arguments.replicas)) if gpu else (),
        start_timeout_s=550.0,
        routes=routes,
    )
    settings = TrainerConfig(
        procs=arguments.gpus,
        seq_len=512,
        dtype=dtype,
        device=arguments.device,
        gpus=tuple(range(arguments.gpus)) if gpu else (),
        activation_checkpoint="selective" if gpu else "none",
        lora=LoraConfig(rank=arguments.lora_rank),
    )
    setup = TrainerSetup(
        model_path=model_path,
        trainer=build(TrainerConfig, apply_overrides(to_mapping(settings), arguments.trainer), where="--trainer"),
        # stale weights are to be told from new ones, and adapters move the merged weights less
        optimizer=OptimizerConfig(lr=1e-2 if arguments.lora_rank else 1e-3, warmup_steps=0),
        loss=Grpo(),
        total_steps=1000,
        folder=str(folder / "trainer"),
        publish_dtype=config.dtype,
    )
    async with Runtime(log_dir=folder / "logs") as runtime:
        turns = ExitStack()
        weights = WeightsConfig(store=STORES[arguments.store]())
        store = await weights.open("weight-sync", runtime=runtime)
        trainer = TrainerClient(setup, store=store, runtime=runtime)
        peers = setup.trainer.gpus if weights.store.gpu_peers else ()
        generator = GeneratorService(
            config=config, store=store, model_path=model_path, runtime=runtime, peer_gpus=peers
        )
        try:
            starts = [("generators", generator.start()), ("trainer", trainer.start())]
            if shared and "kv_cache_memory_bytes" not in arguments.options:
                for start in starts:  # vLLM counts what is free of the GPU, and the trainer takes what it leaves
                    await started(*start)
            else:
                await asyncio.gather(*(started(*start) for start in starts))
            link = await asyncio.to_thread(link_bytes_per_s, first or arguments.gpus - 1) if gpu else 0.0
            sync = Sync(trainer, generator, arguments)
            if arguments.turn:
                await trainer.train_step(await sync._samples(16))
                await started("its turn", turn(turns.enter_context(arguments.turn.open("w"))))
            running = asyncio.create_task(sync.requests())
            try:
                for version in range(1, arguments.rounds + 1):
                    row = await sync.round(version)
                    if version == 1:  # all are as large
                        got: Any = await store.get(version)  # TorchStore's has the tensors alone
                        size = sum(tensor.nbytes for _, tensor in (got.entries() if hasattr(got, "entries") else got))
                    if link and not arguments.lora_rank:
                        row["link_share"] = size / row["load_s"] / link
                    rows.append({"gb": size / 1e9} | row)
                    print(json.dumps(rows[-1]), flush=True)
            finally:
                running.cancel()
                await asyncio.wait([running])
                turns.close()
        finally:
            await generator.close()
            await trainer.close()
            await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpus", type=int, default=1, help="of the trainer")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--first", type=int, metavar="GPU", help="of the replicas; default: after the trainer's")
    parser.add_argument("--vllm-share", type=float, metavar="SHARE", help="of the GPU's memory, for each replica")
    parser.add_argument("--store", choices=sorted(STORES), default="shared_memory")
    parser.add_argument("--eager", action="store_true", help="vLLM without CUDA graphs: it starts sooner")
    parser.add_argument("--lora-rank", type=int, default=0, help="of the trainer's adapters; 0 trains all weights")
    parser.add_argument("--trainer", nargs="+", default=[], metavar="KEY=VALUE", help="fields of the trainer")
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="vLLM's engine arguments")
    parser.add_argument("--turn", type=Path, metavar="FILE", help="locked while it measures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64, help="in flight")
    parser.add_argument("--tokens", type=int, default=400, help="of each completion")
    arguments = parser.parse_args()
    arguments.random = not any(arguments.folder.glob("*.safetensors"))
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_until_stopped(measure(arguments, Path(folder), rows), lambda line: print(line, file=sys.stderr))
        finally:
            table(rows)
    if any(row["stale"] < 3 * row["fresh"] for row in rows):
        sys.exit("samples of the old weights are as near to the trainer as those of the new ones")


def table(rows: list[dict[str, float]]) -> None:
    if not rows:
        return
    print(f"\n| update | {' | '.join(rows[0])} |\n|---|{' --: |' * len(rows[0])}")
    medians = {key: statistics.median(row[key] for row in rows[1:] or rows) for key in rows[0]}
    for name, row in (("first", rows[0]), ("later", medians)):
        print(f"| {name} | {' | '.join(f'{value:.3g}' for value in row.values())} |")


if __name__ == "__main__":
    main()
