"""What is read from config.json, the names and shapes that follow from it, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agentgym.errors import UserError
from agentgym.families.architecture import collect
from agentgym.families.registry import read_architecture, read_dense
from agentgym.models.rope import inverse_frequencies
from agentgym.models.safetensors import read_shapes
from agentgym.models.tiny import policy_path


def changed_config(folder: Path, **changes: object) -> Path:
    """The tiny policy's config.json with fields changed; None removes one."""
    config = json.loads((policy_path() / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_are_those_of_transformers(tmp_path: Path, tied: bool, family: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"head_dim": None} if family == "qwen2" else {"head_dim": 16}
    changed_config(tmp_path, model_type=family, intermediate_size=48, vocab_size=40, tie_word_embeddings=tied, **sizes)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    theirs = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert read_architecture(tmp_path).hf_shapes() == theirs


def test_an_old_llama_has_the_sizes_and_the_rope_that_its_config_leaves_out(tmp_path: Path) -> None:
    missing = dict.fromkeys(("num_key_value_heads", "rope_parameters", "rope_theta", "head_dim"))
    found = read_architecture(changed_config(tmp_path, model_type="llama", **missing))
    assert (found.num_kv_heads, found.head_dim, found.rope_theta, found.rope_scaling) == (4, 32, 10_000.0, None)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_frequencies_of_rotary_positions_are_those_of_transformers_to_the_last_bit(
    tmp_path: Path, scaled: bool
) -> None:
    """The numbers of Llama 3.1, of which some waves are kept, some divided and some in between."""
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_theta": 500_000.0, "rope_type": "default"}
    if scaled:
        llama31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= {"rope_type": "llama3", "original_max_position_embeddings": 8192, **llama31}
    folder = changed_config(tmp_path, model_type="llama", head_dim=128, rope_parameters=rope)
    found = read_architecture(folder)
    mine = inverse_frequencies(found.rope_theta, found.head_dim, found.rope_scaling)
    assert torch.equal(mine, LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder)).inv_freq)
    plain = inverse_frequencies(found.rope_theta, found.head_dim, None)
    kept, divided = int((mine == plain).sum()), int((mine == plain / 8).sum())
    assert (0 < kept < 64 and divided > 0 and kept + divided < 64) if scaled else kept == 64


def test_the_shipped_policy_has_exactly_the_weights_of_its_config() -> None:
    assert read_shapes(policy_path()) == read_architecture(policy_path()).hf_shapes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'.*'qwen3'.*generator.engine=transformers"),
        ({"attention_bias": True}, "biases in attention"),
        ({"use_sliding_window": True}, "a sliding window"),
        ({"model_type": "llama", "mlp_bias": True}, "biases in the feed-forward layers"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}}, "lacks .*'low_freq_factor'"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partly rotated heads"),
        ({"rope_parameters": None}, "lacks the field 'rope_theta'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"vocab_size": None}, "lacks the field 'vocab_size'"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_dense(changed_config(tmp_path, **changes))


@pytest.mark.parametrize(
    ("content", "message"), [(None, r"there is no .*config\.json"), ("{", "can't read"), ("[]", "a list")]
)
def test_a_folder_without_a_readable_config_is_the_users_mistake(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("a", "1 of 2 weights did not come"),
        ("abb", "'b' came twice"),
        ("abc", "'c' is not one of this model's 2"),
        ("ab", "has shape"),
    ],
)
def test_weights_that_are_not_exactly_the_models_are_refused(names: str, message: str) -> None:
    weights = [(name, torch.zeros(3 if message == "has shape" else 2)) for name in names]
    with pytest.raises(ValueError, match=message):
        collect({"a": (2,), "b": (2,)}, weights)


def test_reading_architectures_and_headers_imports_no_torch() -> None:
    program = (
        "import sys, pathlib\n"
        "from agentgym.families.registry import read_architecture\n"
        "from agentgym.models.safetensors import read_shapes\n"
        "folder = pathlib.Path(sys.argv[1]); read_architecture(folder); read_shapes(folder)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(policy_path())]).returncode == 0
