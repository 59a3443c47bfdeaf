"""LoRA in one process and over two by FSDP2 must be the same trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_model import write_model

from agentgym.families.quantized import Quantize
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

WORKER = Path(__file__).with_name("lora_worker.py")


@pytest.mark.hostile
@pytest.mark.parametrize(("family", "quantize"), [("qwen3", "none"), ("gemma3_text", "none"), ("mistral", "nf4")])
def test_adapters_over_two_processes_are_those_of_one(
    tmp_path: Path, make_engine: Callable[..., TrainingEngine], samples: list[Sample], family: str, quantize: Quantize
) -> None:
    """By either engine, also beside matrices in NF4, which ranks hold in parts."""
    sizes = {} if quantize == "none" else {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    model_path = write_model(tmp_path / "model", family=family, **sizes)
    alone = make_engine(path=model_path, rows_per_microbatch=1, lora=LoraConfig(rank=4), quantize=quantize)
    alone.save(str(tmp_path / "start"))
    losses = [alone.train_step(samples)["train/loss"] for _ in range(3)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(WORKER), model_path, "4", str(tmp_path), quantize]
    ended = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [result["wrote"] for result in ranks] == [True, False]
    for result in ranks:
        assert result["restored"] and result["base_is_base"]
        assert result["published"], "readers merge the gathered adapters into what the ranks hold in parts"
        assert result["losses"] == pytest.approx(losses, abs=1e-5)
    reader = make_engine(path=str(tmp_path / "exported"))
    for expected, found in zip(ranks[0]["logprobs"], reader.logprobs(samples), strict=True):
        assert list(found) == pytest.approx(expected, abs=1e-4)
