"""Gymnasium's toy environments are played in words; the plan wins, silence does not, and garbage is answered."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

pytest.importorskip("gymnasium")
import gymnasium

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.testing import play
from agentgym.types import Task
from agentgym_envs.gymnasium.environment import GymnasiumEnvironment
from agentgym_envs.gymnasium.planning import best_actions
from agentgym_envs.gymnasium.words import find_action


def test_the_plugin_gives_the_environment_and_says_what_it_needs() -> None:
    registry = PluginRegistry.discover()
    assert registry.environment("gymnasium") is GymnasiumEnvironment
    named = registry.environment(f"gymnasium:{__name__}:Echo-v0")()  # ID may name the module that has it
    assert next(named.tasks("train")).task_id.startswith(f"gymnasium/{__name__}:Echo-v0/")
    assert "pip install" in GymnasiumEnvironment.requirements


@pytest.mark.parametrize("id", ["FrozenLake-v1", "Taxi-v4"])
async def test_the_plan_always_wins_and_silence_never(id: str) -> None:
    environment = GymnasiumEnvironment(id=id, test_tasks=12)
    for task in environment.tasks("test"):
        plan = environment.solve(task)
        assert plan is not None
        episode = await play(environment, task, plan)
        assert episode.success and episode.info["ended"] == "terminated"
        silent = await play(environment, task, [{"role": "assistant", "content": ""}] * 40)
        assert not silent.success and silent.info["steps"] == 0


async def test_a_hole_ends_the_episode_without_success() -> None:
    environment = GymnasiumEnvironment(kwargs={"desc": ["SH", "FG"], "is_slippery": False})
    task = one_task(environment)
    assert "[S]H\nFG" in task.prompt[0]["content"]
    lost = await play(environment, task, "I go right.")
    assert not lost.success and lost.info == {"success": False, "return": 0.0, "steps": 1, "ended": "terminated"}
    script: list[Any] = [{"role": "assistant", "content": said} for said in ("hm", "down", "Not up, but right")]
    won = await play(environment, task, script)
    assert won.success and won.info["steps"] == 2
    assert won.messages[2]["content"].startswith("That names no action. Answer with one of: left, down")
    assert "SH\n[F]G" in won.messages[4]["content"]


def one_task(environment: GymnasiumEnvironment) -> Task:
    """Of an environment whose episodes all begin alike, which has tasks in one split only."""
    for split in ("train", "test"):
        try:
            return next(environment.tasks(split))  # type: ignore[arg-type]
        except UserError as error:
            assert "belong to the other split" in str(error)
    raise AssertionError


def test_no_beginning_is_in_both_splits_and_the_seed_fixes_the_order() -> None:
    environment = GymnasiumEnvironment(test_tasks=60)
    test = [task.prompt for task in environment.tasks("test")]
    train = [task.prompt for task in islice(environment.tasks("train"), 300)]
    assert len({*map(str, test)}) == 60 and not {*map(str, test)} & {*map(str, train)}
    assert train[:20] == [task.prompt for task in islice(GymnasiumEnvironment().tasks("train"), 20)]
    assert train[:20] != [task.prompt for task in islice(environment.tasks("train", 1), 20)]


async def test_observations_that_are_no_drawing_and_other_words_for_actions_work() -> None:
    environment = GymnasiumEnvironment(id="Blackjack-v1", actions=("stop", "card"))
    task = next(environment.tasks("train"))
    assert "The dealer shows" in task.prompt[0]["content"] and "stop, card" in task.prompt[0]["content"]
    episode = await play(environment, task, "stop")
    assert episode.info["ended"] == "terminated" and episode.success == (episode.info["return"] == 1.0)
    assert environment.solve(task) is None  # nobody knows the next card


class Echo(gymnasium.Env[str, str]):
    """Ends at `stop`; fails at every word that its space does not have, and at `broken`."""

    action_space = gymnasium.spaces.Text(6)
    observation_space = gymnasium.spaces.Text(20)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"room{seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action not in ("stop", "on"):
            raise KeyError(action)
        return action, 1.0, action == "stop", False, {}


gymnasium.register("Echo-v0", entry_point=Echo)


async def test_a_text_that_is_no_action_is_the_agents_mistake_and_a_failure_is_not() -> None:
    environment = GymnasiumEnvironment(id="Echo-v0")
    task = next(environment.tasks("train"))
    script: list[Any] = [{"role": "assistant", "content": said} for said in ("much too long", "on", "", "stop")]
    episode = await play(environment, task, script)
    assert episode.success and episode.info["steps"] == 2
    assert "not allowed" in episode.messages[2]["content"] and "not allowed" in episode.messages[6]["content"]
    with pytest.raises(AssertionError, match="KeyError"):
        await play(environment, task, "broken")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("left", 0),
        ("LEFT!", 0),
        ("not left but up", 3),
        ("2", 2),
        ("pick-up", None),
        ("9", None),
        ("", None),
        ("x", None),
    ],
)
def test_the_last_action_that_is_named_counts(text: str, action: int | None) -> None:
    assert find_action(text, ("left", "down", "right", "up")) == action


def test_the_plan_weighs_chance_and_gain() -> None:
    stay, safe, bold = (1.0, 0, 0.0, False), (1.0, 1, 1.0, True), (0.5, 1, 3.0, True)
    assert (
        best_actions({0: {0: [stay], 1: [safe], 2: [bold, (0.5, 1, 0.0, True)]}, 1: {0: [(1.0, 1, 0.0, True)]}})[0] == 2
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "FrozenLik-v1"}, "FrozenLik"),
        ({"id": "CartPole-v1", "kwargs": {"colour": 1}}, "cannot be made"),
        ({"id": "Pendulum-v1"}, "only Discrete and Text"),
        ({"actions": ("a", "b")}, "has 4 actions, and `actions` names 2"),
        ({"success": "rewards"}, "Did you mean 'reward'"),
        ({"max_steps": 0}, "max_steps 0"),
    ],
)
def test_what_gymnasium_or_words_cannot_do_is_the_users_mistake(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        next(GymnasiumEnvironment(**options).tasks("train"))
