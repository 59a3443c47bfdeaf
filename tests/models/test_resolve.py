"""From `model.path` to a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentgym.errors import UserError
from agentgym.models.resolve import local_folder, resolve_model
from agentgym.models.safetensors import read_folder
from agentgym.models.tiny import policy_path


def test_a_runs_checkpoint_is_the_model_in_it(tmp_path: Path) -> None:
    (tmp_path / "step-000020" / "hf").mkdir(parents=True)
    (tmp_path / "step-000020" / "hf" / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path / "step-000020"), tmp_path) == tmp_path / "step-000020" / "hf"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("builtin:tinny", "no model 'builtin:tinny'. Did you mean 'builtin:tiny'"),
        ("{}/step-00002", "Did you mean 'step-000020'"),
        ("{}/file", "is a file"),
        ("~/model", "no model folder"),
        ("model", "no model folder"),
    ],
)
def test_what_can_only_be_a_local_path_is_refused_without_asking_the_hub(
    tmp_path: Path, path: str, message: str
) -> None:
    (tmp_path / "step-000020").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=message):
        local_folder(path.format(tmp_path))


def test_a_hub_name_is_not_local() -> None:
    assert local_folder("Qwen/Qwen3-0.6B") is None


def test_random_weights_keep_architecture_and_tokenizer_and_are_the_same_each_time(tmp_path: Path) -> None:
    made = [resolve_model("builtin:tiny", tmp_path / name, random_weights=True) for name in "ab"]
    first, again = (dict(read_folder(folder)) for folder in made)
    stored = dict(read_folder(policy_path()))
    assert first.keys() == stored.keys() and (made[0] / "tokenizer.json").is_file()
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "model.layers.1.mlp.down_proj.weight"
    assert first[name].shape == stored[name].shape and not torch.equal(first[name].float(), stored[name])
