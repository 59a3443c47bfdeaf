"""trainer.router_replay makes the generators record routes, or is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentgym.errors import UserError
from agentgym.families.family import tiny_config
from agentgym.families.registry import architecture_of, families
from agentgym.recipe import Recipe
from agentgym.run.settle import settle_routes


def test_generators_record_what_the_trainer_replays() -> None:
    mixture, dense = (architecture_of(tiny_config(families()[name]), "config.json") for name in ("olmoe", "llama"))
    plain = Recipe()
    asking = replace(plain, trainer=replace(plain.trainer, router_replay="rollout"))
    assert settle_routes(plain, mixture) is plain and not plain.generator.routes
    assert settle_routes(asking, mixture).generator.routes
    with pytest.raises(UserError, match="the model is a llama, of which no routers are known"):
        settle_routes(asking, dense)
