"""Which settings a model gets where nobody gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from finishing import finished
from tiny_gguf import write_gguf

from agentgym.models.defaults import KEYS, LENGTHS, ROWS, TURN_LENGTH, model_defaults
from agentgym.models.smollm2 import FOLDER, cache_folder, converted
from agentgym.models.tiny import policy_path

GPU = {"trainer.device": "cuda", "generator.device": "cuda"}
CPU = {"trainer.device": "cpu", "generator.device": "cpu"}
SMOLLM2 = Path(__file__).parents[2] / "apps" / "grpo" / "smollm2_135m.yaml"


def model(folder: Path, **changes: object) -> str:
    """A folder with nothing but the tiny policy's config.json, changed."""
    config = json.loads((policy_path() / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def values(path: str, given: dict[str, object]) -> dict[str, object]:
    return {key: default.value for key, default in model_defaults(path, given).items()}


def test_the_tiny_policy_brings_the_settings_it_was_measured_with() -> None:
    assert values("builtin:tiny", dict(GPU)) == {
        "optimizer.lr": 5e-4,
        "rollout.max_turn_tokens": 128,
        "rollout.max_episode_tokens": 512,
        "trainer.seq_len": 512,
        "trainer.dtype": "float32",
        "trainer.compile": False,
        "generator.max_model_len": 1024,
        "generator.dtype": "float32",
    }
    assert set(values("builtin:tiny", {})) == set(KEYS) - {ROWS}


@pytest.mark.parametrize(
    ("config", "tokenizer", "same"),
    [({"dtype": "bfloat16"}, "", True), ({"num_hidden_layers": 3}, "", False), ({}, " ", False)],
)
def test_a_checkpoint_of_the_tiny_policy_keeps_its_settings(
    tmp_path: Path, config: dict[str, object], tokenizer: str, same: bool
) -> None:
    (tmp_path / "hf").mkdir()
    model(tmp_path / "hf", **config)
    text = (policy_path() / "tokenizer.json").read_text()
    (tmp_path / "hf" / "tokenizer.json").write_text(text + tokenizer)
    assert (values(str(tmp_path), dict(CPU)) == values("builtin:tiny", dict(CPU))) is same
    if same:
        assert model_defaults(str(tmp_path), CPU)["trainer.seq_len"].source == "recipe of builtin:tiny"
        assert values(str(tmp_path), {"trainer.seq_len": 256})["generator.max_model_len"] == 1024


def test_a_model_on_a_gpu_gets_bfloat16_and_compile_and_on_a_cpu_neither(tmp_path: Path) -> None:
    path = model(tmp_path)
    on_gpu, on_cpu = values(path, dict(GPU)), values(path, dict(CPU))
    assert (on_gpu["trainer.dtype"], on_gpu["generator.dtype"]) == ("bfloat16", "bfloat16")
    assert (on_cpu["trainer.dtype"], on_cpu["generator.dtype"]) == ("float32", "float32")
    assert on_gpu["trainer.compile"] is True and on_cpu["trainer.compile"] is False
    assert values(path, GPU | {"trainer.expert_parallel": 2})["trainer.compile"] is False
    mixed = values(path, {"trainer.device": "cuda", "generator.device": "cpu"})
    assert (mixed["trainer.dtype"], mixed["generator.dtype"]) == ("bfloat16", "float32")


@pytest.mark.parametrize(
    ("given", "rows", "of_4b"),
    [
        ({"rollout.max_episode_tokens": 768}, 21, 10),
        ({"rollout.max_episode_tokens": 4096}, 4, 2),
        ({"trainer.seq_len": 8192}, 2, 1),
        ({"trainer.seq_len": 32_768}, 1, 1),
        ({"trainer.device": "cpu"}, None, None),
    ],
)
def test_so_many_tokens_are_computed_at_a_time_on_a_gpu_and_half_of_them_by_large_models(
    tmp_path: Path, given: dict[str, object], rows: int, of_4b: int
) -> None:
    path = model(tmp_path, max_position_embeddings=40_960)
    assert values(path, {**GPU, **given}).get(ROWS) == rows
    assert values("Qwen/Qwen3-4B", {**GPU, **given}).get(ROWS) == of_4b


@pytest.mark.parametrize(
    ("layers", "rate"), [(3, 5e-4), (100, 5e-5), (1000, 3e-5), (3000, 5e-6), (10_000, 1e-6)]
)  # 0.5, 14.8, 147, 442 and 1,475 million parameters
def test_the_learning_rate_falls_with_the_size(tmp_path: Path, layers: int, rate: float) -> None:
    found = model_defaults(model(tmp_path, num_hidden_layers=layers), CPU)["optimizer.lr"]
    assert found.value == rate and "parameters" in found.source


@pytest.mark.parametrize(
    ("context", "given", "length", "turn"),
    [
        (512, CPU, 512, 128),
        (500, CPU, 448, 112),  # the ranks of tensor parallelism share a row
        (40_960, CPU, 1024, 256),
        (40_960, GPU, 4096, 1024),
        (40_960, {"trainer.device": "cuda", "generator.device": "cpu"}, 1024, 256),
        (40_960, {**CPU, "rollout.max_episode_tokens": 2048}, 2048, 512),
        (1024, {**CPU, "rollout.max_episode_tokens": 2048}, 1024, 512),  # refused later, for the context
        (40_960, {**CPU, "trainer.seq_len": 2048, "generator.max_model_len": 512}, 512, 128),
        (40_960, {**CPU, "rollout.max_turn_tokens": 1500}, 1536, 384),
        (None, CPU, 1024, 256),
    ],
)
def test_lengths_come_from_the_context_and_fit_each_other_and_what_is_given(
    tmp_path: Path, context: int | None, given: dict[str, object], length: int, turn: int
) -> None:
    found = values(model(tmp_path, max_position_embeddings=context), given)
    assert [found[key] for key in LENGTHS] == [length] * 3
    assert found[TURN_LENGTH] == turn


@pytest.mark.parametrize(
    "names", [{"n_positions": 256}, {"text_config": {"max_position_embeddings": 256}, "max_position_embeddings": 4096}]
)
def test_the_context_of_other_architectures_is_found(tmp_path: Path, names: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other", **names}))
    assert values(str(tmp_path), CPU)["generator.max_model_len"] == 256


def test_a_small_pretrained_model_gets_shorter_episodes_than_its_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    write_gguf(tmp_path / "small.gguf", llama_context_length=8192)
    converted(cache_folder() / FOLDER, lambda: tmp_path / "small.gguf")
    on_gpu, on_cpu = values("pypi:smollm2", dict(GPU)), values("pypi:smollm2", dict(CPU))
    assert (on_gpu["trainer.seq_len"], on_cpu["trainer.seq_len"]) == (2048, 1024)


@pytest.mark.parametrize("path", ["builtin:tiny", ""])
def test_adapters_learn_ten_times_as_fast(tmp_path: Path, path: str) -> None:
    path = path or model(tmp_path, num_hidden_layers=1000)
    full, off, lora = (
        model_defaults(path, CPU | {"trainer.lora": {"rank": rank}} if rank is not None else CPU)["optimizer.lr"]
        for rank in (None, 0, 16)
    )
    assert full == off and lora.value == pytest.approx(10 * float(str(full.value)))
    assert "10 times" in lora.source


@pytest.mark.parametrize(("rank", "rate"), [(0, 3e-5), (32, 3e-4)])
def test_a_recipe_trains_smollm2_at_the_rate_of_the_results_and_its_adapters_ten_times_as_fast(
    rank: int, rate: float, tmp_path: Path
) -> None:
    path = model(tmp_path, num_hidden_layers=920)  # as many parameters as SmolLM2: 135 million
    recipe = finished([SMOLLM2], [f"model.path={path}", f"trainer.lora.rank={rank}"])
    assert recipe.optimizer.lr == pytest.approx(rate)


def test_an_architecture_that_transformers_reads_has_lengths_and_a_learning_rate(tmp_path: Path) -> None:
    found = values(model(tmp_path, model_type="gpt2"), CPU)
    assert found["generator.max_model_len"] == 1024 and found["optimizer.lr"] > 0


@pytest.mark.parametrize("gone", ["{}", "./gone"])
def test_a_model_without_a_config_gets_what_follows_from_the_device_and_from_given_lengths(
    tmp_path: Path, gone: str
) -> None:
    of_device = {"trainer.dtype": "bfloat16", "generator.dtype": "bfloat16", "trainer.compile": True}
    path = gone.format(tmp_path)
    assert values(path, dict(GPU)) == of_device
    lengths = dict.fromkeys(LENGTHS, 2048) | {TURN_LENGTH: 512}
    assert values(path, GPU | {"rollout.max_episode_tokens": 2048}) == of_device | lengths


def test_nothing_is_looked_up_when_all_is_given() -> None:
    assert model_defaults("some/model-of-a-hub", dict.fromkeys(KEYS, 1)) == {}
