"""A compiled trainer compiles in its first steps, and not again for a batch of another size."""

from __future__ import annotations

import pytest
from tiny_model import draw_samples

from agentgym.trainer.config import LoraConfig
from agentgym.trainer.engine import TrainingEngine


@pytest.mark.slow
@pytest.mark.hostile  # a minute of g++
@pytest.mark.filterwarnings("ignore")  # of torch, which its own compiler raises
def test_batches_of_any_size_are_compiled_once(make_engine) -> None:
    from torch._dynamo.utils import counters

    engine: TrainingEngine = make_engine(compile=True, seq_len=64, rows_per_microbatch=4, logprob_chunk=32)
    graphs = []
    for count in (90, 84, 120, 36, 18, 81, 27, 15, 111, 31):
        engine.train_step(draw_samples(count, seed=count, longest=20))  # several a row, so that none has a plain mask
        graphs.append(counters["stats"]["unique_graphs"])
    assert len({*graphs[2:]}) == 1 and graphs[0] > 0, graphs


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.filterwarnings("ignore")
def test_compiled_passes_that_compute_adapters_again_are_those_that_keep_all(make_engine) -> None:
    samples = draw_samples(12, seed=1, longest=20)
    lora = LoraConfig(rank=3)
    plain = make_engine(lora=lora).train_step(samples)
    step = make_engine(lora=lora, compile=True, activation_checkpoint="selective").train_step(samples)
    assert step["train/loss"] == pytest.approx(plain["train/loss"], abs=1e-5)
    assert step["train/grad_norm"] == pytest.approx(plain["train/grad_norm"], rel=1e-4)
