"""One rank of a trainer with LoRA: three steps, then what the test compares, as JSON in a file.

Arguments: model folder, LoRA's rank, work folder, model.quantize. To be started by torchrun.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from tiny_model import draw_samples

from agentgym.families.quantized import Quantize
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.config import LoraConfig, OptimizerConfig, TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.adapters import Base


def main(model_path: str, rank: str, folder: str, quantize: Quantize) -> None:
    trainer = TrainerConfig(
        procs=int(os.environ["WORLD_SIZE"]),
        seq_len=128,
        rows_per_microbatch=1,
        device="cpu",
        lora=LoraConfig(rank=int(rank)),
    )
    setup = TrainerSetup(
        model_path=model_path,
        trainer=trainer,
        optimizer=OptimizerConfig(lr=1e-2),
        loss=Grpo(),
        total_steps=20,
        folder=folder,
        quantize=quantize,
    )
    engine = TrainingEngine(setup)
    engine.load(f"{folder}/start")  # adapters begin at random, and sharded ones elsewhere
    samples = draw_samples(9)
    base = engine.base_logprobs(samples)
    losses = [engine.train_step(samples)["train/loss"] for _ in range(3)]
    engine.save(f"{folder}/checkpoint")
    engine.export_hf(f"{folder}/exported")
    stored: dict[str, torch.Tensor] = {}
    engine.publish(3, lambda weights: stored.update(weights))
    merged = {name: weight.clone() for name, weight in engine.hf_weights()}
    read = dict(Base(Path(model_path)).whole(stored.items(), torch.device("cpu"))) if stored else merged
    logprobs = engine.logprobs(samples)
    engine.train_step(samples)
    engine.load(f"{folder}/checkpoint")
    result = {
        "losses": losses,
        "logprobs": logprobs,
        "restored": engine.logprobs(samples) == logprobs,
        "published": {*read} == {*merged} and all(torch.equal(weight, merged[name]) for name, weight in read.items()),
        "wrote": bool(stored),
        "base_is_base": engine.base_logprobs(samples) == base != logprobs,
    }
    engine.close()
    Path(f"{folder}/rank-{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
