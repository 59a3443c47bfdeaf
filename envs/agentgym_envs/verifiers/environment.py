"""The environment: tasks, rollouts and rewards of an environment package of the library verifiers."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias

from agentgym.agents import AgentContext, ProgramEnvironment
from agentgym.env import EpisodeContext
from agentgym.errors import InfraError, UserError
from agentgym.programs import waiting_for
from agentgym.rewards import reward
from agentgym.types import Episode, Json, Message, Split, Task
from agentgym_envs.verifiers.process import PackageProcess, value_of

TEST_ONE_IN: Final = 5  # rows that are held out where the package has none of its own for that
FEW_ROWS: Final = 200  # of which exactly one in five is held out, and at least one
ROWS_AT_ONCE: Final = 64
RANGE_SLACK: Final = 1e-6  # rewards are sums of floats
MAX_FRUITLESS: Final = 2000  # rows of an endless package in a row without one of the split


class Row(NamedTuple):
    """prompt: messages, a text or None. digest: a number that is made of all that is in it."""

    number: int
    prompt: Any
    digest: int


Rows: TypeAlias = Iterator[Row]


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
        self._unsafe = unsafe
        self._process = PackageProcess(environment, python, variables)
        weakref.finalize(self, self._process.close)  # also when Python exits
        self._opened: dict[str, tuple[int, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        slot = "test" if split == "test" and self._arguments["test"] is not None else "train"
        num_train, num_held_out = self._open(slot)["sizes"]
        held_out = bool(num_held_out) and split == "test"
        shared = not num_held_out and self._arguments["test"] is None  # one set of rows for both splits
        size = num_held_out if held_out else num_train
        if size == 0:
            raise UserError(f"verifiers: {self._environment} has no rows for the {split} split")
        found = self._rows(slot, held_out, _numbers(size, seed if split == "train" else None))
        found = _of_split(found, split, size) if shared else found
        for number, prompt, digest in itertools.islice(found, self._test_tasks if split == "test" else None):
            yield Task(
                task_id=f"verifiers/{self._environment}/{split if not shared else 'row'}/{number}",
                prompt=_prompt(prompt, f"Task {number} of {self._environment}, which asks by itself."),
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
        request, answer = self._process.request("play", **row, url=policy.url, key=policy.key, model=policy.model)
        try:
            played = value_of(await asyncio.wrap_future(answer), self._environment)
        except asyncio.CancelledError:
            self._process.cancel(request)
            raise
        if played["error"]:
            raise InfraError(f"{self._environment} reports an error of its rollout: {played['error']}")
        given = played["reward"]
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
            raise InfraError(f"{self._environment} gave the reward {given!r}; a finite number was expected")
        if not self._low - RANGE_SLACK <= given <= self._high + RANGE_SLACK:
            raise UserError(
                f"{self._environment} gave the reward {given:g}, outside of {self._low:g} to {self._high:g}; give the "
                "range as env.options.low and env.options.high"
            )
        metrics = {str(name): value for name, value in played["metrics"].items() if _is_finite(value)}
        context.info.update(reward=float(given), metrics=metrics, ended=played["ended"])
        if self._success_at is not None:
            context.info["success"] = given >= self._success_at

    @reward(inline=True)
    def score(self, episode: Episode) -> float:
        """The package's own reward; 0 where a limit ended the episode before there was one."""
        return float(str(episode.info["reward"]))

    def close(self) -> None:
        """End the package's process; it is started again when it is needed."""
        self._process.close()

    async def _ready(self, task: Task) -> dict[str, Any]:
        """The package, loaded; again after its process has died."""
        slot = str(_row_of(task)["slot"])
        opened = self._opened.get(slot)
        if opened is not None and opened[0] == self._process.starts and self._process.alive:
            return opened[1]
        return await asyncio.to_thread(self._open, slot)

    def _open(self, slot: str) -> dict[str, Any]:
        """What the package says of itself. Raises UserError where it can't be loaded."""
        with self._lock:
            if slot in self._opened and self._opened[slot][0] == self._process.starts and self._process.alive:
                return self._opened[slot][1]
            arguments = {"name": self._environment, "arguments": self._arguments[slot], "unsafe": self._unsafe}
            try:
                said: dict[str, Any] = self._ask("open", slot=slot, **arguments)
            except InfraError as error:
                raise UserError(f"verifiers: {error}") from error
            self._opened[slot] = self._process.starts, said
            return said

    def _rows(self, slot: str, held_out: bool, numbers: Iterator[int]) -> Rows:
        while some := [*itertools.islice(numbers, ROWS_AT_ONCE)]:
            fields = {"slot": slot, "held_out": held_out, "numbers": some}
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
        _, answer = self._process.request(op, **fields)
        what = "loading the environment package" if op == "open" else "waiting for tasks of the environment package"
        try:
            with waiting_for(f"{what} {self._environment} in {self._process.python}"):
                return value_of(answer.result(self._start_s), self._environment)
        except TimeoutError:
            self._process.close()
            raise UserError(
                f"verifiers: {self._environment} was not ready within env.options.start_s = {self._start_s:g} s"
            ) from None


def _numbers(size: int | None, seed: int | None) -> Iterator[int]:
    """Rows in the package's order, or shuffled by a seed; without an end where the package has none."""
    if size is None:
        return itertools.count()
    numbers = [*range(size)]
    if seed is not None:
        random.Random(seed).shuffle(numbers)
    return iter(numbers)


def _of_split(rows: Rows, split: Split, size: int | None) -> Rows:
    """The rows that belong to the split, by what is in them, so that equal rows are in one split: every fifth."""
    if size is not None and size <= FEW_ROWS:
        found = [*rows]
        last = sorted(row.digest for row in found)[max(1, size // TEST_ONE_IN) - 1]
        yield from (row for row in found if (row.digest <= last) == (split == "test"))
        return
    fruitless = 0
    for row in rows:
        fruitless += 1
        if (row.digest % TEST_ONE_IN == 0) == (split == "test"):
            fruitless = 0
            yield row
        if size is None and fruitless == MAX_FRUITLESS:
            return


def _prompt(messages: Sequence[Mapping[str, Any]] | str | None, otherwise: str) -> tuple[Message, ...]:
    """What the package shows first, as text: for the records, for the package renders its own prompt."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    found = [Message(role=one["role"], content=_text(one.get("content"))) for one in messages or ()]
    return tuple(found) or (Message(role="user", content=otherwise),)


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)
    return "" if content is None else str(content)


def _row_of(task: Task) -> dict[str, Json]:
    assert isinstance(task.answer, Mapping), "the task is of this environment"
    return dict(task.answer)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
