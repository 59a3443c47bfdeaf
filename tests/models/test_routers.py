"""Replayed choices of experts: one's own change nothing, others change the loss, and routers learn all the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agentgym.families.by_transformers import transformers_config
from agentgym.families.family import tiny_config
from agentgym.families.registry import architecture_of, families
from agentgym.models.routers import Routers, freeze

MIXTURES = [name for name, family in families().items() if family.router is not None]
TOKENS = torch.randint(3, 96, (2, 12), generator=torch.Generator().manual_seed(0))


def made(model_type: str) -> tuple[torch.nn.Module, Routers]:
    from transformers import AutoModelForCausalLM

    family = families()[model_type]
    config = tiny_config(family)
    built = transformers_config(config, "config.json")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(built, attn_implementation=family.attention, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    assert family.router is not None
    return model, Routers(model.model, architecture_of(config, "config.json"), family.router)


def loss_of(model: torch.nn.Module) -> Tensor:
    logits = model(input_ids=TOKENS, use_cache=False).logits
    loss: Tensor = -logits[:, :-1].log_softmax(-1).gather(2, TOKENS[:, 1:, None]).mean()
    return loss


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("model_type", MIXTURES)
def test_own_routes_change_nothing_and_others_change_the_loss(model_type: str) -> None:
    model, routers = made(model_type)
    routers.record()
    live = loss_of(model)
    live.backward()
    expected, routes = gradients(model), routers.taken()
    assert routes.shape == (24, routers.width) and len(routes.unique()) > 2
    routers.routes = routes.view(2, 12, -1)
    replayed = loss_of(model)
    replayed.backward()
    found = gradients(model)
    assert torch.equal(live, replayed) and found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-8)
    assert any("gate.weight" in name or "router.weight" in name for name in found), "routers learn by live scores"
    routers.routes = (routes.view(2, 12, -1) + 1) % 4
    assert abs(loss_of(model) - live) > 1e-3
    routers.routes = torch.full((2, 12, routers.width), -1)  # nobody recorded them: the live ones
    assert torch.equal(loss_of(model), live)


@pytest.mark.parametrize("model_type", MIXTURES)
def test_what_is_computed_again_sees_the_same_routes(model_type: str) -> None:
    model, routers = made(model_type)
    routers.routes = torch.randint(0, 2, (2, 12, routers.width // 2)).repeat_interleave(2, 2) * 2 + torch.tensor(
        [0, 1] * (routers.width // 2)
    )
    loss_of(model).backward()
    expected = gradients(model)
    for layer in model.model.layers:
        plain = layer.forward

        def again(*given: object, plain=plain, **named: object) -> object:
            return checkpoint(plain, *given, use_reentrant=False, **named)

        layer.forward = again
    loss_of(model).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-8)


def test_a_frozen_router_gets_no_gradient() -> None:
    model, _ = made("qwen3_moe")
    router = families()["qwen3_moe"].router
    assert router is not None
    freeze(model.model, architecture_of(tiny_config(families()["qwen3_moe"]), "config.json"), router)
    loss_of(model).backward()
    assert not any("gate.weight" in name and "experts" not in name for name in gradients(model))
