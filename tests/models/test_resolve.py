"""From `model.path` to a folder."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError

from agentgym.errors import UserError
from agentgym.models.resolve import ModelUnavailable, check_local, local_folder, model_config, resolve_model
from agentgym.models.safetensors import read_folder
from agentgym.models.tiny import policy_path

REFUSED = httpx.Response(403, request=httpx.Request("GET", "http://hub"))


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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            LocalEntryNotFoundError("a\nb"),
            "cannot be reached; where it can, run `hf download some/model --local-dir FOL",
        ),
        (GatedRepoError("403\nwait", response=REFUSED), "or is private or gated: .*`hf auth login`"),
        (OSError("no space\nleft"), r"could not be loaded from the hub \(no space left\); give a folder"),
        (ImportError("No module"), r"could not be loaded from the hub \(No module\); give a folder"),
    ],
)
def test_a_hub_that_gives_nothing_is_one_line_which_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, message: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    for ask in (lambda: resolve_model("some/model", tmp_path), lambda: model_config("some/model")):
        with pytest.raises(ModelUnavailable, match=f"^the model 'some/model' .*{message}") as raised:
            ask()
        assert "\n" not in str(raised.value) and "--model.path" in str(raised.value)


def test_a_folder_that_is_not_a_models_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    for ask in (resolve_model, lambda path, _: check_local(path), lambda path, _: model_config(path)):
        with pytest.raises(ModelUnavailable, match=f"{tmp_path}' has no config.json; give .* as --model.path"):
            ask(str(tmp_path), tmp_path)
    check_local("some/model")  # whether the hub has it is for whoever loads it
    check_local("builtin:tiny")


def test_random_weights_keep_architecture_and_tokenizer_and_are_the_same_each_time(tmp_path: Path) -> None:
    made = [resolve_model("builtin:tiny", tmp_path / name, random_weights=True) for name in "ab"]
    first, again = (dict(read_folder(folder)) for folder in made)
    stored = dict(read_folder(policy_path()))
    assert first.keys() == stored.keys() and (made[0] / "tokenizer.json").is_file()
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "model.layers.1.mlp.down_proj.weight"
    assert first[name].shape == stored[name].shape and not torch.equal(first[name].float(), stored[name])
