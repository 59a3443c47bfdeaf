"""A compiled trainer compiles in its first step, and not again for a batch of another size."""

from __future__ import annotations

import pytest
import torch
from tiny_model import draw_samples
from torch.nn.attention.flex_attention import create_block_mask

from agentgym.trainer.config import LoraConfig
from agentgym.trainer.dynamic import of_any_length
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
    assert len({*graphs}) == 1 and graphs[0] > 0, graphs


def test_all_of_a_block_mask_that_has_rows_is_of_any_number_of_rows() -> None:
    document_RL, order_L = torch.zeros(3, 128, dtype=torch.long), torch.arange(128)

    def allowed(row: torch.Tensor, _: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (document_RL[row, query] == document_RL[row, key]) & (order_L[key] <= order_L[query])

    mask = create_block_mask(allowed, 3, None, 128, 128, device="cpu")
    of_any_length(3, mask)
    marked = [getattr(one, "_dynamo_weak_dynamic_indices", set()) for one in (document_RL, mask.kv_indices, order_L)]
    assert marked == [{0}, {0}, set()]


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
