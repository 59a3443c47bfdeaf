"""Trains a small policy from scratch on demonstrations of `code_exec`: tokenizer, random weights, SFT, export."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.components import component
from agentgym.rl.losses import Loss
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.tokenizer import HuggingFaceTokenizer
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Message, Sample
from apps.sft.demonstrations import DemonstrationConfig, demonstrations
from apps.sft.tokenizer import save_tokenizer, train_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeConfig:
    """A dense Qwen3, tied embeddings; half a million parameters by default."""

    vocab_size: int = 640
    hidden_size: int = 128
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256
    max_position_embeddings: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRecipe:
    """The defaults make the policy that ships with the package."""

    out: str = "policy"
    steps: int = 2000
    conversations_per_step: int = 64
    seed: int = 0
    tokenizer_conversations: int = 4000
    max_token_chars: int = 20
    shape: ShapeConfig = ShapeConfig()
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    optimizer: OptimizerConfig = OptimizerConfig(lr=4e-3, warmup_steps=20, decay_ratio=0.9)
    loss: Loss = component("losses", "cross_entropy")
    trainer: TrainerConfig = TrainerConfig(device="cpu", threads=2, seq_len=512, rows_per_microbatch=8)


def run(recipe: SftRecipe, say: Callable[[str], None]) -> Path:
    """Writes a Hugging Face folder to `recipe.out` and returns it. The same recipe gives the same policy."""
    from agentgym.trainer.engine import TitanEngine

    out = Path(recipe.out)
    start = out / "start"
    start.mkdir(parents=True, exist_ok=True)
    say(f"training a tokenizer of {recipe.shape.vocab_size} tokens")
    write_tokenizer(recipe, start)
    write_random_weights(recipe, start)
    setup = TrainerSetup(
        model_path=str(start),
        trainer=recipe.trainer,
        optimizer=recipe.optimizer,
        loss=recipe.loss,
        total_steps=recipe.steps,
        folder=str(out / "trainer"),
    )
    engine = TitanEngine(setup)
    renderer = ChatRenderer(HuggingFaceTokenizer(str(start)))
    samples = (
        conversation_sample(messages, renderer, f"demonstration-{number}")
        for number, messages in enumerate(demonstrations(recipe.demonstrations))
    )
    began = time.monotonic()
    for step in range(1, recipe.steps + 1):
        metrics = engine.train_step(list(itertools.islice(samples, recipe.conversations_per_step)))
        if step % 25 == 0 or step == recipe.steps:
            passed = time.monotonic() - began
            left = passed / step * (recipe.steps - step)
            say(f"step {step}/{recipe.steps}  loss {metrics['train/loss']:.4f}  {passed:.0f} s, {left:.0f} s left")
    engine.export_hf(str(out / "policy"))
    engine.close()
    return out / "policy"


def conversation_sample(messages: list[Message], renderer: ChatRenderer, name: str) -> Sample:
    """A conversation as an agent would have played it: only its own turns are trained, including their end tokens."""
    token_ids: list[int] = []
    loss_mask: list[float] = []
    for ids, trained in _pieces(messages, renderer):
        token_ids += ids
        loss_mask += [trained] * len(ids)
    zeros = (0.0,) * len(token_ids)
    versions = tuple(0 if mask else -1 for mask in loss_mask)
    return Sample(
        sample_id=name,
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        logprobs=zeros,
        advantages=zeros,
        versions=versions,
    )


def _pieces(messages: list[Message], renderer: ChatRenderer) -> Iterator[tuple[tuple[int, ...], float]]:
    first = next(n for n, message in enumerate(messages) if message["role"] == "assistant")
    yield renderer.prompt(messages[:first]), 0.0
    for message in messages[first:]:
        if message["role"] == "assistant":
            yield renderer.turn(message["content"]), 1.0
        else:
            yield renderer.reply([message]), 0.0


def write_tokenizer(recipe: SftRecipe, folder: Path) -> None:
    """Train it on the texts of the demonstrations and the words of the template."""
    talks = itertools.islice(demonstrations(recipe.demonstrations), recipe.tokenizer_conversations)
    texts = [message["content"] for talk in talks for message in talk]
    texts += ["user\n", "assistant\n", "system\n"] * (len(texts) // 8)
    tokenizer = train_tokenizer(texts, vocab_size=recipe.shape.vocab_size, max_token_chars=recipe.max_token_chars)
    save_tokenizer(tokenizer, folder, max_length=recipe.shape.max_position_embeddings)


def write_random_weights(recipe: SftRecipe, folder: Path) -> None:
    """Write config.json and model.safetensors, drawn from the recipe's seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    shape = recipe.shape
    end = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]["<|im_end|>"]
    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
