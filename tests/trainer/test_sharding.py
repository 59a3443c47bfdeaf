"""One process, FSDP2 over two, tensor and context parallel over two must be the same trainer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_model

from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample
from tests.trainer.sharded_worker import train
from tests.trainer.test_saving import content

WORKER = Path(__file__).with_name("sharded_worker.py")


FAMILIES = {"qwen3": 2e-5, "llama": 1e-3, "qwen2": 1e-3}
"""How near log-probabilities are: where gradients are nearly 0, three steps of AdamW make rounding larger."""
WAYS = {"fsdp": (1, 1, 1), "tensor": (2, 1, 1), "context": (1, 2, 1)}
"""Tensor, context and expert parallel sizes."""
EXPERTS = {"experts": (1, 1, 2)}
"""By the engine titan, beside the other one."""
OTHERS = ("gemma3_text", "qwen3_moe", "lfm2")
"""Of the engine transformers, which has FSDP alone."""
FAMILIES |= dict.fromkeys(OTHERS, 1e-3)


def ways_of(family: str) -> dict[str, tuple[int, int, int]]:
    of_others = {"fsdp": (1, 1, 1)} | (EXPERTS if family == "qwen3_moe" else {})
    return of_others if family in OTHERS else WAYS


def changes_of(family: str) -> dict[str, object]:
    """transformers gives the row of a padding token no gradient, and titan has no such row."""
    return {"pad_token_id": None} if family == "qwen3_moe" else {}


def run_ranks(trainers: Sequence[tuple[str, str, int, int, int]], count: int = 2) -> list[list[dict[str, Any]]]:
    """Train with so many ranks, which start once for all trainers; of each trainer what its ranks print."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in trainers]
        given = json.dumps([(*one, probe.getsockname()[1]) for one, probe in zip(trainers, probes, strict=True)])
    processes = []
    for rank in map(str, range(count)):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
        environment = os.environ | place
        processes.append(
            subprocess.Popen(
                [sys.executable, str(WORKER), given],
                env=environment | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        with ThreadPoolExecutor(count) as readers:  # at once: who died first is not the one that others wait for
            ended = list(readers.map(lambda process: process.communicate(timeout=240), processes))
        codes = [process.returncode for process in processes]
        assert not any(codes), f"the ranks ended with {codes}" + "".join(f"\n\n{errors[-4000:]}" for _, errors in ended)
        printed = [json.loads(output.splitlines()[-1]) for output, _ in ended]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [list(ranks) for ranks in zip(*printed, strict=True)]


@dataclass(frozen=True)
class Sharded:
    folder: Path
    ranks: dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Sharded:
    """Every family in every way."""
    folder = tmp_path_factory.mktemp("sharded")
    models = {
        family: write_model(folder / family / "model", family=family, **changes_of(family)) for family in FAMILIES
    }
    trainers = {
        (family, way): (models[family], str(folder / family / way), *sizes)
        for family in FAMILIES
        for way, sizes in ways_of(family).items()
    }
    return Sharded(folder, dict(zip(trainers, run_ranks(list(trainers.values())), strict=True)))


@pytest.mark.hostile
@pytest.mark.parametrize("family", FAMILIES)
def test_one_process_equals_fsdp_tensor_and_context_parallel(
    sharded: Sharded, make_engine: Callable[..., TrainingEngine], samples: list[Sample], family: str
) -> None:
    """And what two processes save, one loads."""
    folder, near = sharded.folder / family, FAMILIES[family]
    model_path = str(folder / "model")
    alone = train(model_path, str(folder / "alone"))
    for name, sizes in ways_of(family).items():
        ranks = sharded.ranks[family, name]
        assert ranks[0]["steps"] == ranks[1]["steps"]
        assert len(list((folder / name).glob("bad_batch_step_4_rank_*.pt"))) == max(sizes[:2]), "as many have it"
        for result in ranks:
            assert result["restored"] and result["parts"]
            assert result["followed"] == pytest.approx([0.75] * len(result["followed"]), abs=1e-4)
            assert "without a gradient" in result["fault"]
            assert "step 4 ends the run" in result["stopped"] and "trainer.mismatch.engine.stop" in result["stopped"]
            assert result["weighed"] == pytest.approx(alone["weighed"], abs=1e-5) and result["weighed"][2] > 0
            for expected, found in zip(alone["steps"], result["steps"], strict=True):
                assert found["train/loss"] == pytest.approx(expected["train/loss"], abs=1e-6)
                assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
            for expected_row, found_row in zip(alone["logprobs"], result["logprobs"], strict=True):
                assert found_row == pytest.approx(expected_row, abs=near)
            assert result["weights"] == pytest.approx(alone["weights"], rel=near / 2)
        for one, other in (("checkpoint", "background"), ("exported", "background-hf")):
            expected_files, found_files = content(folder / name / one), content(folder / name / other)
            assert found_files.keys() == expected_files.keys()
            assert [file for file in found_files if found_files[file] != expected_files[file]] == []
        assert "failed" not in {path.name for path in (folder / name).iterdir()}
        assert "No space left on device" in ranks[1]["failed"] and ranks[1]["failed"].startswith("OSError")
        assert "rank 1 could not write its part" in ranks[0]["failed"] and "No space left" in ranks[0]["failed"]
        assert (
            ranks[0]["unpublished"] == "InfraError: another rank of the trainer could not store its part of the weights"
        )
        assert ranks[1]["unpublished"] == "OSError: the store is gone"
        engine_name = "titan" if name in EXPERTS else "auto"
        heir = make_engine(path=model_path, engine=engine_name)
        heir.load(str(folder / name / "checkpoint"))
        reader = make_engine(path=str(folder / name / "exported"))
        for engine in (heir, reader):
            for expected_row, found_row in zip(ranks[0]["logprobs"], engine.logprobs(samples), strict=True):
                assert list(found_row) == pytest.approx(expected_row, abs=near)


@pytest.mark.hostile
def test_rows_are_shared_beside_data_and_tensor_parallelism(tmp_path: Path) -> None:
    """Four ranks: two rows at a time, each over two of them; each row over two by two; and experts over two by two."""
    dense, mixture = (write_model(tmp_path / one, family=one, **changes_of(one)) for one in ("qwen3", "qwen3_moe"))
    ways = {"data": (dense, 1, 2, 1), "tensor": (dense, 2, 2, 1), "experts": (mixture, 1, 1, 2)}
    copies = {"data": 2, "tensor": 4, "experts": 1}  # ranks that have the same rows
    trainers = [(model, str(tmp_path / way), *sizes) for way, (model, *sizes) in ways.items()]
    trained = [*run_ranks(trainers[:2], 4), *run_ranks(trainers[2:], 4)]
    expected = {
        model: train(model, str(tmp_path / "alone" / str(number))) for number, model in enumerate((dense, mixture))
    }
    for (way, (model, *_)), ranks in zip(ways.items(), trained, strict=True):
        assert len(list((tmp_path / way).glob("bad_batch_step_4_rank_*.pt"))) == copies[way]
        near = 1e-5 if model == dense else 1e-3
        for result in ranks:
            for alone, found in zip(expected[model]["steps"], result["steps"], strict=True):
                assert found == pytest.approx(alone, rel=1e-5, abs=1e-5)
            assert result["weights"] == pytest.approx(expected[model]["weights"], rel=near) and result["parts"]
