"""What a job checks and says before it starts anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from bare_gym import bare_gym
from real_templates import REAL

from agentgym import hookimpl
from agentgym.errors import UserError
from agentgym.evals.audit.stage import Stage
from agentgym.hooks import PluginRegistry
from agentgym.recipe import SandboxConfig
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.environments import build_environment
from agentgym.run.gym import Gym, with_volumes
from agentgym.run.settle import settle_sampling
from agentgym.runs.folder import RunFolder
from agentgym.testing import FakeSandbox
from agentgym.testing.fakes import ABLE
from agentgym.types import SandboxSpec, Task

ENVIRONMENT = f"env.name={Path(__file__).parents[1] / 'data' / 'repeat_number.py'}:RepeatNumber"


@pytest.mark.parametrize(("turns", "lines"), [(1, 0), (3, 1)])
async def test_a_template_that_drops_thoughts_is_named_in_one_line_where_there_are_several_turns(
    lab, tmp_path, turns, lines
):
    template = tmp_path / "qwen3.jinja"
    template.write_text(REAL["qwen3"], encoding="utf-8")
    reporter = lab.reporter()
    recipe = lab.recipe(ENVIRONMENT, f"model.chat_template={template}", f"rollout.max_turns={turns}")
    gym = await Gym.open(settle_sampling(recipe, tmp_path, print), reporter)
    await gym.close()
    assert len(reporter.notes) == lines
    assert all("drops the thoughts of earlier turns" in note for note in reporter.notes)


SOME_WITH_RULES = """
from agentgym import Environment, Task

class Mixed(Environment):
    rewards = {"success": 1.0}
    max_turns = 2

    def tasks(self, split, seed=0):
        for n in range(split == "test", 40, 2):
            rules = ({"role": "system", "content": "rules"},) if n == 20 else ()
            yield Task(task_id=str(n), prompt=(*rules, {"role": "user", "content": "hi"}), split=split)
"""


async def test_a_template_is_proven_for_each_shape_of_the_first_tasks(lab, tmp_path):
    (tmp_path / "mixed.py").write_text(SOME_WITH_RULES)
    (tmp_path / "mistral.jinja").write_text(REAL["mistral_v3_tekken"], encoding="utf-8")
    recipe = lab.recipe(f"env.name={tmp_path}/mixed.py:Mixed", f"model.chat_template={tmp_path}/mistral.jinja")
    with pytest.raises(UserError, match="rewrites history"):
        await Gym.open(settle_sampling(recipe, tmp_path, print), lab.reporter())


async def test_an_evaluation_set_can_be_measured_and_not_trained_on(lab, tmp_path):
    faulty = Path(__file__).parents[1] / "data" / "faulty"
    recipe = lab.recipe(f"env.name={faulty / 'sums.py'}:TestOnly")
    gym = await Gym.open(settle_sampling(recipe, tmp_path, print), lab.reporter(), training=False)
    await gym.close()
    with pytest.raises(UserError, match="train on sums"):
        await Gym.open(settle_sampling(recipe, tmp_path, print), lab.reporter())


class Prepares(FakeSandbox):
    """A sandbox whose tasks bring images."""

    def expect(self, specs: Iterable[SandboxSpec]) -> None:
        self.ran += [str(spec.image) for spec in specs]

    def images(self) -> dict[str, str]:
        return {name: "sha256:1" for name in self.ran}


async def test_images_of_tasks_are_asked_for_ahead_and_saved_with_the_run(tmp_path: Path) -> None:
    environment = build_environment(PluginRegistry.discover(), ENVIRONMENT.partition("=")[2], {})
    gym = replace(bare_gym(environment), backend=Prepares(), capabilities=ABLE)
    tasks = [Task(task_id=name, prompt=(), sandbox=SandboxSpec(session=True, image=name)) for name in "ab"]
    with RunFolder.create(tmp_path, "run") as folder:
        gym.record_sandbox(folder)
        gym.expect([*tasks, Task(task_id="none", prompt=())])
        await gym.close()
    assert folder.load_sandbox()["images"] == {"a": "sha256:1", "b": "sha256:1"}


class Runs(FakeSandbox):
    """It judges nothing, and must not be started."""

    async def start(self):
        pytest.fail("it was started")


class Plugin:
    @hookimpl
    def sandboxes(self):
        return {"runs": lambda options: Runs(able=replace(ABLE, grades=False))}


@pytest.mark.parametrize("command", ["train", "eval", "envs check"])
async def test_graded_tasks_are_refused_before_anything_starts(lab, tmp_path, command):
    registry = PluginRegistry.discover()
    registry.register(Plugin(), "runs")
    recipe = lab.recipe("env.name=code_exec", "sandbox.name=runs")
    with pytest.raises(UserError, match=r"'runs' runs code and judges no solutions.*take one of: .*bubblewrap"):
        if command == "envs check":
            environment = build_environment(registry, "code_exec", {})
            drawn = Stage.open(
                environment, environment.tasks("test"), registry, rewards={}, sandbox="runs", sandbox_options={},
                config=RolloutConfig(), say=print,
            )  # fmt: skip
            async with drawn:
                pass
        else:
            settled = settle_sampling(recipe, tmp_path, print, registry)
            await Gym.open(settled, lab.reporter(), training=command == "train")


def test_an_agents_volumes_go_to_the_sandbox_beside_the_users_and_none_without_them_is_taken() -> None:
    registry = PluginRegistry.discover()
    given = SandboxConfig(options={"volumes": {"/data": "mine"}, "cpus": 2.0})
    found = with_volumes(given, {"/.agent": "program"}, registry)
    assert found.options == {"volumes": {"/data": "mine", "/.agent": "program"}, "cpus": 2.0}
    monty = SandboxConfig(name="monty")
    assert with_volumes(monty, {}, registry) == monty
    with pytest.raises(UserError, match=r"sandbox\.name is monty, and agent\.where is session, .* one of: docker$"):
        with_volumes(monty, {"/.agent": "program"}, registry)
