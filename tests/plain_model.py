"""Small random models made by transformers, which is the second, slow, obvious computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

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

    @property
    def embedding(self) -> str:
        """The name of its weight."""
        return next(name for name, weight in self.weights() if len(weight) == VOCAB_SIZE and "lm_head" not in name)

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


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # some waves are longer, some shorter, some between
}
DECODER = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,  # the distributions must not be flat
    "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
}
FAMILIES = {
    "qwen3": DECODER | {"head_dim": 32},  # not hidden_size / heads
    "qwen2": DECODER,
    "llama": DECODER
    | {"rope_parameters": LLAMA3, "hidden_size": 96, "num_attention_heads": 6, "head_dim": 32}  # vLLM on CPUs needs 32
    | {"initializer_range": 0.1},  # without norms of queries and keys, scores are larger and so is their rounding
    "gpt2": {"vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
    | {"initializer_range": 0.15},
}


def make_model(
    folder: Path, *, seed: int, tied: bool = True, family: str = "qwen3", vocab_size: int = VOCAB_SIZE
) -> PlainModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, tie_word_embeddings=tied, **FAMILIES[family] | {"vocab_size": vocab_size})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "ln_" in name:  # transformers sets all of them to 1, which would hide a mistake
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):  # and these to 0
                weight.uniform_(-0.5, 0.5)
    model.save_pretrained(folder)
    return PlainModel(folder=folder, model=model)
