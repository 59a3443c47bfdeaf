"""What is read from config.json, the names and shapes that follow from it, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agentgym.errors import UserError
from agentgym.models.architecture import collect, read_architecture
from agentgym.models.safetensors import read_shapes
from agentgym.models.tiny import policy_path


def changed_config(folder: Path, **changes: object) -> Path:
    """The tiny policy's config.json with fields changed; None removes one."""
    config = json.loads((policy_path() / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_are_those_of_transformers(tmp_path: Path, tied: bool) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    changed_config(tmp_path, head_dim=16, intermediate_size=48, vocab_size=40, tie_word_embeddings=tied)
    model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(tmp_path))
    theirs = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert read_architecture(tmp_path).hf_shapes() == theirs


def test_the_shipped_policy_has_exactly_the_weights_of_its_config() -> None:
    assert read_shapes(policy_path()) == read_architecture(policy_path()).hf_shapes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'.*'qwen3'"),
        ({"attention_bias": True}, "biases in attention"),
        ({"use_sliding_window": True}, "a sliding window"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn'"),
        ({"rope_parameters": None}, "lacks the field 'rope_theta'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"vocab_size": None}, "lacks the field 'vocab_size'"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_architecture(changed_config(tmp_path, **changes))


@pytest.mark.parametrize(
    ("content", "message"), [(None, r"there is no .*config\.json"), ("{", "can't be read"), ("[]", "a list")]
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
        "from agentgym.models.architecture import read_architecture\n"
        "from agentgym.models.safetensors import read_shapes\n"
        "folder = pathlib.Path(sys.argv[1]); read_architecture(folder); read_shapes(folder)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(policy_path())]).returncode == 0
