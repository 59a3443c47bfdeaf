"""Which class of transformers loads a tokenizer: the quick one only where AutoTokenizer would choose it too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from small_models import write_small

from agentgym.models.tiny import policy_path
from agentgym.text.tokenizer import HuggingFaceTokenizer

ASKS = """
import json, sys
from agentgym.text.tokenizer import HuggingFaceTokenizer
tokenizer = HuggingFaceTokenizer(sys.argv[1])
text = tokenizer.render(json.loads(sys.argv[2]), generation_prompt=True)
ids = tokenizer.encode(text)
found = ["torch" in sys.modules, text, ids, tokenizer.decode(ids), tokenizer.end_ids, tokenizer.special_tokens]
print(json.dumps(found))
"""


MESSAGES = [{"role": "user", "content": "hello <|im_end|> 12\n\n 3"}]


def edited(folder: Path, file: str, **changes: object) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", ["builtin:tiny", "meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen3-0.6B"])
def test_the_quick_class_loads_what_the_slow_one_does_without_importing_torch(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = policy_path() if name == "builtin:tiny" else write_small(name, tmp_path / "model")
    words = [sys.executable, "-c", ASKS, str(folder), json.dumps(MESSAGES)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    imports_torch, text, ids, decoded, end_ids, special = json.loads(done.stdout or done.stderr)
    assert not imports_torch
    slow = AutoTokenizer.from_pretrained(folder)
    assert type(slow) is PreTrainedTokenizerFast, "so transformers chooses it"
    assert slow.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True) == text
    assert slow.encode(text, add_special_tokens=False) == ids and slow.decode(ids) == decoded
    assert end_ids == [slow.eos_token_id] and set(slow.all_special_tokens) <= set(special)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"model_type": "qwen2"}),  # whose class of its own transformers takes all the same
        ("tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer"}),
        ("tokenizer_config.json", {"tokenizer_class": ["PreTrainedTokenizerFast"]}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}),
    ],
)
def test_anything_else_is_left_to_transformers(
    file: str, changes: Mapping[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    folder = Path(shutil.copytree(policy_path(), tmp_path / "model"))
    asked: list[str] = []

    class Chosen:
        @staticmethod
        def from_pretrained(path: str) -> object:
            asked.append(path)
            return transformers.PreTrainedTokenizerFast.from_pretrained(policy_path())

    monkeypatch.setattr(transformers, "AutoTokenizer", Chosen)
    HuggingFaceTokenizer(str(folder))
    assert asked == []
    edited(folder, file, **changes)
    HuggingFaceTokenizer(str(folder))
    assert asked == [str(folder)]
