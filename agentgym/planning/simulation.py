"""A run in simulated time: the very loop that trains, over generators and a trainer that only pass time."""

from __future__ import annotations

import asyncio
import itertools
import math
import operator
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentgym.generators.slots import AdaptiveSlots
from agentgym.loops.async_rl import StepRecord, TrainingLoop
from agentgym.planning.clock import JumpingLoop
from agentgym.planning.rates import Rates, tokens_of
from agentgym.planning.shared import Device, Work
from agentgym.rl.config import LoopConfig
from agentgym.rollout.tasks import TaskStream
from agentgym.types import Episode, GenerateRequest, Group, Task

FIRST_STEPS = 2  # left out: in them there is nothing to overlap with yet
GROUPS_REMEMBERED = 256  # whose prompt a replica still has
REQUESTS = operator.attrgetter("requests")
HALVINGS = 16  # of what was measured, until a time is found: one in 65,536 of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where processes are. trainer: the GPUs of its ranks; replicas: those of each replica. Empty: the host's cores.

    gpus, cores: of the machine. max_batch: sequences of one replica at a time. join_together: its requests wait for
    each other, as `AdaptiveSlots` says.
    """

    trainer: tuple[int, ...]
    trainer_procs: int
    replicas: tuple[tuple[int, ...], ...]
    gpus: int
    cores: int
    max_batch: int
    join_together: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Means over the steps after the first. tokens_per_s: sampled tokens of trained groups.

    generate_busy: share of the time in which a replica has any request; batch_share: requests that it runs, of its
    places. train_busy: share in which the trainer steps or publishes. controller_busy: of the one core that it has.
    busy: shares by device, whoever works there.
    """

    step_s: float
    tokens_per_s: float
    generate_busy: float
    batch_share: float
    train_busy: float
    controller_busy: float
    busy: dict[str, float]
    staleness_mean: float


@dataclass(slots=True, kw_only=True)
class _Replica:
    """rate: each sequence's tokens a second, by how many there are."""

    work: Work
    slots: AdaptiveSlots
    requests: int = 0
    known: deque[int] = field(default_factory=lambda: deque(maxlen=GROUPS_REMEMBERED))  # groups, by their prompts
    contexts: int = 0  # tokens of the running sequences, as they began
    joined: float = -math.inf  # position of its work when the last one joined

    def join_s(self, rates: Rates) -> float:
        """Requests that join before the others have sampled one more token do so in the same step of the engine."""
        self.work.advance()
        alone = not self.work.pieces
        if not alone and self.work.position - self.joined < 1.0:
            return 0.0
        self.joined = self.work.position
        return 0.0 if alone else rates.join_s


class _Generators:
    def __init__(self, rates: Rates, replicas: Sequence[_Replica]) -> None:
        self.version = 0
        self.rates = rates
        self.replicas = replicas

    async def generate(self, request: GenerateRequest) -> object:
        raise AssertionError("a simulated episode asks for a number of tokens")

    async def sample(self, group: int, new: int, context: int, tokens: int) -> None:
        """new: tokens of the context that no earlier turn had."""
        replica = min(self.replicas, key=REQUESTS)
        replica.requests += 1
        try:
            async with replica.slots.held(continues=context != new):
                copied = context == new and group in replica.known  # the same prompt as another episode of the group
                if context == new and not copied:
                    replica.known.append(group)
                replica.contexts += context
                owed_s = replica.join_s(self.rates) + (0.0 if copied else new / self.rates.prefill)
                await replica.work.do(tokens, owed_s)
                replica.contexts -= context
        finally:
            replica.requests -= 1

    async def update_weights(self, version: int) -> None:
        """All replicas load at the same time, and then compute the running contexts again."""
        for replica in self.replicas:
            replica.work.hold_up(self.rates.update_s + replica.contexts / self.rates.prefill)
        await asyncio.sleep(self.rates.update_s)
        self.version = version


class _Learner:
    def __init__(self, rates: Rates, work: Work, procs: int) -> None:
        self.rates, self.work = rates, work
        self.speed = rates.train * procs * rates.train_scaling ** math.log2(procs)
        self.tokens: dict[int, int] = {}  # of groups, by id

    async def step(self, groups: list[Group]) -> dict[str, float]:
        await self.work.do(self.rates.train_fixed_s + sum(self.tokens[g.group_id] for g in groups) / self.speed)
        return {}

    async def publish(self, version: int) -> None:
        await self.work.do(self.rates.publish_s)


