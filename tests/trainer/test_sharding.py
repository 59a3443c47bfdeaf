"""One process, FSDP2 over two and tensor parallel over two must be the same trainer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_model

from agentgym.trainer.engine import TitanEngine
from agentgym.types import Sample

WORKER = Path(__file__).with_name("sharded_worker.py")


def run_workers(model_path: str, folder: Path, *, procs: int, tensor_parallel: int) -> list[dict[str, Any]]:
    """Start the ranks and return what each printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(procs):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(procs),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(WORKER), model_path, str(tensor_parallel), str(folder)]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    results = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-4000:]
            results.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return results


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("family", "near"), [("qwen3", 2e-5), ("llama", 1e-3), ("qwen2", 1e-3)]
)  # where gradients are nearly 0, three steps of AdamW make rounding larger
def test_one_process_equals_fsdp_and_tensor_parallel(
    tmp_path: Path, make_engine: Callable[..., TitanEngine], samples: list[Sample], family: str, near: float
) -> None:
    """And what two processes save, one loads."""
    model_path = write_model(tmp_path / "model", family=family)
    [alone] = run_workers(model_path, tmp_path / "alone", procs=1, tensor_parallel=1)
    for name, tensor_parallel in (("fsdp", 1), ("tensor", 2)):
        ranks = run_workers(model_path, tmp_path / name, procs=2, tensor_parallel=tensor_parallel)
        assert ranks[0]["steps"] == ranks[1]["steps"]
        assert len(list((tmp_path / name).glob("bad_batch_step_4_rank_*.pt"))) == tensor_parallel
        for result in ranks:
            assert result["restored"]
            assert result["followed"] == pytest.approx([0.75] * len(result["followed"]), abs=1e-4)
            assert "without a gradient" in result["fault"]
            for expected, found in zip(alone["steps"], result["steps"], strict=True):
                assert found["train/loss"] == pytest.approx(expected["train/loss"], abs=1e-6)
                assert found == pytest.approx(expected, abs=1e-5)
            for expected_row, found_row in zip(alone["logprobs"], result["logprobs"], strict=True):
                assert found_row == pytest.approx(expected_row, abs=near)
            assert result["weights"] == pytest.approx(alone["weights"], rel=near / 2)
        heir = make_engine(path=model_path)
        heir.load(str(tmp_path / name / "checkpoint"))
        reader = make_engine(path=str(tmp_path / name / "exported"))
        for engine in (heir, reader):
            for expected_row, found_row in zip(ranks[0]["logprobs"], engine.logprobs(samples), strict=True):
                assert list(found_row) == pytest.approx(expected_row, abs=near)
