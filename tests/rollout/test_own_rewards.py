"""Rewards that an environment and its file define: `@reward` on a method or a function."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from agentgym.env import Environment, default_weights
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry, hookimpl
from agentgym.rewards import Reward
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Task

ENVIRONMENT_SOURCE = """
import os
from agentgym import Environment, reward

class Own(Environment):
    rewards = {"here": 2.0, "method": 0.5}
    def __init__(self, *, share=0.25): self.share = share
    def tasks(self, split, seed=0): return iter(())
    @reward(high=5)
    def method(self, episode): return self.share
    @reward(weight=-1, name="renamed")
    @staticmethod
    def static(episode): return 1.0
    @reward(inline=True, high=1e9, weight=0)
    def inline(self, episode): return os.getpid()
    @reward(weight=0)
    async def waits(self, episode): return self.share

@reward(high=1e9)
def here(episode): return os.getpid()

@reward
def unused(episode): return 1.0
"""


async def scored(scorer: Scorer) -> Episode:
    episode = Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0)
    await scorer.score(episode)
    return episode


@pytest.fixture
def own(tmp_path: Path) -> Environment:
    (tmp_path / "own.py").write_text(ENVIRONMENT_SOURCE)
    return PluginRegistry([]).environment(f"{tmp_path}/own.py:Own")(share=0.75)


async def test_marked_methods_and_functions_of_the_environments_file_are_its_rewards(own: Environment) -> None:
    """Plain ones run in a process that loads the file by its path, methods with their environment's options."""
    registry = PluginRegistry([])
    assert default_weights(own) == default_weights(type(own))
    assert default_weights(own) == {"here": 2.0, "method": 0.5, "inline": 0.0, "renamed": -1.0, "waits": 0.0}
    async with Scorer.of(own, registry) as s:
        result = await scored(s)
        assert result.error is None and s.floor == -1.0
    worker = result.rewards["here"]
    assert worker and worker != os.getpid()
    assert result.rewards == {
        "here": worker, "method": 0.75, "inline": os.getpid(), "renamed": 1.0, "waits": 0.75
    }  # fmt: skip
    assert result.reward == 2 * worker + 0.5 * 0.75 - 1


async def test_the_recipes_weights_replace_the_environments_and_own_rewards_win(own: Environment) -> None:
    class Plugin:
        @hookimpl
        def rewards(self) -> dict[str, Reward]:
            names = ("method", "theirs")
            return {name: Reward(name=name, function=lambda _: 0.5, inline=True) for name in names}

    registry = PluginRegistry([])
    registry.register(Plugin(), "theirs")
    file = sys.modules[type(own).__module__].__file__
    async with Scorer.of(own, registry, {"method": 1.0, "theirs": 1.0, f"{file}:unused": 0.5}) as s:
        result = await scored(s)
    assert result.rewards == {"method": 0.75, "theirs": 0.5, "unused": 1.0} and result.reward == 1.75
    with pytest.raises(UserError, match="two rewards are called 'unused'"):
        Scorer.of(own, registry, {"unused": 1.0, f"{file}:unused": 1.0})
    with pytest.raises(UserError, match=r"no reward 'metod'.*Did you mean 'method'\? The environment's file"):
        Scorer.of(own, registry, {"metod": 1.0})


def plugin(score: float, *environments: type) -> object:
    class Plugin:
        @hookimpl
        def rewards(self) -> dict[str, Reward]:
            return {"success": Reward(name="success", function=lambda _: score, inline=True)}

        @hookimpl
        def environments(self) -> dict[str, type]:
            return {one.name: one for one in environments}  # type: ignore[attr-defined]

    return Plugin()


class Weighs(Environment):
    rewards = {"success": 1.0}

    def tasks(self, split, seed=0):  # type: ignore[no-untyped-def]
        return iter(())


@pytest.mark.parametrize(
    ("key", "distributions", "chosen"),
    [
        ("success", ("agentgym", "foreign", "third"), 0.0),  # nobody replaces ours
        ("success", ("agentgym", "weighs", "third"), 0.1),  # but the environment's own distribution
        ("third:success", ("agentgym", "weighs", "third"), 0.2),
        ("agentgym:success", ("agentgym", "weighs", "third"), 0.0),
    ],
)
async def test_of_several_rewards_of_one_name_the_environments_is_taken_or_the_one_that_is_named(
    key: str, distributions: tuple[str, ...], chosen: float
) -> None:
    registry = PluginRegistry([])
    for number, distribution in enumerate(distributions):
        environments = [Weighs] if distribution == "weighs" else []
        registry.register(plugin(number / 10, *environments), f"p{number}").distribution = distribution
    async with Scorer.of(Weighs(), registry, {key: 1.0}) as s:
        result = await scored(s)
    assert result.rewards == {"success": chosen}


def test_two_foreign_rewards_of_one_name_are_refused_with_the_names_that_choose() -> None:
    registry = PluginRegistry([])
    for name in ("one", "two"):
        registry.register(plugin(0.0), name).distribution = f"{name}-rewards"
    with pytest.raises(UserError, match="write 'one-rewards:success' or 'two-rewards:success'"):
        Scorer.of(Weighs(), registry)
    with pytest.raises(UserError, match="'one-rewards' provides the rewards 'success'"):
        Scorer.of(Weighs(), registry, {"one-rewards:sucess": 1.0})


async def test_a_method_of_an_environment_that_cannot_be_sent_is_refused_with_advice(own: Environment) -> None:
    own.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="reward 'method' cannot be sent to a process"):
        Scorer.of(own, PluginRegistry([]))


async def test_a_reward_of_a_script_runs_here_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lonely := (lambda _: float(os.getpid())), "__module__", "__main__")
    one = Reward(name="lonely", function=lonely, high=1e9)
    async with Scorer([one], {"lonely": 1.0}) as s:
        assert (await scored(s)).reward == os.getpid()
    assert "'lonely' is defined in a script or notebook" in caplog.text
