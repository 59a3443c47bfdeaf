"""Tokens a second through the generator service, beside our engine alone and vLLM alone, on the same requests.

    python benchmarks/generation.py FOLDER --requests 512 --prompt 128 --tokens 1024
    python benchmarks/generation.py FOLDER --device cpu --requests 16 --prompt 32 --tokens 64 --rounds 1
    python benchmarks/generation.py FOLDER --requests 2048 --places 128 --loads tailed
    python benchmarks/generation.py FOLDER --arms engine --requests 512 --places 128 --loads tailed turns
    python benchmarks/generation.py FOLDER --arms engine --engine transformers --device cpu --requests 32 --tokens 64
    python benchmarks/generation.py FOLDER --options '{"compilation_config": {"cudagraph_mode": "PIECEWISE"}}'

FOLDER: a model with weights or, as benchmarks/random_model.py writes it, without: then they are random, drawn at each
start of the script (its --weights draws them once). Each arm starts vLLM once, with the same settings, and
plays two loads: `equal`, every completion of --tokens, and `tailed`, lengths drawn from a log-normal distribution whose
longest are --tokens; --loads picks one, or `turns`: conversations of six turns, whose lengths are drawn in the same way
with a sixth of --tokens as the longest, and a next turn comes as soon as the one before has ended. --places: sequences
at a time, all requests where it is left out; with many more requests than places the tailed load has new ones join a
full batch all the time, as they do in a run. --options: more of vLLM's engine arguments, for all arms. All requests of
a round are sent at once, ask for log-probabilities in the same form, and have prompts that no other round has, so each
round prefills; a whole round before the others is not counted. --rounds takes one number, or one for each load. The
arms: `vllm` is its asynchronous engine alone, `engine` ours around it, `service` the replicas of a run. Prints a line
of JSON when a load of an arm ends, then a Markdown table of medians of --rounds, of the arms that ended where it was
stopped. --engine: of the arms `engine` and `service`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentgym.commands import run_until_stopped
from agentgym.generators.config import EngineConfig, GeneratorConfig
from agentgym.generators.select import NativeEngineConfig, TransformersEngineConfig, VllmEngineConfig
from agentgym.models.resolve import resolve_model
from agentgym.types import GenerateRequest, SamplingParams

Generate = Callable[[GenerateRequest], Awaitable[Sequence[int]]]
"""Samples one completion."""
LOADS = ("equal", "tailed", "turns")
TURNS = 6  # of a conversation
ANSWER = 32  # tokens of what comes between two turns: a tool's result, for example


def conversations_of(arguments: argparse.Namespace, load: str, number: int) -> list[list[GenerateRequest]]:
    """The turns of a round's conversations; all but the first without the context before them. Lengths and the
    sampler's seeds are the same in every round, prompts are not.
    """
    lengths, numbers = random.Random(0), random.Random(f"{load} {number}")
    turns, longest = (TURNS, arguments.tokens // TURNS) if load == "turns" else (1, arguments.tokens)

    def turn(place: int, index: int) -> GenerateRequest:
        share = 1.0 if load == "equal" else min(1.0, lengths.lognormvariate(-2.0, 1.0))
        prompt = tuple(numbers.randrange(5, 500) for _ in range(ANSWER if place else arguments.prompt))
        sampling = SamplingParams(max_tokens=max(1, round(share * longest)), temperature=1.0, seed=index)
        return GenerateRequest(prompt_ids=prompt, sampling=sampling, continues=place > 0)

    return [[turn(place, index) for place in range(turns)] for index in range(arguments.requests)]


async def converse(generate: Generate, turns: Sequence[GenerateRequest]) -> int:
    """Tokens that were sampled."""
    context: tuple[int, ...] = ()
    sampled = 0
    for turn in turns:
        context += turn.prompt_ids
        completion = await generate(replace(turn, prompt_ids=context))
        context += tuple(completion)
        sampled += len(completion)
    return sampled


async def rates(arm: str, generate: Generate, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens a second of each round, by load, after a first one that does not count."""
    found: dict[str, list[float]] = {load: [] for load in arguments.loads}
    for load, rounds in zip(arguments.loads, arguments.rounds * len(LOADS), strict=False):
        for number in range(rounds + 1):
            conversations = conversations_of(arguments, load, number)
            begin_s = time.perf_counter()
            tokens = sum(await asyncio.gather(*(converse(generate, turns) for turns in conversations)))
            if number:
                found[load].append(tokens / (time.perf_counter() - begin_s))
        print(json.dumps({"arm": arm, "load": load, "tokens_per_s": found[load]}), flush=True)
    return found


