"""The suite of environments: the findings of `agentgym envs check`, a test for each promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from agentgym.evals.audit.check import CheckConfig, check_environment
from agentgym.evals.audit.findings import Report
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import SandboxOptions
from agentgym.testing.suite import Suite, promise
from agentgym.types import Json

ENVIRONMENT = "agentgym.env:Environment"


class EnvironmentConformance(Suite):
    """Subclass it in a test file, `class TestMine(EnvironmentConformance)`, and name the environment.

    The environment is played once for all tests, as `agentgym envs check` does, which docs/environment_checks.md
    describes. It is found by its name, so that other processes find it too.
    """

    environment: ClassVar[str] = ""
    """By its plugin's name, or by import path, `package.module:Class`."""
    options: ClassVar[Mapping[str, Json]] = {}
    rewards: ClassVar[Mapping[str, float]] = {}
    sandbox: ClassVar[str] = "auto"
    sandbox_options: ClassVar[SandboxOptions] = {}
    num_tasks: ClassVar[int] = 8
    seed: ClassVar[int] = 0
    only: ClassVar[Sequence[str]] = ()
    """Parts of the check, as `agentgym envs check --only`; empty is all."""
    allowed: ClassVar[Sequence[str]] = ()
    """Kinds of findings that are accepted, or `kind:where`."""

    @promise(f"{ENVIRONMENT}.tasks", "Tasks in an order that the seed fixes.")
    async def test_a_seed_gives_the_same_tasks_in_every_process(self) -> None:
        await self._none_of("tasks_change")

    @promise(f"{ENVIRONMENT}.tasks", "`train` may be endless; `test` ends.")
    async def test_every_split_has_tasks_and_test_ends(self) -> None:
        await self._none_of("no_tasks", "endless_test", "repeated_tasks", "equal_ids")

    @promise(f"{ENVIRONMENT}.tasks", "No task may be in both splits.")
    async def test_no_task_is_in_both_splits(self) -> None:
        await self._none_of("split_overlap", "structure_overlap")

    @promise("agentgym.types:Task", "answer: JSON of the environment's own")
    async def test_answers_can_be_saved(self) -> None:
        await self._none_of("not_json")

    @promise("agentgym.types:Task", "One thing to do.")
    async def test_tasks_can_be_played(self) -> None:
        await self._none_of("bad_task", "long_prompt")

    @promise(ENVIRONMENT, "One object serves many episodes at a time.")
    async def test_episodes_do_not_disturb_each_other(self) -> None:
        await self._none_of("shared_state")

    @promise(ENVIRONMENT, "One object serves many episodes at a time.")
    async def test_no_call_keeps_other_episodes_waiting(self) -> None:
        await self._none_of("blocks", "slow_tasks", "slow_rewards")

    @promise(f"{ENVIRONMENT}.solve", "How to do the task: the right assistant messages one by one")
    async def test_what_solve_says_is_rewarded_as_right(self) -> None:
        await self._none_of("oracle_loses", "small_gap")

    @promise(f"{ENVIRONMENT}.reply", "Answer the agent's last message")
    async def test_whatever_is_said_is_answered(self) -> None:
        await self._none_of("crash", "hang")

    @promise(
        "agentgym.rewards:Reward",
        "A reward function with its name, its default weight, its range, and how long it may take.",
    )
    async def test_rewards_keep_their_range_and_are_the_same_in_every_process(self) -> None:
        await self._none_of("out_of_range", "scores_change")

    @promise(
        "agentgym.env:EpisodeContext",
        '`info["success"]` is True where the goal was reached, and False where it was not',
    )
    async def test_nothing_but_a_right_answer_is_rewarded_like_one(self) -> None:
        await self._none_of("gamed")

    async def report(self) -> Report:
        """The check of all promises, made once for the class."""
        if "report" not in self._shared:
            assert self.environment, "name the environment: `environment = 'my_env'`"
            config = CheckConfig(
                name=self.environment,
                options=self.options,
                rewards=self.rewards,
                num_tasks=self.num_tasks,
                seed=self.seed,
                sandbox=self.sandbox,
                sandbox_options=self.sandbox_options,
                only=self.only,
                allowed=self.allowed,
            )
            self._shared["report"] = await check_environment(PluginRegistry.discover(), config, lambda text: None)
        found: Report = self._shared["report"]
        return found

    async def _none_of(self, *kinds: str) -> None:
        found = [one for one in (await self.report()).findings if one.kind in kinds]
        assert not found, "\n".join(f"{one.kind} ({one.where}): {one.text} {one.detail}".rstrip() for one in found)
