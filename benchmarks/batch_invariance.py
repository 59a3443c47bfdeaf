"""What `generator.batch_invariant` gives and costs: equal bits whatever else is in the batch, tokens a second, and how
far the trainer is away.

    python benchmarks/batch_invariance.py FOLDER
    python benchmarks/batch_invariance.py FOLDER --device cpu --engine native --requests 8 --tokens 24 --watched 4

FOLDER: a model with weights (benchmarks/qwen3_folder.py --weights draws random ones). The arms `off` and `on` are two
processes, since vLLM reads the switch when it is imported. Each plays --requests seeded requests at once, of prompts of
8 to 127 tokens, in --rounds rounds after one that does not count; then the first --watched of the last round again,
each alone, and compares both completions: tokens, and log-probabilities to the last bit, up to the first other token.
Then the trainer, compiled with --compile, scores the watched ones: the share of tokens whose log-probability is the
sampler's to the last bit, the mean and the largest distance. Prints JSON when an arm ends, --out keeps it; then a
Markdown table.
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
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from finished_arms import Figures, FinishedArms, run_job, run_or_fail, stoppable

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import NativeEngineConfig, VllmEngineConfig
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.types import Completion, GenerateRequest, Sample, SamplingParams

ARMS = ("off", "on")
LONGEST_PROMPT = 128


def requests_of(arguments: argparse.Namespace, number: int) -> list[GenerateRequest]:
    numbers = random.Random(number)
    return [
        GenerateRequest(
            prompt_ids=tuple(numbers.randrange(5, 500) for _ in range(numbers.randrange(8, LONGEST_PROMPT))),
            sampling=SamplingParams(max_tokens=arguments.tokens, seed=index),
        )
        for index in range(arguments.requests)
    ]


async def sample(arguments: argparse.Namespace, config: GeneratorConfig) -> tuple[Figures, list[Sample]]:
    """The rates, what was equal alone and among others, and the watched completions for the trainer."""
    engine = config.engine.build(config, str(arguments.folder))
    await engine.start()
    rates = []
    try:
        for number in range(arguments.rounds + 1):
            requests = requests_of(arguments, number)
            begin_s = time.perf_counter()
            among = await asyncio.gather(*map(engine.generate, requests))
            tokens = sum(len(one.completion_ids) for one in among)
            rates.append(tokens / (time.perf_counter() - begin_s))
        watched = list(zip(requests, among, strict=True))[: arguments.watched]
        alone = [await engine.generate(request) for request, _ in watched]
    finally:
        await engine.close()
    pairs = [compared(one, other) for (_, one), other in zip(watched, alone, strict=True)]
    figures = {
        "tokens_per_s": rates[1:],
        "same_tokens": sum(same for same, _, _ in pairs),
        "same_bits": sum(bits for _, bits, _ in pairs),
        "farthest_alone": max(distance for _, _, distance in pairs),
    }
    return figures, [trained(str(index), request, one) for index, (request, one) in enumerate(watched)]


def compared(among: Completion, alone: Completion) -> tuple[bool, bool, float]:
    """Whether all tokens are the same, whether all bits are, and the largest distance before the first other token."""
    pairs = zip(among.completion_ids, alone.completion_ids, strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    distances = [abs(a - b) for a, b in zip(among.logprobs[:shared], alone.logprobs[:shared], strict=True)]
    same = among.completion_ids == alone.completion_ids
    return same, same and among.logprobs == alone.logprobs, max(distances, default=0.0)


def trained(name: str, request: GenerateRequest, completion: Completion) -> Sample:
    prompt, reply = tuple(request.prompt_ids), tuple(completion.completion_ids)
    zeros = (0.0,) * len(prompt)
    return Sample(
        sample_id=name,
        token_ids=prompt + reply,
        loss_mask=zeros + (1.0,) * len(reply),
        logprobs=zeros + tuple(completion.logprobs),
        advantages=zeros + (1.0,) * len(reply),
        versions=(-1,) * len(prompt) + (0,) * len(reply),
    )


def score(arguments: argparse.Namespace, dtype: str, samples: Sequence[Sample], folder: Path) -> Figures:
    """How far the trainer's log-probabilities of the sampled tokens are from the sampler's."""
    from agentgym.trainer.engine import TitanEngine
    from agentgym.trainer.setup import TrainerSetup

    trainer = TrainerConfig(
        device=arguments.device,
        dtype=dtype,
        seq_len=LONGEST_PROMPT + arguments.tokens,
        compile=arguments.compile,
        **({"attention": arguments.attention} if arguments.attention else {}),
    )
    setup = TrainerSetup(
        model_path=str(arguments.folder),
        trainer=trainer,
        optimizer=OptimizerConfig(),
        loss=Grpo(),
        total_steps=1,
        folder=str(folder),
    )
    engine = TitanEngine(setup)
    try:
        found = engine.logprobs(samples)
    finally:
        engine.close()
    distances = [
        abs(a - b)
        for sample, logprobs in zip(samples, found, strict=True)
        for a, b, sampled in zip(sample.logprobs, logprobs, sample.loss_mask, strict=True)
        if sampled
    ]
    return {
        "trainer_same_bits": sum(distance == 0.0 for distance in distances) / len(distances),
        "trainer_mean": statistics.fmean(distances),
        "trainer_farthest": max(distances),
    }


def arm(arguments: argparse.Namespace, name: str) -> Figures:
    dtype = "bfloat16" if arguments.device == "cuda" else "float32"
    engine = {"vllm": VllmEngineConfig(gpu_memory_utilization=0.5), "native": NativeEngineConfig()}[arguments.engine]
    config = GeneratorConfig(
        engine=engine,
        replicas=1,
        max_batch=arguments.requests,
        max_model_len=LONGEST_PROMPT + arguments.tokens,
        dtype=dtype,
        device=arguments.device,
        gpus=(0,) if arguments.device == "cuda" else (),
        batch_invariant=name == "on",
        start_timeout_s=550.0,
    )
    figures, samples = run_job(sample(arguments, config))
    with tempfile.TemporaryDirectory() as folder:
        return figures | score(arguments, dtype, samples, Path(folder))


def table(arguments: argparse.Namespace, found: dict[str, Figures]) -> None:
    print(f"\n{arguments.requests} requests of {arguments.tokens} tokens, {arguments.watched} of them again alone\n")
    print("| batch_invariant | tokens/s | by the first | alone the same tokens | the same bits | farthest, nats "
          "| trainer: the same bits | mean, nats | farthest, nats |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    first = statistics.median(next(iter(found.values()))["tokens_per_s"]) if found else 0.0
    for name, one in found.items():
        rate = statistics.median(one["tokens_per_s"])
        print(f"| {name} | {rate:,.0f} | {rate / first:.3f} | {one['same_tokens']} | {one['same_bits']} | "
              f"{one['farthest_alone']:.2g} | {one['trainer_same_bits']:.1%} | {one['trainer_mean']:.2g} | "
              f"{one['trainer_farthest']:.2g} |")  # fmt: skip


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--engine", choices=("vllm", "native"), default="vllm")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="of each completion")
    parser.add_argument("--watched", type=int, default=16, help="requests that are played alone too")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--attention", help="trainer.attention; default: the device's own")
    parser.add_argument("--compile", action="store_true", help="trainer.compile")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines: arms that it has are not repeated")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not 0 < arguments.watched <= arguments.requests:
        parser.error(f"--watched {arguments.watched}: give 1 to {arguments.requests}, the requests of a round")
    return arguments


def main() -> int:
    arguments = parsed()
    if arguments.arm:
        print(json.dumps(arm(arguments, arguments.arm)))
        return 0
    settings = {name: value for name, value in vars(arguments).items() if name not in ("arms", "arm", "out")}
    arms = FinishedArms(arguments.out, settings)
    with stoppable(), tempfile.TemporaryDirectory() as folder:
        try:
            for name in arguments.arms:
                with arms.arm(name) as figures:
                    if not figures:
                        said = Path(folder) / f"{name}.txt"
                        run_or_fail([sys.executable, __file__, *sys.argv[1:], "--arm", name], said)
                        figures |= json.loads(said.read_text().splitlines()[-1])
        finally:
            table(arguments, arms.found)
    return int(bool(arms.failed))


if __name__ == "__main__":
    sys.exit(main())
