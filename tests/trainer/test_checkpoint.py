"""Checkpoints go on where they were, exports are what transformers loads, and damage is refused in time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_model import write_model

from agentgym.errors import UserError
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.trainer.checkpoint import check, check_model
from agentgym.trainer.config import OptimizerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


@pytest.fixture
def saved(make_engine: MakeEngine, samples: list[Sample], tmp_path: Path) -> Path:
    engine = make_engine()
    engine.train_step(samples)
    folder = tmp_path / "step-1"
    engine.save(str(folder))
    return folder


def test_resuming_gives_the_same_steps_bit_for_bit(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    optimizer = OptimizerConfig(lr=1e-2, warmup_steps=4, weight_decay=0.1)
    first = make_engine(optimizer=optimizer, loss=CrossEntropy())
    for _ in range(3):
        first.train_step(samples)
    first.save(str(tmp_path / "step-3"))
    went_on = [first.train_step(samples) for _ in range(3)]
    second = make_engine(optimizer=optimizer, loss=CrossEntropy())
    second.load(str(tmp_path / "step-3"))
    assert second.step == 3
    resumed = [second.train_step(samples) for _ in range(3)]
    for name in ("train/loss", "train/grad_norm", "train/lr"):
        assert [step[name] for step in resumed] == [step[name] for step in went_on]
    expected = dict(first.hf_weights())
    assert all(torch.equal(weight, expected[name]) for name, weight in second.hf_weights())


def test_saving_disturbs_nothing_and_leaves_no_partial_folder(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    quiet, saving = make_engine(), make_engine()
    saving.save(str(tmp_path / "deep" / "step-0"))
    saving.save(str(tmp_path / "deep" / "step-0"))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["step-0"]
    assert quiet.train_step(samples)["train/loss"] == saving.train_step(samples)["train/loss"]
    expected = dict(quiet.hf_weights())
    assert all(torch.equal(weight, expected[name]) for name, weight in saving.hf_weights())


def test_before_the_first_step_weights_are_kept_and_zeros_are_not(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    def size(step: int) -> int:
        return sum(file.stat().st_size for file in (tmp_path / f"step-{step}").iterdir())

    stepped = make_engine()
    stepped.save(str(tmp_path / "step-0"))
    went_on = [stepped.train_step(samples) for _ in range(2)]
    stepped.save(str(tmp_path / "step-2"))
    assert size(0) < 0.5 * size(2)
    expected = dict(stepped.hf_weights())
    for again in (make_engine(), stepped):  # one that has moments forgets them
        again.load(str(tmp_path / "step-0"))
        assert again.step == 0
        redone = [again.train_step(samples) for _ in range(2)]
        assert [step["train/loss"] for step in redone] == [step["train/loss"] for step in went_on]
        assert all(torch.equal(weight, expected[name]) for name, weight in again.hf_weights())


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_an_export_with_equal_logits(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path, tied: bool
) -> None:
    from transformers import AutoModelForCausalLM

    path = write_model(tmp_path / "model", tied=tied)
    engine = make_engine(path=path)
    engine.train_step(samples)
    exported = tmp_path / "exported"
    engine.export_hf(str(exported))
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32, attn_implementation="eager")
    token_ids = torch.tensor(samples[0].token_ids)[None]
    engine._model.lm_head.targets = None  # then the head gives logits
    with torch.no_grad():
        ours = engine._model(token_ids, positions=torch.arange(token_ids.shape[1])[None], attention_masks=None)
        theirs = model(token_ids).logits
    assert (ours - theirs).abs().max() < 1e-5
    assert (exported / "tokenizer_config.json").exists()
    assert sorted(p.name for p in exported.iterdir()) == sorted(p.name for p in Path(path).iterdir())
    check(str(exported), path)


def test_a_large_export_is_split_and_loads(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentgym.models import safetensors

    monkeypatch.setattr(safetensors, "MAX_SHARD_BYTES", 20_000)
    engine = make_engine()
    engine.export_hf(str(tmp_path / "split"))
    assert len([*(tmp_path / "split").glob("model-*-of-*.safetensors")]) > 2
    check_model(str(tmp_path / "split"))
    expected = dict(engine.hf_weights())
    again = make_engine(path=str(tmp_path / "split"))
    assert all(torch.equal(weight, expected[name]) for name, weight in again.hf_weights())


def test_a_sound_checkpoint_passes(saved: Path, model_path: str) -> None:
    check(str(saved), model_path)
    check(model_path, model_path)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "__0_0.distcp").unlink(), "lacks its file __0_0.distcp"),
        (lambda folder: (folder / "__0_0.distcp").write_bytes(b"x"), "it has 1 bytes"),
        (lambda folder: flip_a_byte(folder / "__0_0.distcp"), "its content has changed"),
        (lambda folder: flip_a_byte(folder / ".metadata"), "its content has changed"),
        (lambda folder: (folder / "manifest.json").unlink(), "its save was not finished"),
        (lambda folder: (folder / "manifest.json").write_text('{"format": 1'), "is damaged"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "is damaged"),
        (lambda folder: (folder / "manifest.json").write_text('{"format": 9}'), "format 9"),
        (lambda folder: shutil.rmtree(folder), "no folder"),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    saved: Path, model_path: str, damage: Callable[[Path], object], message: str
) -> None:
    damage(saved)
    with pytest.raises(UserError, match=message):
        check(str(saved), model_path)


def test_a_checkpoint_of_another_shape_is_refused(saved: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", layers=3)
    with pytest.raises(UserError, match="num_layers is 2, the model's is 3"):
        check(str(saved), other)


def copy_model(model_path: str, folder: Path) -> Path:
    shutil.copytree(model_path, folder)
    return folder


def test_a_damaged_model_folder_is_refused(model_path: str, tmp_path: Path) -> None:
    folder = copy_model(model_path, tmp_path / "copy")
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="is damaged"):
        check_model(str(folder))


def test_weights_that_do_not_fit_the_config_are_refused_by_name(model_path: str, tmp_path: Path) -> None:
    folder = copy_model(model_path, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 80
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"mlp.gate_proj.weight has shape \(64, 32\), expected \(80, 32\)"):
        check_model(str(folder))


def test_checking_loads_no_torch(saved: Path, model_path: str) -> None:
    program = (
        "import sys; from agentgym.trainer.checkpoint import check; check(*sys.argv[1:]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(saved), model_path]).returncode == 0
