"""One rank of sharded trainers, one after the other: of each three steps, then what the test compares, as JSON.

Argument: JSON, of each trainer its model folder, work folder, tensor, context and expert parallel sizes and the port
where its ranks meet. RANK, WORLD_SIZE and MASTER_ADDR as torchrun sets them.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_model import draw_samples

from agentgym.errors import InfraError, UserError
from agentgym.rl.losses import Loss, TokenLoss, TrainedTokens
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer import saving
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.mismatch_config import EngineLimits, MismatchConfig
from agentgym.trainer.parts import PutParts, own_parts
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.store import Part
from tests.trainer.gated_writer import Gate

KEPT = ("loss", "grad_norm", "entropy", "clip_share", "kl_ref", "mismatch_max")
OF_MISMATCH = ("stale_kl", "stale_max", "staleness_kl", "fresh_share", "engine_age_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Loss):
    """For one sample, which one rank has; on that rank the loss even lacks a gradient."""

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        broken = bool((tokens.sample_index == 3).any())
        return TokenLoss(loss=tokens.advantages if broken else -tokens.logprobs)


def train(
    model_path: str,
    folder: str,
    *,
    procs: int = 1,
    tensor_parallel: int = 1,
    context_parallel: int = 1,
    expert_parallel: int = 1,
) -> dict[str, Any]:
    setup = TrainerSetup(
        model_path=model_path,
        trainer=TrainerConfig(
            procs=procs,
            tensor_parallel=tensor_parallel,
            context_parallel=context_parallel,
            expert_parallel=expert_parallel,
            seq_len=128,
            rows_per_microbatch=1,
            logprob_chunk=16,
            device="cpu",
            mismatch=MismatchConfig(engine=EngineLimits(correct=0.5, stop=1e3)),
        ),
        optimizer=OptimizerConfig(lr=1e-2),
        loss=Grpo(kl_coef=0.1, aggregation="sequence_mean"),
        total_steps=20,
        folder=folder,
    )
    engine = TrainingEngine(setup)
    samples = draw_samples(9)
    steps = [engine.train_step(samples) for _ in range(3)]
    engine.save(f"{folder}/checkpoint")
    engine.export_hf(f"{folder}/exported")
    logprobs = engine.logprobs(samples)
    engine.begin_save(f"{folder}/background", f"{folder}/background-hf")
    engine.train_step(samples)
    engine.saver.finish()
    failed = failed_save(engine, folder) if procs > 1 else ""
    unpublished = failed_publication(engine) if procs > 1 else ""
    engine.load(f"{folder}/checkpoint")
    double = {name: 2 * weight for name, weight in engine.hf_weights()}
    engine.follow(double.items(), 0.5)
    followed = [weight.sum() / double[name].sum() for name, weight in engine.hf_weights()]
    engine._loss = Broken()
    try:
        engine.train_step(samples)
        fault = ""
    except UserError as error:
        fault = str(error)
    engine._loss, engine.version = setup.loss, 1
    one = samples[3]  # of one rank
    far = replace(
        one,
        logprobs=tuple(-40.0 if m else 0.0 for m in one.loss_mask),
        versions=tuple(1 if m else -1 for m in one.loss_mask),
    )
    try:
        engine.train_step([*samples[:3], far, *samples[4:]])
        stopped = ""
    except InfraError as error:
        stopped = str(error)
    engine.load(f"{folder}/checkpoint")
    names = [*(f"train/{name}" for name in KEPT), *(f"mismatch/{name}" for name in OF_MISMATCH)]
    result = {
        "stopped": stopped,
        "failed": failed,
        "unpublished": unpublished,
        "parts": procs == 1 or parts_are_the_weights(engine),
        "followed": torch.stack(followed).tolist(),
        "fault": fault,
        "steps": [{name: step[name] for name in names} for step in steps],
        "weighed": [step.get("mismatch/weight_mean", 0.0) for step in steps],
        "logprobs": logprobs,
        "restored": engine.logprobs(samples) == logprobs and engine.step == 3,
        "weights": {name: float(weight.double().abs().sum()) for name, weight in engine.hf_weights()},
    }
    engine.close()
    return result


def parts_are_the_weights(engine: TrainingEngine) -> bool:
    """Whether the parts of all ranks, put together, are the gathered weights to the bit."""
    whole = dict(engine.hf_weights(torch.bfloat16))
    found = {name: torch.full_like(weight, torch.nan) for name, weight in whole.items()}
    own = list(own_parts(engine._model, engine._built.adapter, torch.bfloat16))
    for part in chain.from_iterable(engine._ranks.gathered([part for part in own if part.values is not None])):
        block = tuple(slice(begin, begin + size) for begin, size in zip(part.begin, part.values.shape, strict=True))
        found[part.name][block] = part.values
    return sorted(part.name for part in own if part.index == 0) == sorted(whole) and all(
        torch.equal(found[name], weight) for name, weight in whole.items()
    )


def failed_save(engine: TrainingEngine, folder: str) -> str:
    """What a rank raises where the disk of the second was full; the step after it goes on."""
    gate, writer = Gate(), saving.FileSystemWriter
    saving.FileSystemWriter, gate.full = gate.writer(), os.environ["RANK"] == "1"
    engine.begin_save(f"{folder}/failed", f"{folder}/failed-hf")
    engine.train_step(draw_samples(3))
    gate.open.set()
    try:
        engine.saver.finish()
    except (InfraError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        saving.FileSystemWriter = writer
    return ""


def failed_publication(engine: TrainingEngine) -> str:
    """What a rank raises where the second could not store its parts."""

    def put(parts: Iterator[Part]) -> list[str]:
        if os.environ["RANK"] == "1":
            raise OSError("the store is gone")
        return [part.name for part in parts]

    committed: list[list[str]] = []
    try:
        engine.publish(7, lambda weights: None, PutParts(put=put, commit=committed.append))
    except (InfraError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return f"nothing, and {len(committed)} versions were committed"


def main(trainers: str) -> None:
    found = []
    for model_path, folder, *sizes, port in json.loads(trainers):
        os.environ["MASTER_PORT"] = str(port)
        procs = int(os.environ["WORLD_SIZE"])
        names = ("tensor_parallel", "context_parallel", "expert_parallel")
        found.append(train(model_path, folder, procs=procs, **dict(zip(names, sizes, strict=True))))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
