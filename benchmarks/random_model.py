"""A released model's shape with random weights, for runs that test speed on machines without a model hub.

    python benchmarks/random_model.py 0.6B OUT
    python benchmarks/random_model.py Llama-3.2-1B OUT --weights
    python benchmarks/random_model.py 8B OUT --weights --device cuda
    python benchmarks/random_model.py 30B-A3B OUT --set num_experts=24
    agentgym train --recipe apps/grpo/qwen3_0.6b_two_gpus.yaml --model.path OUT --model.random_weights true

OUT gets config.json and the tiny policy's tokenizer. --set changes fields of config.json. --weights draws random
weights too, once (3.4 GB for 1.7B); without them each run draws its own and writes them to a temporary folder.

A recipe takes an engine of this file by `generator.engine.name: random_model:TailedVllm`, with this folder on
PYTHONPATH. `Tailed...`: the length of a completion follows from its seed, log-normal, with a median of 13% of what was
asked for; a request without a seed gets the length that it asked for. `Full...`: each completion has the length that
was asked for. The reward `random_model:short` pays for being short, `random_model:hashed` by a hash of the text, so
that every group has something to learn from. The environment `random_model:SlowTools` answers each turn as a slow
tool does: late, and with a page of text.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentgym import Environment, EpisodeContext, Reply, Task, reward
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import NativeEngineConfig, VllmEngineConfig
from agentgym.models.released import QWEN3, RELEASED, qwen3_config, released_config
from agentgym.models.resolve import write_random_policy
from agentgym.models.tiny import policy_path
from agentgym.types import Completion, Episode, GenerateRequest, Split

TINY = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048, "max_window_layers": 2,
        "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}  # fmt: skip
MIXTURE = {**qwen3_config("4B"), "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
           "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_key_value_heads": 4,
           "tie_word_embeddings": False, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
           "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip
MEDIAN, SIGMA = 0.13, 1.0  # of a tailed length, as a share of what was asked for
NAMES = {name.rpartition("/")[2].removesuffix("-Instruct"): name for name in RELEASED}
NAMES |= {size: f"Qwen/Qwen3-{size}" for size in (*QWEN3, "30B-A3B")}


def write_folder(
    name: str, out: Path, *, tiny: bool = False, weights: bool = False, device: str = "cpu", **changes: object
) -> None:
    """name: of a released model, as in `model.path`. tiny: a shape of two layers instead, for a CPU. changes: fields.

    weights: draw random ones, unless the folder has those of this shape. device: which draws them, of torch.
    """
    known = MIXTURE if name == NAMES["30B-A3B"] else released_config(name)
    assert known is not None, f"{name} is not in agentgym/models/released.py"
    source = policy_path()
    out.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "special_tokens")):
            shutil.copy(file, out / file.name)
    eos = json.loads((source / "config.json").read_text())["eos_token_id"]
    shape = {key: value for key, value in (TINY if tiny else {}).items() if key in known}
    text = json.dumps({**known, **shape, **changes, "eos_token_id": eos}, indent=1)
    config = out / "config.json"
    if has_weights(out) and config.read_text() != text:
        for file in out.glob("*.safetensors*"):
            file.unlink()
    config.write_text(text)
    if weights and not has_weights(out):
        partial = out / "partial"
        write_random_policy(out, partial, device=device)
        for file in sorted(partial.glob("*.safetensors*"), reverse=True):  # the index of several files first
            file.rename(out / file.name)
        shutil.rmtree(partial)


def has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def shortened(request: GenerateRequest) -> GenerateRequest:
    if request.sampling.seed is None:
        return request
    share = min(1.0, random.Random(request.sampling.seed).lognormvariate(math.log(MEDIAN), SIGMA))
    most = max(1, round(share * request.sampling.max_tokens))
    return replace(request, sampling=replace(request.sampling, max_tokens=most))


def unstopped(request: GenerateRequest) -> GenerateRequest:
    return replace(request, sampling=replace(request.sampling, stop_token_ids=()))


def _said(episode: Episode) -> str:
    return "".join(str(one["content"]) for one in episode.messages if one["role"] == "assistant")


@reward
def short(episode: Episode) -> float:
    """1 for an episode that says nothing, half of it for one of 500 characters: rewards see no token ids."""
    return 1 / (1 + len(_said(episode)) / 500)


@reward
def hashed(episode: Episode) -> float:
    """A reward between 0 and 1: no two texts are worth the same."""
    return int.from_bytes(hashlib.blake2b(_said(episode).encode(), digest_size=6).digest()) / 2**48


class SlowTools(Environment[random.Random]):
    """Episodes of 4 to 12 turns; between two turns pass 0.2 to 5 s, log-uniform, and 100 numbers are said."""

    max_turns = 12
    rewards = MappingProxyType({"random_model:hashed": 1.0})

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        numbers = random.Random(f"{split} {seed}")
        for index in range(4096):
            question = {"role": "user", "content": " ".join(str(numbers.randrange(100)) for _ in range(100))}
            yield Task(task_id=f"{split}/{index}", prompt=(question,), answer=numbers.randint(4, 12), split=split)

    async def start(self, context: EpisodeContext[random.Random]) -> random.Random:
        return random.Random(context.seed)

    async def reply(self, context: EpisodeContext[random.Random]) -> Reply:
        said = sum(message["role"] == "assistant" for message in context.messages)
        if said >= context.task.answer:
            return Reply(done=True)
        await asyncio.sleep(math.exp(context.state.uniform(math.log(0.2), math.log(5.0))))
        content = " ".join(str(context.state.randrange(100)) for _ in range(100))
        return Reply(messages=({"role": "user", "content": content},))


def changed(engine: Any, change: Callable[[GenerateRequest], GenerateRequest]) -> Any:
    """The same engine, which is asked for other lengths. No wrapper: it would hide from `isinstance` what else the
    engine can do, such as merging adapters.
    """
    kind: Any = type(engine)

    class Changed(kind):  # type: ignore[misc]
        async def generate(self, request: GenerateRequest) -> Completion:
            found: Completion = await super().generate(change(request))
            return found

    engine.__class__ = Changed
    return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class TailedVllm(VllmEngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return changed(VllmEngineConfig.build(self, generator, model_path), shortened)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailedNative(NativeEngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return changed(NativeEngineConfig.build(self, generator, model_path), shortened)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullVllm(VllmEngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return changed(VllmEngineConfig.build(self, generator, model_path), unstopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullNative(NativeEngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return changed(NativeEngineConfig.build(self, generator, model_path), unstopped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(NAMES), help="a size of Qwen3, or another model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", action="store_true", help="random ones too")
    parser.add_argument("--device", default="cpu", help="what draws them; a GPU is quicker (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="two narrow layers of the kind, for a CPU")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=JSON", help="fields of config.json")
    given = parser.parse_args()
    changes = {key: json.loads(value) for key, _, value in (pair.partition("=") for pair in given.set)}
    write_folder(NAMES[given.model], given.out, tiny=given.tiny, weights=given.weights, device=given.device, **changes)
    print(f"wrote {given.out}: {NAMES[given.model]}, {'with' if has_weights(given.out) else 'without'} weights")


if __name__ == "__main__":
    main()