def raw_sampling(request: GenerateRequest) -> Any:
    """vLLM's parameters, with log-probabilities in the form that costs it least, which our engine asks for too."""
    from vllm import SamplingParams as VllmSamplingParams
    from vllm.sampling_params import RequestOutputKind

    return VllmSamplingParams(
        max_tokens=request.sampling.max_tokens,
        temperature=request.sampling.temperature,
        seed=request.sampling.seed,
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


async def raw(config: GeneratorConfig, model: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """vLLM's own asynchronous engine, called as its documentation does."""
    from vllm.v1.engine.async_llm import AsyncLLM

    from agentgym.generators.vllm.settings import engine_arguments, set_environment, wants_gpu

    set_environment(config)
    options = {"gpu_memory_utilization": arguments.gpu_memory_utilization} | arguments.options
    llm = AsyncLLM.from_engine_args(engine_arguments(config, Path(model), gpu=wants_gpu(config), **options))

    async def generate(request: GenerateRequest) -> Sequence[int]:
        sampling = raw_sampling(request)
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        name = f"{id(request)}-{time.perf_counter_ns()}"
        async for result in llm.generate(prompt, sampling, name):
            final = result
        return final.outputs[0].token_ids  # type: ignore[no-any-return]

    try:
        return await rates("vllm", generate, arguments)
    finally:
        await asyncio.to_thread(llm.shutdown, 10.0)


async def engine(config: GeneratorConfig, model: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    built = config.engine.build(config, model)
    await built.start()

    async def generate(request: GenerateRequest) -> Sequence[int]:
        return (await built.generate(request)).completion_ids

    try:
        return await rates("engine", generate, arguments)
    finally:
        await built.close()


async def service(config: GeneratorConfig, model: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    from agentgym.actors.runtime import Runtime
    from agentgym.generators.service import GeneratorService
    from agentgym.weights.config import WeightsConfig

    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(log_dir=Path(folder) / "logs") as runtime:
            store = await WeightsConfig().open("generation-rate", runtime=runtime)
            replicas = GeneratorService(config=config, store=store, model_path=model, runtime=runtime)

            async def generate(request: GenerateRequest) -> Sequence[int]:
                return (await replicas.generate(request)).completion_ids

            try:
                await replicas.start()
                return await rates("service", generate, arguments)
            finally:
                await replicas.close()
                await store.close()


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    if arguments.engine == "vllm":
        return VllmEngineConfig(gpu_memory_utilization=arguments.gpu_memory_utilization, options=arguments.options)
    return NativeEngineConfig() if arguments.engine == "native" else TransformersEngineConfig()


ARMS = {"vllm": raw, "engine": engine, "service": service}


def report(found: dict[str, dict[str, list[float]]], loads: Sequence[str]) -> None:
    medians = {arm: {load: statistics.median(by_load[load]) for load in loads} for arm, by_load in found.items()}
    if not medians:
        return
    first = next(iter(medians.values()))
    print("\n| arm | " + " | ".join(f"{load}, tokens/s | against the first" for load in loads) + " |")
    print("|---|" + "--:|--:|" * len(loads))
    for arm, by_load in medians.items():
        cells = [f"{by_load[load]:,.0f} | {by_load[load] / first[load]:.3f}" for load in loads]
        print(f"| {arm} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["vllm", "engine", "service"])
    parser.add_argument("--engine", choices=("vllm", "native", "transformers"), default="vllm")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=["equal", "tailed"])
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest completion")
    parser.add_argument(
        "--rounds", type=int, nargs="+", default=[3], metavar="N", help="that count: of all loads, or each"
    )
    parser.add_argument("--places", type=int, help="sequences at a time; all requests where it is left out")
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="of vLLM's engine")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.6)
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    random_weights = not any(arguments.folder.glob("*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        model = str(resolve_model(str(arguments.folder), Path(folder), random_weights=random_weights))
        config = GeneratorConfig(
            engine=engine_config(arguments),
            replicas=1,
            max_batch=arguments.places or arguments.requests,
            max_model_len=arguments.prompt + arguments.tokens + (TURNS - 1) * ANSWER * ("turns" in arguments.loads),
            dtype="bfloat16" if arguments.device == "cuda" else "float32",
            device=arguments.device,
            gpus=(0,) if arguments.device == "cuda" else (),
            start_timeout_s=550.0,
        )
        try:
            for arm in arguments.arms:
                job = ARMS[arm](config, model, arguments)
                found[arm] = run_until_stopped(job, lambda line: print(line, file=sys.stderr))
        finally:
            report(found, arguments.loads)


if __name__ == "__main__":
    main()
