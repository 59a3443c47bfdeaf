"""One rank of trainers that reduce and gather with each microbatch or once: what the test compares, in a JSON file.

Arguments: model folder, work folder, rank, number of ranks, tensor parallel size.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
import torch.distributed as dist
from tiny_model import draw_samples
from torch.utils._python_dispatch import TorchDispatchMode

from agentgym.errors import UserError
from agentgym.rl.losses import Loss, TokenLoss, TrainedTokens
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.config import LoraConfig, OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.lora import full
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample

KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16", "activation_checkpoint": "full"},
    "lora": {"dtype": "bfloat16", "lora": LoraConfig(rank=4)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite(Loss):
    """Found by all ranks once the gradients of all microbatches are there."""

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        return TokenLoss(loss=tokens.logprobs * torch.nan)


WAYS: dict[str, dict[str, Any]] = {
    "each": {"reduce_gradients": "each", "gather_weights": "each"},
    "last": {"reduce_gradients": "last", "gather_weights": "each"},
    "once": {"reduce_gradients": "each", "gather_weights": "once"},
}


class Collectives(TorchDispatchMode):
    """Counts what FSDP reduces and gathers."""

    reduced, gathered = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reduced += function is torch.ops.c10d._reduce_scatter_base_.default
        self.gathered += function is torch.ops.c10d._allgather_base_.default
        return function(*args, **(kwargs or {}))


@contextmanager
def broken_backward(engine: TrainingEngine, microbatch: int) -> Iterator[None]:
    """The backward pass of this one raises in the lower layer, whose gradients the upper layer's are ahead of."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == microbatch:
            raise RuntimeError("broken on purpose")

    hook = engine._model.layers["0"].attention.register_full_backward_hook(count)  # type: ignore[union-attr,index]
    try:
        yield
    finally:
        hook.remove()


def count_collectives(engine: TrainingEngine, samples: list[Sample]) -> tuple[int, int, int]:
    """Of the gradients of these samples: microbatches, and calls that reduce and gather anything of FSDP's."""
    with Collectives() as collectives:
        engine.forward_backward(samples)
    return num_microbatches(engine, samples), collectives.reduced, collectives.gathered


def num_microbatches(engine: TrainingEngine, samples: list[Sample]) -> int:
    batch = engine._rows.pack(samples)
    return len(engine._rows.parts(batch, batch.loss_mask, {}))


def count_scoring(engine: TrainingEngine, samples: list[Sample]) -> int:
    """Calls that gather, for log-probabilities alone: nothing of an update is left to be used."""
    with Collectives() as collectives:
        engine.logprobs(samples)
    return collectives.gathered


def numbers(weights: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    return {name: weight.detach().flatten().tolist() for name, weight in weights.items()}


def gradients(engine: TrainingEngine) -> dict[str, list[float]]:
    found = {name: full(weight.grad) for name, weight in engine._model.named_parameters() if weight.grad is not None}
    return numbers(found)


def train(setup: TrainerSetup, way: str) -> dict[str, Any]:
    engine = TrainingEngine(replace(setup, trainer=replace(setup.trainer, **WAYS[way])))
    samples = [replace(sample, returns=sample.advantages) for sample in draw_samples(9)]
    engine.clear_gradients()  # before the first pass
    microbatches, reduced, gathered = count_collectives(engine, samples)
    of_first = gradients(engine)
    scoring = count_scoring(engine, samples)
    steps = [engine.optimizer_step()]
    errors = []
    for broken in (1, 2, microbatches):
        try:
            with broken_backward(engine, broken):
                engine.train_step(samples)
        except RuntimeError as error:
            errors.append(str(error))
        steps.append(engine.train_step(samples[broken:]))
    engine._loss = NotFinite()
    try:
        engine.train_step(samples)
    except UserError as error:
        errors.append(str(error))
    engine._loss = setup.loss
    engine.forward_backward(samples[:5])  # in two calls, as by the services
    engine.forward_backward(samples[5:])
    steps.append(engine.optimizer_step())
    weights = numbers({name: weight.float().clone() for name, weight in engine.hf_weights()})
    engine.close()
    return {
        "microbatches": microbatches,
        "reduced": reduced,
        "gathered": gathered,
        "scoring": scoring,
        "gradients": of_first,
        "weights": weights,
        "errors": errors,
        "norms": [step["train/grad_norm"] for step in steps],
        "critic": [step["train/critic_loss"] for step in steps],
    }


def unbroken(setup: TrainerSetup) -> dict[str, list[float]]:
    """The weights after the same steps without what broke between them."""
    engine = TrainingEngine(replace(setup, trainer=replace(setup.trainer, **WAYS["each"])))
    samples = [replace(sample, returns=sample.advantages) for sample in draw_samples(9)]
    for first in (0, 1, 2, num_microbatches(engine, samples)):
        engine.train_step(samples[first:])
    engine.forward_backward(samples[:5])
    engine.forward_backward(samples[5:])
    engine.optimizer_step()
    weights = numbers({name: weight.float().clone() for name, weight in engine.hf_weights()})
    engine.close()
    return weights


def main(model_path: str, folder: str, rank: int, procs: int, tensor_parallel: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=procs)
    found: dict[str, Any] = {}
    for kind, settings in KINDS.items():
        if tensor_parallel > 1 and kind == "lora":
            continue
        trainer = {"seq_len": 64, "rows_per_microbatch": 1, "logprob_chunk": 16, "device": "cpu"} | settings
        setup = TrainerSetup(
            model_path=model_path,
            trainer=TrainerConfig(procs=procs, tensor_parallel=tensor_parallel, **trainer),
            optimizer=OptimizerConfig(lr=1e-2),
            loss=Grpo(),
            total_steps=20,
            folder=folder,
            critic=True,
        )
        found[kind] = {way: train(setup, way) for way in WAYS} | {"unbroken": unbroken(setup)}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
