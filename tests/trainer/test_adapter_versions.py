"""With LoRA the adapters alone are published, and every reader makes the same merged weights of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_model import write_model
from torch import Tensor

from agentgym.actors.network import LOOPBACK
from agentgym.models.safetensors import read_folder, write_folder
from agentgym.trainer.config import LORA_TARGETS, LoraConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample
from agentgym.weights.adapters import NOTE, Base
from agentgym.weights.nccl import NcclStore
from agentgym.weights.shared_memory import SharedMemoryStore
from agentgym.weights.store import OtherBase, WeightStore

MakeEngine = Callable[..., TrainingEngine]
LORA = LoraConfig(rank=4, alpha=11.0)
CPU = torch.device("cpu")


def published(engine: TrainingEngine, version: int = 1) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    engine.publish(version, lambda weights: found.update((name, tensor.clone()) for name, tensor in weights))
    return found


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    same = (found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in expected.items())
    return [*found] == [*expected] and all(same)


@pytest.mark.parametrize(
    ("model", "trainer_dtype", "generator_dtype"),
    [
        ({}, "float32", "float32"),
        ({}, "float32", "bfloat16"),
        ({}, "bfloat16", "float32"),  # the trainer rounds its base, so a reader must
        ({"dtype": torch.bfloat16, "family": "qwen2"}, "float32", "bfloat16"),
        ({"dtype": torch.bfloat16, "family": "llama", "tied": False}, "bfloat16", "bfloat16"),
    ],
)
def test_a_reader_makes_the_merged_weights_bit_for_bit(
    make_engine: MakeEngine,
    samples: list[Sample],
    tmp_path: Path,
    model: dict[str, object],
    trainer_dtype: str,
    generator_dtype: str,
) -> None:
    path = write_model(tmp_path / "model", **model)  # type: ignore[arg-type]
    engine = make_engine(path=path, lora=LORA, dtype=trainer_dtype, publish_dtype=generator_dtype)
    base = Base(Path(path))
    for version in range(3):
        expected = dict(engine.hf_weights(getattr(torch, generator_dtype)))
        stored = published(engine, version)
        found = dict(base.whole(stored.items(), CPU))
        order = {name: found[name] for name in expected}
        assert equal(order, expected) and len(found) == len(expected) and engine.version == version
        engine.train_step(samples)


def test_a_version_is_a_note_and_the_adapters(make_engine: MakeEngine, samples: list[Sample], tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", hidden_size=256, intermediate_size=512)
    engine = make_engine(path=path, lora=LORA, publish_dtype="bfloat16")
    stored = published(engine)
    ends = {".".join(name.split(".")[-3:]) for name in stored if name != NOTE}
    assert ends == {f"{target}.lora_{letter}.weight" for target in LORA_TARGETS for letter in "AB"}
    whole = sum(tensor.nbytes for _, tensor in engine.hf_weights(torch.bfloat16))
    trained = sum(weight.nbytes for weight in engine._model.parameters() if weight.requires_grad)
    assert next(iter(stored)) == NOTE
    assert sum(tensor.nbytes for name, tensor in stored.items() if name != NOTE) == trained
    assert trained < whole / 10
    engine.train_step(samples)
    later = published(engine, 2)
    assert [(name, tensor.shape) for name, tensor in later.items()] == [(n, t.shape) for n, t in stored.items()]


@pytest.mark.parametrize("kind", ["shared_memory", "nccl"])
async def test_stores_hold_them_as_they_hold_weights(
    make_engine: MakeEngine, samples: list[Sample], model_path: str, tmp_path: Path, kind: str
) -> None:
    engine = make_engine(lora=LORA)
    engine.train_step(samples)
    store: WeightStore = (
        SharedMemoryStore("run", keep=2, root=tmp_path)
        if kind == "shared_memory"
        else NcclStore("run", keep=2, address=LOOPBACK, root=tmp_path)
    )
    base = Base(Path(model_path))
    try:
        for version in (1, 2):
            engine.train_step(samples)
            await store.put(version, published(engine, version).items())
            stored = await store.get(version)
            found = dict(await asyncio.to_thread(lambda weights=stored: dict(base.whole(weights, CPU))))
            assert equal({name: found[name] for name, _ in engine.hf_weights()}, dict(engine.hf_weights()))
    finally:
        await store.close()


def test_another_base_is_noticed_to_the_last_bit_and_another_file_layout_is_none(
    make_engine: MakeEngine, model_path: str, tmp_path: Path
) -> None:
    stored = published(make_engine(lora=LORA))
    weights = dict(read_folder(Path(model_path)))

    def folder_of(name: str, weights: dict[str, Tensor]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        write_folder(folder, weights.items())
        (folder / "config.json").write_bytes((Path(model_path) / "config.json").read_bytes())
        return folder

    reversed_ = dict(reversed(weights.items())) | {"model.rotary_emb.inv_freq": torch.ones(8)}
    assert dict(Base(folder_of("other-layout", reversed_)).whole(stored.items(), CPU))
    changed = {name: tensor.clone() for name, tensor in weights.items()}
    last = changed["model.layers.1.mlp.down_proj.weight"].view(-1).view(torch.int32)
    last[-1] ^= 1
    embedding = weights["model.embed_tokens.weight"]  # of 128 bytes a row: sums are of columns and of lines of 512
    near, far = ({**weights, "model.embed_tokens.weight": embedding.clone()} for _ in range(2))
    near["model.embed_tokens.weight"][[4, 5]] = embedding[[5, 4]]
    far["model.embed_tokens.weight"][[4, 8]] = embedding[[8, 4]]
    for name, other in (("one-bit", changed), ("near", near), ("far", far)):
        with pytest.raises(OtherBase, match=name) as raised:
            Base(folder_of(name, other)).whole(stored.items(), CPU)
        assert "is not the one whose adapters the trainer trains" in str(raised.value)


def test_a_reference_that_follows_merges_them_into_the_base_of_the_policy(
    make_engine: MakeEngine, samples: list[Sample], model_path: str, tmp_path: Path
) -> None:
    policy = make_engine(lora=LORA)
    for _ in range(2):
        policy.train_step(samples)
    other = write_model(tmp_path / "other", seed=5)
    reference = make_engine(path=other, base_path=model_path)
    reference.follow(published(policy).items(), 1.0)
    for expected, found in zip(policy.logprobs(samples), reference.logprobs(samples), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)
    with pytest.raises(OtherBase, match="is not the one whose adapters"):
        make_engine(path=other).follow(published(policy).items(), 1.0)
