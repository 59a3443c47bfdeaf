"""Small random Qwen3 models made by transformers, which is the second, slow, obvious computation."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import NativeEngineConfig, VllmEngineConfig
from agentgym.types import Completion, GenerateRequest, SamplingParams

VOCAB_SIZE = 300


@dataclass(frozen=True, eq=False)
class PlainModel:
    """A saved model, and what a plain forward pass of it says."""

    folder: Path
    model: torch.nn.Module

    def weights(self) -> list[tuple[str, Tensor]]:
        """Under the names and with the tensors of the saved file."""
        from safetensors.torch import load_file

        return list(load_file(self.folder / "model.safetensors").items())

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        with torch.no_grad():
            return self.model(torch.tensor([list(token_ids)])).logits[0]

    def logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int], sampling: SamplingParams) -> Tensor:
        """Of each completion token, after temperature, top-k and top-p; -inf for what they exclude."""
        logits = self.logits([*prompt_ids, *completion_ids])[len(prompt_ids) - 1 : -1]
        if sampling.top_k or sampling.top_p < 1:
            logits = torch.stack([limited(row, sampling) for row in logits])
        elif sampling.temperature:
            logits = logits / sampling.temperature
        return logits.log_softmax(-1)[range(len(completion_ids)), list(completion_ids)]

    def error(
        self, request: GenerateRequest, completion: Completion, *, start: int = 0, end: int | None = None
    ) -> float:
        """The largest difference between an engine's log-probabilities and a plain forward pass's."""
        theirs = self.logprobs(request.prompt_ids, completion.completion_ids, request.sampling)
        return (theirs - torch.tensor(completion.logprobs))[start:end].abs().max().item()


def limited(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """One row, token by token: temperature, then top-k, then the smallest set that reaches top-p."""
    if sampling.temperature == 0:
        return logits
    logits = logits / sampling.temperature
    values = logits.tolist()
    order = sorted(range(len(values)), key=lambda token: -values[token])
    kept = order[: sampling.top_k] if sampling.top_k else order
    probs = logits[kept].softmax(-1).tolist()
    total, allowed = 0.0, []
    for token, prob in zip(kept, probs, strict=True):
        if total >= sampling.top_p and allowed:
            break
        allowed.append(token)
        total += prob
    only = torch.full_like(logits, -torch.inf)
    only[allowed] = logits[allowed]
    return only


def make_model(folder: Path, *, seed: int, tied: bool = True) -> PlainModel:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # not hidden_size / heads
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.15,  # the distributions must not be flat
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0},
    )
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # transformers sets all of them to 1, which would hide a mistake
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return PlainModel(folder=folder, model=model)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def old_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("old"), seed=0)


@pytest.fixture(scope="session")
def new_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("new"), seed=1)


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("untied"), seed=2, tied=False)


@pytest.fixture(scope="session")
def generator_config():
    return GeneratorConfig(engine=NativeEngineConfig(), device="cpu", max_batch=8, max_model_len=256)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(NativeEngineConfig(), id="native"),
        pytest.param(
            VllmEngineConfig(),
            id="vllm",
            marks=[
                pytest.mark.vllm,
                pytest.mark.skipif(
                    importlib.util.find_spec("vllm") is None,
                    reason="vllm is not installed; docs/generators.md says how to get it",
                ),
                pytest.mark.filterwarnings("ignore"),  # vllm's own
            ],
        ),
    ],
)
def any_config(request, generator_config):
    """The same settings for each engine."""
    return replace(generator_config, engine=request.param)
