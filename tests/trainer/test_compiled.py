"""A compiled trainer compiles in its first step, and not again for a batch of another size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tiny_model import draw_samples
from torch.nn.attention.flex_attention import create_block_mask

from agentgym.trainer import head, titan
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.dynamic import of_any_length
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.warm_up import warm_up


@pytest.mark.slow
@pytest.mark.hostile  # a minute of g++
@pytest.mark.filterwarnings("ignore")  # of torch, which its own compiler raises
def test_batches_of_any_size_are_compiled_once(make_engine) -> None:
    engine: TrainingEngine = make_engine(compile=True, seq_len=64, rows_per_microbatch=4, logprob_chunk=32)
    _check_graphs(engine)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["titan", "transformers"])
@pytest.mark.parametrize("rank", [0, 3])
def test_sharded_layers_are_compiled_once_for_any_rows(make_engine, eagerly: None, engine: str, rank: int) -> None:
    """FSDP, which a trainer in bfloat16 has, gives a layer other tensors than it was called with."""
    lora, settings = LoraConfig(rank=rank), {"dtype": "bfloat16", "compile": True, "engine": engine}
    _check_graphs(make_engine(lora=lora, seq_len=64, rows_per_microbatch=4, logprob_chunk=32, **settings))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{}, {"epochs": 2, "rows_per_microbatch": 1}])
def test_a_warm_trainer_compiles_nothing_more_and_steps_as_one_that_is_cold(
    make_engine, eagerly: None, settings: dict[str, int]
) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    given = {"compile": True, "seq_len": 64, "rows_per_microbatch": 4, "logprob_chunk": 32} | settings
    warm, cold = make_engine(with_critic=True, **given), make_engine(with_critic=True, **given)
    warm_up(warm, warm._setup)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    for seed in (1, 2):
        samples = draw_samples(36, seed=seed, longest=20)
        of_both = [one.train_step(samples) for one in (warm, cold)]
        assert counters["stats"]["unique_graphs"] == graphs
        stepped, alike = ({k: v for k, v in one.items() if "/time/" not in k} for one in of_both)
        assert stepped == alike
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(warm.hf_weights(), cold.hf_weights(), strict=True))


def _check_graphs(engine: TrainingEngine) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    graphs = []
    for count in (90, 84, 120, 36, 18, 81, 27, 15, 111, 31):
        engine.train_step(draw_samples(count, seed=count, longest=20))  # several a row, so that none has a plain mask
        graphs.append(counters["stats"]["unique_graphs"])
    assert len({*graphs}) == 1 and graphs[0] > 0, graphs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_mask_of_blocks_is_compiled_once_for_any_rows(eagerly: None) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    for rows in (5, 4, 7, 2):
        allowed = _same_document(torch.arange(256).div(50 + rows, rounding_mode="floor").expand(rows, -1).clone())
        mask = titan.create_attention_mask(allowed, rows, None, 256, 256, device="cpu")
        wanted = create_block_mask(allowed, rows, None, 256, 256, device="cpu")
        assert torch.equal(mask.to_dense(), wanted.to_dense()) and len(mask.kv_indices) == rows
    assert counters["stats"]["unique_graphs"] == 1


def _same_document(document_RL: torch.Tensor) -> Callable[..., Any]:
    return lambda row, _, query, key: document_RL[row, query] == document_RL[row, key]


@pytest.fixture
def eagerly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What would be compiled is only traced, which takes seconds less, and decides how often."""
    compiled = torch.compile

    def traced(function: Any, **options: Any) -> Any:
        return compiled(function, **options | {"backend": "eager"})

    monkeypatch.setattr(torch, "compile", traced)
    monkeypatch.setattr(titan, "_compile", traced)
    head.compiled_passes.cache_clear()
    torch._dynamo.reset()
    yield
    head.compiled_passes.cache_clear()


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
