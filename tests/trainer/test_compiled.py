"""A compiled trainer compiles in its first steps, and not again for a batch of another size."""

from __future__ import annotations

import pytest
from tiny_model import draw_samples

from agentgym.trainer.engine import TitanEngine


@pytest.mark.slow
@pytest.mark.hostile  # a minute of g++
@pytest.mark.filterwarnings("ignore")  # of torch, which its own compiler raises
def test_batches_of_any_size_are_compiled_once(make_engine) -> None:
    from torch._dynamo.utils import counters

    engine: TitanEngine = make_engine(compile=True, seq_len=64, rows_per_microbatch=4, logprob_chunk=32)
    graphs = []
    for count in (90, 84, 120, 36, 18, 81, 27, 15, 111, 31):
        engine.train_step(draw_samples(count, seed=count, longest=20))  # several a row, so that none has a plain mask
        graphs.append(counters["stats"]["unique_graphs"])
    assert len({*graphs[2:]}) == 1 and graphs[0] > 0, graphs
