"""The transformers engine returns the experts that its routers chose, each as its token was first computed."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
from torch import nn

from agentgym.errors import UserError
from agentgym.families.family import tiny_config
from agentgym.families.registry import families
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.transformers.engine import TransformersEngine
from agentgym.generators.transformers.scheduler import PlainScheduler
from agentgym.models.routers import routers_of
from agentgym.models.tiny import policy_path
from agentgym.types import Completion, GenerateRequest, SamplingParams

PROMPT = (5, 9, 14, 3)


def write(folder: Path, seed: int) -> nn.Module:
    from transformers import AutoModelForCausalLM

    from agentgym.families.by_transformers import transformers_config

    built = transformers_config(tiny_config(families()["qwen3_moe"]), "config.json")
    torch.manual_seed(seed)
    model: nn.Module = AutoModelForCausalLM.from_config(built, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def ended(scheduler: PlainScheduler, steps: int = 20) -> Completion:
    for _ in range(steps):
        for _, completion in scheduler.step():
            return completion
    raise AssertionError("it did not end")


@torch.inference_mode()
def routes_of(model: nn.Module, tokens: tuple[int, ...], folder: Path) -> list[list[int]]:
    routers = routers_of(model.model, folder)  # type: ignore[arg-type]
    routers.record()
    model(input_ids=torch.tensor([tokens]), use_cache=False)
    found: list[list[int]] = routers.taken().tolist()
    return found


@torch.inference_mode()
def test_each_token_has_the_route_of_the_weights_that_computed_it_first(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old", 1), write(tmp_path / "new", 2)
    folder = tmp_path / "old"
    scheduler = PlainScheduler(old, max_batch=2, routers_of=lambda model: routers_of(model.model, folder))  # type: ignore[arg-type]
    sampling = SamplingParams(max_tokens=7, temperature=1.0, seed=3)
    scheduler.submit(1, GenerateRequest(prompt_ids=PROMPT, sampling=sampling))
    for _ in range(3):
        assert scheduler.step() == []
    scheduler.set_weights(1, new)  # the context is computed again, by other weights
    completion = ended(scheduler)
    assert [(span.version, span.end) for span in completion.versions] == [(0, 3), (1, 7)]
    tokens, routes = PROMPT + completion.completion_ids, completion.routes
    assert routes is not None and (routes.start, routes.end, routes.width) == (0, len(tokens) - 1, 4)
    rows = torch.tensor(array("H", routes.ids)).view(-1, 4).tolist()
    by_old, by_new = routes_of(old, tokens, folder), routes_of(new, tokens, folder)
    switched = len(PROMPT) + 2  # tokens that were computed before the update
    assert rows == by_old[:switched] + by_new[switched:-1] and by_old[:switched] != by_new[:switched]


@torch.inference_mode()
def test_a_next_turn_gets_the_routes_that_it_lacks(tmp_path: Path) -> None:
    model = write(tmp_path, 1)
    scheduler = PlainScheduler(model, max_batch=2, routers_of=lambda one: routers_of(one.model, tmp_path))  # type: ignore[arg-type]
    sampling = SamplingParams(max_tokens=2, temperature=1.0, seed=3)
    scheduler.submit(1, GenerateRequest(prompt_ids=PROMPT, sampling=sampling, routes_from=3))
    routes = ended(scheduler).routes
    assert routes is not None and (routes.start, routes.end) == (3, 5)


def test_a_dense_model_has_no_routes_to_return(tmp_path: Path) -> None:
    engine = TransformersEngine(GeneratorConfig(routes=True, device="cpu"), str(policy_path()))
    with pytest.raises(UserError, match=r"is a qwen3, of which no routers are known.*gpt_oss, olmoe, qwen3_moe"):
        engine._load()
