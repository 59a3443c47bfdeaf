"""The rates of this machine, measured with the tiny policy; what they are is not tested, that they are plausible is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.config import apply_overrides
from agentgym.hooks import PluginRegistry
from agentgym.jobs.layers import finish_recipe
from agentgym.jobs.measuring import measure_rates
from agentgym.jobs.places import wanted_of
from agentgym.models.architecture import read_architecture
from agentgym.models.tiny import policy_path
from agentgym.planning.machine import Machine
from agentgym.planning.splits import best_splits


@pytest.mark.slow
@pytest.mark.hostile
def test_a_machines_rates_are_measured_and_a_run_is_planned_by_them(lab, tmp_path: Path) -> None:
    given = {"env": {"name": "math", "options": {"levels": [1]}}, "rollout": {"max_turn_tokens": 32}}
    more = ["loop.groups_per_step=2", "loop.group_size=4", "generator.max_batch=8"]
    recipe, _ = finish_recipe(apply_overrides(given, more))
    registry = PluginRegistry.discover()
    rates = asyncio.run(measure_rates(recipe, tmp_path, lab.reporter(), registry))
    assert [size for size, _ in rates.decode] == [1, 4, 8]
    assert len(rates.turns) == 2 * 2 * 4 and all(len(turns) == 1 for turns in rates.turns)
    assert all(0 < sampled <= 32 and new > 8 for [(new, sampled)] in rates.turns)
    assert rates.prefill > rates.train > 10 and 0 < rates.publish_s + rates.update_s < 30 and rates.host_s > 0
    wanted = wanted_of(recipe, read_architecture(policy_path()))
    [split] = best_splits(wanted, recipe.loop, replace(rates, signal=1.0), Machine(cores=2, memory_gib=64.0))
    mean = sum(sampled for [(_, sampled)] in rates.turns) / len(rates.turns)
    assert split.given and split.forecast.step_s * split.forecast.tokens_per_s == pytest.approx(8 * mean, rel=0.5)
