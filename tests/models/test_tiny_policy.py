"""The policy that ships with the package: small, loadable, token-exact, and the product of its recipe."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from agentgym.models.safetensors import read_folder
from agentgym.models.tiny import policy_path
from agentgym.text.chat import ChatRenderer
from agentgym.text.continuation import check_template
from agentgym.text.tokenizer import HuggingFaceTokenizer
from agentgym_envs.code_exec.environment import CodeExec
from agentgym_envs.code_exec.operations import OPERATIONS, Step, source
from agentgym_envs.code_exec.problems import Problem

TAGS = [f"<{slash}{name}>" for name in ("tool_call", "tool_response", "think") for slash in ("", "/")]


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(str(policy_path()))


def test_it_is_small() -> None:
    tensors = [tensor for _, tensor in read_folder(policy_path())]
    assert {str(tensor.dtype) for tensor in tensors} == {"torch.float32"}
    assert sum(tensor.numel() for tensor in tensors) <= 3_000_000
    assert sum(file.stat().st_size for file in policy_path().iterdir()) <= 8_000_000


def test_transformers_load_it_and_it_is_a_qwen3(tokenizer: HuggingFaceTokenizer) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(policy_path())
    assert model.config.model_type == "qwen3" and model.config.tie_word_embeddings
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(policy_path()))
    assert model.config.eos_token_id in tokenizer.end_ids
    task = next(CodeExec().tasks("test"))
    ids = ChatRenderer(tokenizer).prompt(task.prompt)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits
    assert torch.isfinite(logits).all()
    assert tokenizer.decode([int(logits[0, -1].argmax())]).startswith("def")


def test_it_ends_its_turns_with_the_chat_token(tokenizer: HuggingFaceTokenizer) -> None:
    assert [tokenizer.decode([end]) for end in tokenizer.end_ids] == ["<|im_end|>"]


@pytest.mark.parametrize("token", ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *TAGS])
def test_chat_and_tool_tokens_are_one_token_each(tokenizer: HuggingFaceTokenizer, token: str) -> None:
    assert len(tokenizer.encode(token)) == 1
    assert tokenizer.decode(tokenizer.encode(f"a{token}b")) == f"a{token}b"


def test_any_text_survives_the_tokenizer(tokenizer: HuggingFaceTokenizer) -> None:
    texts = ["", " ", "\n\n  x", "tab\there", "naïve 🐍 Ω", "xs = [x + 12 for x in xs]", "0123456789", "a\r\nb"]
    texts += [task.prompt[0]["content"] for task in islice(CodeExec().tasks("train"), 50)]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_single_tokens(tokenizer: HuggingFaceTokenizer) -> None:
    assert [tokenizer.decode([i]) for i in tokenizer.encode("4096")] == ["4", "0", "9", "6"]


def test_its_chat_template_is_append_only(tokenizer: HuggingFaceTokenizer) -> None:
    assert check_template(ChatRenderer(tokenizer), ["system", "user"], turns=2) == ""
    opening = tokenizer.render([{"role": "user", "content": "hi"}], generation_prompt=True)
    assert opening == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_tasks_and_answers_take_few_tokens(tokenizer: HuggingFaceTokenizer) -> None:
    renderer = ChatRenderer(tokenizer)
    tasks = list(islice(CodeExec().tasks("test"), 300))
    prompts = [len(renderer.prompt(task.prompt)) for task in tasks]
    answers = [len(tokenizer.encode(Problem.from_json(task.answer).solution)) for task in tasks]
    assert max(prompts) <= 80 and sum(prompts) / len(prompts) <= 45
    assert max(answers) <= 40 and sum(answers) / len(answers) <= 20


def test_every_line_of_a_solution_is_a_few_tokens(tokenizer: HuggingFaceTokenizer) -> None:
    for name, operation in OPERATIONS.items():
        line = source((Step(name=name, k=(operation.parameters or (0,))[0]),), "f").splitlines()[1]
        assert len(tokenizer.encode(line.strip())) <= 9, line


def test_its_files_are_those_of_a_hugging_face_folder() -> None:
    names = {file.name for file in policy_path().iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert json.loads((policy_path() / "config.json").read_text())["dtype"] == "float32"
