"""The environment: tasks, rollouts and rewards of an environment package of the library verifiers."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from agentgym.agents import AgentContext, ProgramEnvironment
from agentgym.env import EpisodeContext
from agentgym.errors import InfraError, UserError
from agentgym.rewards import reward
from agentgym.types import Episode, Json, Message, Split, Task
from agentgym_envs.packages.process import PackageProcess
from agentgym_envs.packages.rows import Row, Rows, checked_reward, finite_of, messages_of, numbers_of, rows_of_split

PROGRAM: Final = Path(__file__).with_name("program.py")
ROWS_AT_ONCE: Final = 64


class Verifiers(ProgramEnvironment[None]):
    """An environment package as its author wrote it, in a Python of its own: it asks the policy, and gives the reward.

    Recorded in `info`: reward (the package's own), metrics (its scores by name), ended (its reason), package (versions
    of the package, of verifiers and of Python), success (only with `success_at`).
    """

    name: ClassVar[str] = "verifiers"
    shorthand: ClassVar[str] = "environment"
    requirements: ClassVar[str] = "pip install verifiers and the environment package, in env.options.python"

    def __init__(
        self,
        *,
        environment: Annotated[str, "name of the environment package; --env verifiers:NAME gives it, too"] = "",
        python: Annotated[str, "the interpreter that has it and verifiers; empty is this one"] = "",
        arguments: Annotated[
            Mapping[str, Json], "of load_environment, or the configuration of the new interface, by its own keys"
        ] = {},
        test_arguments: Annotated[
            Mapping[str, Json] | None, "the same for the held-out tasks; none is every fifth row of the package's"
        ] = None,
        success_at: Annotated[
            float | None, "reward from which on an episode is a success; none leaves it unknown"
        ] = None,
        low: Annotated[float, "the package's least reward, which an invalid episode earns"] = 0.0,
        high: Annotated[float, "the package's greatest reward"] = 1.0,
        group_rewards: Annotated[
            bool, "play a package whose rewards compare the rollouts of a group; in evaluations each is a group of one"
        ] = False,
        test_tasks: Annotated[int, "held-out tasks at most"] = 512,
        start_s: Annotated[float, "seconds for loading the package, its downloads included"] = 600.0,
        unsafe: Annotated[bool, "allow a harness that runs the policy's commands on this machine"] = False,
        variables: Annotated[Sequence[str], "names of more environment variables that the package gets"] = (),
    ) -> None:
        """Raises UserError for a value that is not allowed; the package is loaded when tasks are asked for."""
        if not environment:
            raise UserError("verifiers: name an environment package: --env verifiers:NAME, or env.options.environment")
        if test_tasks < 1 or start_s <= 0:
            raise UserError(f"verifiers: test_tasks {test_tasks}, start_s {start_s:g}: give at least 1, and above 0")
        if not low < high:
            raise UserError(f"verifiers: low {low:g}, high {high:g}: low must be below high")
        self._low, self._high = low, high
        self.reward_ranges = {"score": (low, high)}
        self._environment, self._success_at = environment, success_at
        self._test_tasks, self._start_s = test_tasks, start_s
        self._arguments = {"train": dict(arguments), "test": None if test_arguments is None else dict(test_arguments)}
        self._unsafe, self._compares = unsafe, group_rewards
        if group_rewards:

            @reward(scope="group", low=low - high, high=high - low, timeout_s=start_s)
            async def compared(episodes: Sequence[Episode]) -> list[float]:
                return await self._compare(episodes)

            self.compared = compared
        self._process = PackageProcess.shared("verifiers", environment, PROGRAM, python, variables)

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        slot = "test" if split == "test" and self._arguments["test"] is not None else "train"
        num_train, num_held_out = self._open(slot)["sizes"]
        held_out = bool(num_held_out) and split == "test"
        shared = not num_held_out and self._arguments["test"] is None  # one set of rows for both splits
        size = num_held_out if held_out else num_train
        if size == 0:
            raise UserError(f"verifiers: {self._environment} has no rows for the {split} split")
        found = self._rows(slot, held_out, numbers_of(size, seed if split == "train" else None))
        found = rows_of_split(found, split, size) if shared else found
        asks_itself = f"Task {{}} of {self._environment}, which asks by itself."
        for number, prompt, digest in itertools.islice(found, self._test_tasks if split == "test" else None):
            yield Task(
                task_id=f"verifiers/{self._environment}/{split if not shared else 'row'}/{number}",
                prompt=messages_of(prompt) or (Message(role="user", content=asks_itself.format(number)),),
                answer={"slot": slot, "held_out": held_out, "number": number, "digest": digest},
                split=split,
            )

    async def start(self, context: EpisodeContext[None]) -> None:
        context.info.update(reward=0.0, metrics={}, package=(await self._ready(context.task))["versions"])
        if self._success_at is not None:
            context.info["success"] = False

    async def play(self, context: EpisodeContext[None], policy: AgentContext) -> None:
        await self._ready(context.task)
        row = _row_of(context.task)
        row["slot"] = self._slot(str(row["slot"]))
        played = await self._process.ask("play", **row, url=policy.url, key=policy.key, model=policy.model)
        if played["error"]:
            raise InfraError(f"{self._environment} reports an error of its rollout: {played['error']}")
        given = checked_reward(played["reward"], self._environment, self._low, self._high)
        context.info.update(reward=given, metrics=finite_of(played["metrics"]), ended=played["ended"])
        if self._compares:
            context.info["rollout"] = played["rollout"]
        if self._success_at is not None:
            context.info["success"] = given >= self._success_at

    @reward(inline=True)
    def score(self, episode: Episode) -> float:
        """The package's own reward; 0 where a limit ended the episode before there was one."""
        return float(str(episode.info["reward"]))

    async def _compare(self, episodes: Sequence[Episode]) -> list[float]:
        """What the package's reward of each changes by the others of its group."""
        slot = self._slot(str(_row_of(episodes[0].task)["slot"]))
        rollouts = [episode.info["rollout"] for episode in episodes]
        changes = []
        for episode, (given, metrics) in zip(
            episodes, await self._process.ask("compare", slot=slot, rollouts=rollouts), strict=True
        ):
            episode.info["metrics"] = finite_of(metrics)
            changes.append(checked_reward(given, self._environment, self._low, self._high) - self.score(episode))
        return changes

    def close(self) -> None:
        """End the package's process, which equal environments share; it is started again when it is needed."""
        self._process.close()

    async def _ready(self, task: Task) -> dict[str, Any]:
        """The package, loaded; again after its process has died."""
        slot = str(_row_of(task)["slot"])
        return self._opened(slot) or await asyncio.to_thread(self._open, slot)

    def _open(self, slot: str) -> dict[str, Any]:
        """What the package says of itself. Raises UserError where it can't be loaded."""
        with self._process.opening:
            if said := self._opened(slot):
                return said
            package = {"name": self._environment, "arguments": self._arguments[slot], "unsafe": self._unsafe}
            try:
                found: dict[str, Any] = self._ask("open", slot=self._slot(slot), **package, compares=self._compares)
            except InfraError as error:
                raise UserError(f"verifiers: {error}") from error
            self._process.opened[self._slot(slot)] = self._process.starts, found
            return found

    def _opened(self, slot: str) -> dict[str, Any]:
        """Nothing where it is not, or no longer."""
        start, said = self._process.opened.get(self._slot(slot), (0, {}))
        return said if start == self._process.starts and self._process.alive else {}

    def _slot(self, slot: str) -> str:
        """Its name in the process: by what it is opened with."""
        return json.dumps([self._arguments[slot], self._unsafe, self._compares], sort_keys=True)

    def _rows(self, slot: str, held_out: bool, numbers: Iterator[int]) -> Rows:
        while some := [*itertools.islice(numbers, ROWS_AT_ONCE)]:
            fields = {"slot": self._slot(slot), "held_out": held_out, "numbers": some}
            self._open(slot)
            try:
                rows = self._ask("rows", **fields)
            except InfraError:
                if self._process.alive:
                    raise
                self._open(slot)  # an episode has ended the process meanwhile
                rows = self._ask("rows", **fields)
            yield from (Row(number, *row) for number, row in zip(some, rows, strict=True))

    def _ask(self, op: str, **fields: object) -> Any:
        what = "loading the environment package" if op == "open" else "waiting for tasks of the environment package"
        return self._process.wait(what, self._start_s, op, **fields)


def _row_of(task: Task) -> dict[str, Json]:
    assert isinstance(task.answer, Mapping), "the task is of this environment"
    return dict(task.answer)
