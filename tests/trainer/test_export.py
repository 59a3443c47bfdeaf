"""The folder that a run leaves for others to load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentgym.models.tiny import policy_path
from agentgym.rollout.tokenizer import CHATML, HuggingFaceTokenizer
from agentgym.trainer.export import export_folder


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