class _Run:
    def __init__(self, rates: Rates, loop: LoopConfig, layout: Layout, seed: int) -> None:
        self.rates, self.config, self.layout = rates, loop, layout
        self.random = random.Random(seed)
        self.devices = {number: Device(f"GPU {number}") for number in range(layout.gpus)}
        self.host = Device("host", max(1.0, layout.cores * rates.cores_scaling))
        self.controller = Work([self.host], lambda pieces: 1.0 / pieces)  # one event loop
        trainer = Work(self._on(layout.trainer))
        self.learner = _Learner(rates, trainer, layout.trainer_procs)
        self.generators = _Generators(rates, [self._replica(gpus) for gpus in layout.replicas])
        self.sampled: dict[int, int] = {}
        self.ends: list[float] = []
        self.trained: list[int] = []
        self.marks: list[dict[str, float]] = []
        self.staleness: list[float] = []

    def _on(self, gpus: Sequence[int]) -> list[Device]:
        return [self.devices[gpu] for gpu in gpus] or [self.host]

    def _replica(self, gpus: Sequence[int]) -> _Replica:
        work = Work(self._on(gpus), lambda pieces: self.rates.decode_rate(pieces) / pieces)
        slots = AdaptiveSlots(self.layout.max_batch)
        slots.join_s = self.rates.join_s if self.layout.join_together else 0.0
        return _Replica(work=work, slots=slots)

    async def play(self, task: Task, group_id: int) -> Group:
        start = self.generators.version
        episodes = [self.random.choice(self.rates.turns) for _ in range(self.config.group_size)]
        signal = self.random.random() < self.rates.signal
        async with asyncio.TaskGroup() as playing:
            for turns in episodes:
                playing.create_task(self._episode(group_id, turns))
        self.learner.tokens[group_id] = sum(map(tokens_of, episodes))
        self.sampled[group_id] = sum(sampled for turns in episodes for _, sampled in turns)
        episode = Episode(episode_id=str(group_id), task=task, seed=0)
        return Group(group_id=group_id, task=task, start_version=start, episodes=[episode], advantages=[float(signal)])

    async def _episode(self, group: int, turns: Sequence[tuple[int, int]]) -> None:
        context = 0
        for new, tokens in turns:
            context += new
            await self.generators.sample(group, new, context, tokens)
            context += tokens
            if self.rates.host_s:
                await self.controller.do(self.rates.host_s)
            if self.rates.env_s:
                await asyncio.sleep(self.rates.env_s)

    async def after_step(self, record: StepRecord) -> None:
        now = asyncio.get_running_loop().time()
        self.ends.append(now)
        self.trained.append(sum(self.sampled.pop(group.group_id) for group in record.groups))
        self.staleness.append(sum(record.staleness) / len(record.staleness))
        self.marks.append(self._worked(now))
        for group in (*record.groups, *record.skipped):
            self.learner.tokens.pop(group.group_id, None)
            self.sampled.pop(group.group_id, None)

    def _worked(self, now: float) -> dict[str, float]:
        """Seconds until now: of devices, by name, and of processes, by field of the forecast."""
        devices = (*self.devices.values(), self.host)
        replicas = [replica.work for replica in self.generators.replicas]
        for device in devices:
            device.count(now)
        for work in (*replicas, self.learner.work, self.controller):
            work.advance()
        return {device.name: device.busy_s / device.capacity for device in devices} | {
            "generate_busy": sum(work.busy_s for work in replicas) / len(replicas),
            "batch_share": sum(work.pieces_s for work in replicas) / (len(replicas) * self.layout.max_batch),
            "train_busy": self.learner.work.busy_s,
            "controller_busy": self.controller.busy_s,
        }

    async def run(self) -> Forecast:
        tasks = TaskStream(Task(task_id=str(number), prompt=()) for number in itertools.count())
        loop = TrainingLoop(
            config=self.config,
            tasks=tasks,
            rollout=self.play,
            learner=self.learner,
            generator=self.generators,  # type: ignore[arg-type]
            after_step=self.after_step,
        )
        await loop.run()
        first = min(FIRST_STEPS, len(self.ends) - 1) - 1
        began, before = (self.ends[first], self.marks[first]) if first >= 0 else (0.0, {})
        passed = self.ends[-1] - began
        shares = {name: (end - before.get(name, 0.0)) / passed for name, end in self.marks[-1].items()}
        return Forecast(
            step_s=passed / (len(self.ends) - 1 - first),
            tokens_per_s=sum(self.trained[first + 1 :]) / passed,
            generate_busy=shares.pop("generate_busy"),
            batch_share=shares.pop("batch_share"),
            train_busy=shares.pop("train_busy"),
            controller_busy=shares.pop("controller_busy"),
            busy=shares,
            staleness_mean=sum(self.staleness[first + 1 :]) / len(self.staleness[first + 1 :]),
        )


def simulate(rates: Rates, loop: LoopConfig, layout: Layout, *, steps: int = 10, seed: int = 0) -> Forecast:
    """Simulates `steps` steps. Deterministic: lengths are drawn by `seed`. Nothing is started and no time passes."""

    async def run() -> Forecast:
        return await _Run(rates, replace(loop, steps=steps), layout, seed).run()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(run())


def in_flight_s(rates: Rates, requests: Sequence[tuple[int, int]], max_batch: int) -> float:
    """Seconds of one replica for requests, [prompt tokens, sampled tokens], that are sent at once and do not wait for
    each other. No two prompts are alike.
    """

    async def run() -> float:
        work = Work([Device("replica")], lambda pieces: rates.decode_rate(pieces) / pieces)
        generators = _Generators(rates, [_Replica(work=work, slots=AdaptiveSlots(max_batch))])
        sent = (generators.sample(n, prompt, prompt, tokens) for n, (prompt, tokens) in enumerate(requests))
        await asyncio.gather(*sent)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(run())


def join_s_of(rates: Rates, requests: Sequence[tuple[int, int]], max_batch: int, measured_s: float) -> float:
    """`Rates.join_s` with which `in_flight_s` is what was measured; 0.0 where it is longer without."""

    def too_long(join_s: float) -> bool:
        return in_flight_s(replace(rates, join_s=join_s), requests, max_batch) >= measured_s

    low, high = 0.0, measured_s
    if too_long(low):
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_long(middle) else (middle, high)
    return low
