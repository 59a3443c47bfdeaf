"""The folder that a run leaves for others to load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentgym.models.tiny import policy_path
from agentgym.text.tokenizer import CHATML, HuggingFaceTokenizer
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.export import export_folder, parts_of


@pytest.mark.parametrize(
    ("given", "exported"), [("", ""), ("{{ messages[0].content }}!", "{{ messages[0].content }}!")]
)
def test_the_chat_template_of_the_run_is_exported_with_the_weights(tmp_path: Path, given: str, exported: str) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "hf"
    export_folder(str(folder), str(policy_path()), iter([("w", torch.zeros(2))]), chat_template=given)
    own = AutoTokenizer.from_pretrained(policy_path()).chat_template
    assert AutoTokenizer.from_pretrained(folder).chat_template == (exported or own)
    texts = [
        file.read_text() for file in (folder / "tokenizer_config.json", folder / "chat_template.jinja") if file.exists()
    ]
    assert sum("messages" in text for text in texts) == 1  # two would contradict each other
    rendered = HuggingFaceTokenizer(str(folder)).render([{"role": "user", "content": "hi"}], generation_prompt=False)
    assert rendered == ("hi!" if given else "<|im_start|>user\nhi<|im_end|>\n")
    again = tmp_path / "again"
    export_folder(str(again), str(folder), iter([("w", torch.zeros(2))]))
    assert AutoTokenizer.from_pretrained(again).chat_template == (exported or own)


def test_a_chat_template_is_exported_with_a_tokenizer_that_has_no_config(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "hf"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_bytes((policy_path() / name).read_bytes())
    export_folder(str(folder), str(model), iter([("w", torch.zeros(2))]), chat_template=CHATML)
    assert (folder / "chat_template.jinja").read_text() == CHATML and not (folder / "tokenizer_config.json").exists()


def test_weights_are_taken_apart_a_layer_at_a_time(make_engine: Callable[..., TrainingEngine]) -> None:
    engine = make_engine()
    named = [key for prefix, part in parts_of(engine._model) for key in part.state_dict(prefix=prefix)]
    assert named == list(engine._model.state_dict()) and any("wq.weight" in name for name in named)
    weights, seen = engine.hf_weights(), set[str]()
    for _ in weights:
        copied = {key.split(".")[1] for key in weights.gi_frame.f_locals["state"] if key.startswith("layers.")}
        assert len(copied) <= 1
        seen |= copied
    assert len(seen) == len(engine._model.layers) > 1
