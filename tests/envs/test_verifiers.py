"""Environment packages of verifiers: splits, rewards, and whose fault it is when one fails.

They are played by a small library of the same interface; `tests/envs/test_verifiers_packages.py` takes the real one.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentgym.config_docs import options_of
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.run.gym import _agent_of
from agentgym.run.layers import finish_recipe
from agentgym.testing import CharacterTokenizer
from agentgym.types import Outcome, Stop
from agentgym_envs.verifiers import Verifiers
from tests.playing_packages import play
from tests.test_killable import wait_until_gone

SMALL = Path(__file__).parents[1] / "data" / "small_verifiers"


@pytest.fixture
def package(monkeypatch):
    """package(**options): the environment of the package `small_words`; its processes end with the test."""
    monkeypatch.setenv("PYTHONPATH", str(SMALL))
    made: list[Verifiers] = []

    def make(environment="small_words", **options):
        options = {"python": sys.executable, "variables": ["PYTHONPATH"], **options}
        made.append(Verifiers(environment=environment, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def test_a_package_gives_the_reward_of_what_was_sampled_for_it_many_at_a_time(package):
    environment = package(success_at=0.5)
    [right, *_] = (task.prompt[0]["content"].removeprefix("say ") for task in environment.tasks("test"))
    for said, reward in ((right, 1.0), ("no", 0.0)):
        for episode in await play(environment, said, count=8):
            assert (episode.outcome, episode.stop, episode.reward) == (Outcome.SCORED, Stop.DONE, reward)
            assert episode.success == bool(reward) and episode.info["metrics"] == {"chars": len(said)}
            [turn] = episode.turns
            assert turn.completion_ids == CharacterTokenizer().encode(f"{said}<|im_end|>")


async def test_a_reward_counts_within_the_range_that_the_options_give(package):
    [episode] = await play(package(low=-1, high=3), "much")
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 2.5)
    [episode] = await play(package(), "much")
    assert episode.outcome is Outcome.INFRA_ERROR and "give the range as env.options.low" in episode.error.message


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("die", "the process of small_words exited with 3"),
        ("raise", "small_words failed: ZeroDivisionError: by the package"),
        ("fail", "small_words reports an error of its rollout: ModelError('no images')"),
        ("nan", "small_words gave the reward nan; a finite number was expected"),
        ("text", "small_words gave the reward '1.0'"),
        ("none", "small_words gave the reward None"),
    ],
)
async def test_what_a_package_does_wrong_is_its_own_fault_and_played_again(package, said, message):
    environment = package()
    [episode] = await play(environment, said)
    assert (episode.outcome, episode.retries) == (Outcome.INFRA_ERROR, 1)
    assert episode.error.source == "environment:verifiers.play" and message in episode.error.message
    [after] = await play(environment, said, "no")  # the first time it fails again
    assert (after.outcome, after.retries) == (Outcome.SCORED, 1)


async def test_a_package_that_hangs_is_not_the_policys_fault_and_ends_with_its_episode(package):
    environment = package()
    [episode] = await play(environment, "hang", episode_time_s=0.5)
    assert (episode.outcome, episode.stop) == (Outcome.INFRA_ERROR, Stop.TIME)
    assert "for the environment and its sandbox for the rest" in episode.error.message
    assert episode.error.source == "environment:verifiers.play"  # so an evaluation counts it as broken, not as cut
    [episode] = await play(environment, "no")
    assert episode.outcome is Outcome.SCORED


@pytest.mark.hostile
async def test_a_package_that_holds_its_own_event_loop_is_killed_and_plays_the_next_episode(package):
    environment = package()
    [episode] = await play(environment, "block", episode_time_s=0.5)
    assert (episode.outcome, episode.stop) == (Outcome.INFRA_ERROR, Stop.TIME)
    [episode] = await play(environment, "no")
    assert episode.outcome is Outcome.SCORED


def test_environments_that_are_alike_load_their_package_once(package):
    first, again, other = package(), package(success_at=1.0), package(arguments={"size": 5})
    before = first._process.starts
    sizes = [len([*one.tasks("test")]) for one in (first, again, other, first)]
    assert sizes == [4, 4, 1, 4]
    assert again._process is first._process is other._process and len(first._process.opened) == 2
    assert first._process.starts == 1 + before


@pytest.mark.parametrize(("size", "num_test"), [(5, 1), (20, 4), (1000, range(150, 250))])
def test_every_fifth_row_is_held_out_where_the_package_holds_none_out(package, size, num_test):
    environment = package(arguments={"size": size})
    train, test = ({task.prompt[0]["content"] for task in environment.tasks(split)} for split in ("train", "test"))
    assert len(train | test) == size == len(train) + len(test)
    assert len(test) in num_test if isinstance(num_test, range) else len(test) == num_test
    assert [*environment.tasks("train", 1)] != [*environment.tasks("train", 2)]
    assert [*environment.tasks("test", 1)] == [*environment.tasks("test", 2)]


def test_held_out_rows_are_the_packages_own_or_those_of_other_arguments(package):
    own = package(arguments={"size": 5, "own_test": 3})
    assert [len([*own.tasks(split)]) for split in ("train", "test")] == [5, 3]
    other = package(arguments={"size": 5}, test_arguments={"size": 7})
    assert [len([*other.tasks(split)]) for split in ("train", "test")] == [5, 7]
    with pytest.raises(UserError, match="small_words has no rows for the train split"):
        [*package(arguments={"size": 0, "own_test": 3}).tasks("train")]


async def test_a_row_that_is_another_one_after_its_package_was_loaded_again_is_not_played(package):
    environment = package(arguments={"drawn": True})
    [episode] = await play(environment, "die", "no")
    assert (
        episode.outcome is Outcome.INFRA_ERROR
        and "is another one than when its tasks were drawn" in episode.error.message
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": "unknown"}, r"no environment package 'unknown' in .*python.*; install it there"),
        ({"python": "no-such-python"}, r"there is no interpreter 'no-such-python'"),
        ({"variables": []}, r"has no package verifiers: .* -m pip install verifiers"),
        ({"variables": ["NOT_SET"]}, r"env.options.variables names NOT_SET, which is not set"),
        ({"arguments": {"sise": 3}}, r"unexpected keyword argument 'sise'"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_when_tasks_are_drawn(package, options, message):
    with pytest.raises(UserError, match=message):
        next(iter(package(**options).tasks("train")))


def test_the_package_is_named_with_the_environment_and_its_options_are_checked():
    registry = PluginRegistry.discover()
    made = registry.environment("verifiers:small_words")
    with closing(made(test_tasks=3)) as environment:
        assert isinstance(environment, Verifiers) and environment.name == "verifiers" and made.version == 1
    assert options_of(made) == options_of(Verifiers) and made.__doc__ == Verifiers.__doc__  # for `envs show`
    with pytest.raises(UserError, match="'small_words' does not exist in math"):
        registry.environment("math:small_words")  # has no such first option
    with pytest.raises(UserError, match="name an environment package: --env verifiers:NAME"):
        registry.environment("verifiers")()


@pytest.mark.parametrize(
    ("agent", "here", "message"),
    [
        ("mini_swe", True, "plays its episodes with a program of its own; leave the agent '.*MiniSwe' out"),
        ("chat", False, "the environment 'verifiers' cannot play with a policy behind a server; give a model"),
    ],
)
def test_no_agent_and_no_served_policy_plays_in_the_place_of_the_package(package, agent, here, message):
    recipe, _ = finish_recipe({"env": {"name": "math"}, "agent": {"name": agent}})
    with pytest.raises(UserError, match=message):
        _agent_of(recipe, package(), here=here)


@pytest.mark.parametrize(
    "end", ["pass", "environment.close(); sys.stdin.read()", "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_all_that_a_package_started_ends_with_its_environment_and_with_a_command_that_exits_or_is_killed(package, end):
    code = f"""
import os, signal, sys
from agentgym_envs.verifiers import Verifiers
environment = Verifiers(environment="small_words", python=sys.executable, variables=["PYTHONPATH"],
                        arguments={{"child": True}})
print(next(iter(environment.tasks("test"))).prompt[0]["content"], flush=True)
{end}
"""
    command = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with command:
        assert command.stdout is not None
        wait_until_gone(int(command.stdout.readline()))
