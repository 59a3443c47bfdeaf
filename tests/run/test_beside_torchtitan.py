"""benchmarks/trainer_rate.py beside TorchTitan's own trainer: the same rows, all of them trained, and shares."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DEBUGMODEL = {"hidden_size": 256, "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16,
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 2048}  # fmt: skip


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def batches(**changed: Any) -> Any:
    from trainer_arms import Batches  # type: ignore[import-not-found]

    given = {"count": 8, "length": 16, "seq_len": 32, "rows_per_microbatch": 2, "ranks": 2, "repeated": True}
    return Batches(**given | changed)


def debugmodel(folder: Path) -> Path:
    """A model folder of the shape of TorchTitan's smallest Qwen3, without weights."""
    from qwen3_folder import write_folder  # type: ignore[import-not-found]

    write_folder("Qwen/Qwen3-0.6B", folder, tiny=True)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | DEBUGMODEL))
    return folder


def test_the_ranks_train_every_document_once_in_equal_microbatches() -> None:
    given = batches()
    parts = [part for rank in range(2) for part in given.microbatches(0, rank)]
    assert (given.tokens, given.rows, given.microbatch) == (128, 4, 2)
    assert [part.num_rows for part in parts] == [2, 2]
    tokens = sorted(row for part in parts for row in part.token_ids.reshape(-1, 16).tolist())
    assert tokens == sorted(list(sample.token_ids) for sample in given.samples(0))
    assert sum(int(part.loss_mask.sum()) for part in parts) == 8 * 15, "what follows a document's end is not trained"
    assert given.samples(1) == given.samples(0) != replace(given, repeated=False).samples(1)


def test_rows_that_no_microbatch_divides_are_refused() -> None:
    assert batches(rows_per_microbatch=8).microbatch == 2
    with pytest.raises(ValueError, match=r"3 rows on each rank.*microbatches of 2"):
        _ = batches(count=12).microbatch


def test_torchtitans_model_is_that_of_the_folders_shape(tmp_path: Path) -> None:
    from qwen3_folder import write_folder
    from trainer_arms import flavor_of

    from agentgym.models.architecture import read_architecture

    write_folder("Qwen/Qwen3-1.7B", tmp_path / "1.7B")
    assert flavor_of(read_architecture(tmp_path / "1.7B")) == "1.7B"
    shape = read_architecture(debugmodel(tmp_path / "debug"))
    assert flavor_of(shape) == "debugmodel"
    with pytest.raises(ValueError, match="no Qwen3 of the model's shape"):
        flavor_of(replace(shape, ffn_dim=3000))


def alone(**changed: Any) -> Any:
    from trainer_arms import AloneRun

    given = {"flavor": "debugmodel", "model": "", "batches": batches(), "steps": 2, "lr": 1e-3, "dtype": "bfloat16",
             "compile": True, "recompute": "selective", "tensor_parallel": 1, "data_parallel_shard": -1,
             "device": "cuda", "autotune": True, "fields": [], "rows": "rows"}  # fmt: skip
    return AloneRun(**given | changed)


def test_a_gpus_run_is_what_torchtitan_makes_of_its_own_defaults() -> None:
    from torchtitan_alone import config_of  # type: ignore[import-not-found]

    config = config_of(alone())
    attention = config.model_spec.model.layers[0].attention.inner_attention
    assert type(attention).__qualname__ == "FlexAttention.Config" and not config.training.disable_cuda_graphs
    assert config.optimizer.implementation == "fused" and config.compile.enable and not config.checkpoint.enable
    assert type(config.loss).__qualname__ == "ChunkedLossWrapper.Config"
    assert type(config.activation_checkpoint).__qualname__ == "SelectiveAC.Config"
    assert (config.training.local_batch_size, config.training.global_batch_size, config.training.seq_len) == (2, 4, 32)
    assert (config.training.dtype, config.training.mixed_precision_param) == ("float32", "bfloat16")
    assert config.metrics.peak_of_all, "torch does not count what a replayed graph takes"

    config = config_of(alone(recompute="none", fields=["training.disable_cuda_graphs=true", "training.max_norm=0.5"]))
    assert config.activation_checkpoint is None and config.training.max_norm == 0.5
    assert config.training.disable_cuda_graphs and not config.metrics.peak_of_all
    with pytest.raises(AttributeError, match="no_such"):
        config_of(alone(fields=["training.no_such=1"]))


