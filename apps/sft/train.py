"""Makes the policy that ships with the package: tokenizer, random weights, SFT on the mix, export, measure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.components import component
from agentgym.rl.losses import Loss
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample
from apps.sft.measure import MeasureConfig
from apps.sft.mix import MixConfig
from apps.sft.policy import ShapeConfig, TokenizerConfig, write_start
from apps.sft.stream import StreamConfig, chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecipe:
    """The defaults make the policy that ships with the package.

    workers: processes that make demonstrations; 0 is the trainer's own, -1 all cores but two.
    """

    out: str = "policy"
    steps: int = 4000
    conversations_per_step: int = 64
    seed: int = 0
    workers: int = -1
    shape: ShapeConfig = ShapeConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    mix: MixConfig = field(default_factory=MixConfig)
    optimizer: OptimizerConfig = OptimizerConfig(lr=3e-3, warmup_steps=50, decay_ratio=0.9)
    loss: Loss = component("losses", "cross_entropy")
    trainer: TrainerConfig = TrainerConfig(device="cpu", threads=2, seq_len=1024, rows_per_microbatch=8)
    measure: MeasureConfig = field(default_factory=MeasureConfig)


def run(recipe: PolicyRecipe, say: Callable[[str], None]) -> Path:
    """Writes a Hugging Face folder, `policy` in `recipe.out`, and returns it. The same recipe gives the same policy."""
    from agentgym.trainer.engine import TrainingEngine

    out = Path(recipe.out)
    start = out / "start"
    say(f"training a tokenizer of {recipe.shape.vocab_size} tokens")
    write_start(start, recipe.shape, recipe.tokenizer, recipe.mix, recipe.seed)
    setup = TrainerSetup(
        model_path=str(start),
        trainer=recipe.trainer,
        optimizer=recipe.optimizer,
        loss=recipe.loss,
        total_steps=recipe.steps,
        folder=str(out / "trainer"),
    )
    stream = StreamConfig(mix=recipe.mix, seed=recipe.seed, tokenizer=str(start), seq_len=recipe.trainer.seq_len)
    made = chunks(stream, recipe.workers if recipe.workers >= 0 else max(0, (os.cpu_count() or 1) - 2))
    with closing(made):
        engine = TrainingEngine(setup)
        began = time.monotonic()
        for step, samples in enumerate(_batches(made, recipe.conversations_per_step), start=1):
            metrics = engine.train_step(samples)
            passed = time.monotonic() - began
            if step in (1, 2, 5, 10) or step % 25 == 0 or step == recipe.steps:
                left = passed / step * (recipe.steps - step)
                figures = f"loss {metrics['train/loss']:.4f}  tokens {metrics['train/tokens']:.0f}"
                say(f"step {step}/{recipe.steps}  {figures}  {passed:.0f} s, {left:.0f} s left")
            if step == recipe.steps:
                break
        engine.export_hf(str(out / "policy"))
        engine.close()
    return out / "policy"


def _batches(made: Iterator[list[object]], size: int) -> Iterator[list[Sample]]:
    samples: list[Sample] = []
    for chunk in made:
        samples += [one.sample() for one in chunk]
        while len(samples) >= size:
            yield samples[:size]
            samples = samples[size:]