def test_a_step_that_left_tokens_out_is_no_measurement(tmp_path: Path) -> None:
    from finished_arms import ArmFailed  # type: ignore[import-not-found]
    from trainer_arms import AloneRun, Rates, rows_alone

    run = alone()
    run.write(tmp_path / "run.json")
    assert AloneRun.read(tmp_path / "run.json") == run
    rates = Rates(tokens=128, parameters=1000, peak=6e6)
    step = {"step_s": 2.0, "compute_s": 1.0, "peak_gib": 3.0, "loss": 7.0, "grad_norm": 1.0}

    def written(*seen: int) -> Path:
        (tmp_path / "rows").write_text("".join(json.dumps(step | {"tokens_seen": tokens}) + "\n" for tokens in seen))
        return tmp_path / "rows"

    row = rows_alone(written(128, 256), run, rates)[1]
    assert (row["tokens_per_s"], row["mfu"], row["mfu_with_transport"]) == pytest.approx((128, 0.128, 0.064))
    for seen in ((128,), (128, 192)):
        with pytest.raises(ArmFailed, match="not 128 in each of 2"):
            rows_alone(written(*seen), run, rates)


def test_shares_are_by_the_fastest_of_torchtitan_and_missing_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    from trainer_arms import table

    def arm(rate: float) -> dict[str, Any]:
        medians = {"tokens_per_s": rate, "mfu": rate / 1e5, "mfu_with_transport": rate / 2e5, "peak_gib": 50.0}
        return {"loss": "grpo", "recompute": "none", "medians": medians, "steps": [{"loss": 7.0}, {"loss": 6.0}]}

    table({"ours": arm(45_000), "torchtitan": arm(40_000), "torchtitan-none": arm(50_000)})
    ours = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| ours"))
    assert ours == "| ours | grpo | none | 45,000 | 0.900 | 45.0% | 22.5% | 0.900 | 50.0 | 7.000 6.000 |"
    table({"ours": arm(45_000)})
    assert "| 45,000 | - | 45.0% | 22.5% | - |" in capsys.readouterr().out


@pytest.mark.hostile
@pytest.mark.parametrize("gpus", [1, 2])
def test_torchtitans_own_trainer_learns_the_batch_beside_ours(gpus: int, tmp_path: Path) -> None:
    """TorchTitan's smallest Qwen3 on a CPU, as one process and sharded over two, and our trainer of the same shape."""
    out, both = tmp_path / "arms.jsonl", gpus == 1
    command = [
        *(sys.executable, str(BENCHMARKS / "trainer_rate.py"), str(BENCHMARKS.parent / "apps/grpo/qwen3_0.6b.yaml")),
        *("--arms", "torchtitan", *(["ours"] if both else []), "--device", "cpu", "--gpus", str(gpus)),
        *("--tokens", "128", "--documents", "32", "--steps", "3", "--skip", "1", "--lr", "1e-3", "--out", str(out)),
        *("--set", f"model.path={debugmodel(tmp_path / 'model')}", "trainer.seq_len=64", "trainer.dtype=float32"),
        *("trainer.rows_per_microbatch=1", "trainer.compile=false"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["arm"]: row for row in map(json.loads, out.read_text().splitlines())}
    alone = found["torchtitan"]
    losses = [step["loss"] for step in alone["steps"]]
    assert len(losses) == 4 and 7.0 < losses[0] < 8.5 and losses[-1] < losses[0] - 0.5
    counted = alone["steps"][1:]
    assert all(step["tokens_per_s"] == pytest.approx(128 * gpus / step["compute_s"]) for step in counted)
    if both:
        assert len(found["ours"]["steps"]) == 4 and "| ours | grpo |" in done.stdout
        assert json.loads((tmp_path / "arms.ours.json").read_text())["trainer"]["seq_len"] == 64
        again = subprocess.run(command, capture_output=True, text=True, check=True)
        assert again.stdout.count('"kept": true') == 2 and "| torchtitan | cross_entropy |" in again.stdout
