"""A plugin of which everything raises when it is used; the line in `boom` is the one to be named."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import count, islice

from agentgym import Agent, Environment, InfraError, Reply, Reward, SandboxSpec, Task, hookimpl
from agentgym.actors.launchers import Launcher
from agentgym.generators.config import EngineConfig
from agentgym.rl.advantages import Advantage
from agentgym.rl.losses import Loss
from agentgym.rollout.tasks import Shuffled, TaskStream
from agentgym.sandbox import DEFAULT_LIMITS, FileRefused, SandboxLost
from agentgym.testing import FakeSandbox
from agentgym.text.tool_formats.base import ToolFormat
from agentgym.weights.config import StoreConfig


def boom(what="boom", *_, **__):
    raise KeyError(what)


async def boom_later(*_, **__):
    boom()


class Sound(Environment):
    """Runs what the agent says."""

    name = "sound"
    rewards = {"fine": 1.0}

    def tasks(self, split, seed=0):
        for number in islice(count(seed), None if split == "train" else 8):
            prompt = ({"role": "user", "content": f"Say {number}."},)
            yield Task(task_id=f"{split}-{number}", prompt=prompt, split=split, sandbox=SandboxSpec())

    async def reply(self, context):
        await context.sandbox.run(context.messages[-1]["content"])
        context.info["success"] = len(context.messages[-1]["content"]) % 2 == 0
        return Reply(done=True)


class Faulty(Sound):
    name = "faulty"

    async def reply(self, context):
        boom()


class Lost(Sound):
    name = "lost"

    async def reply(self, context):
        raise InfraError("its server is gone")


class FaultyTasks(Sound):
    name = "tasks"

    def tasks(self, split, seed=0):
        boom()


class Plain(FakeSandbox):
    """method: which raises KeyError; or what `run` raises: lost, refuses."""

    def __init__(self, method=""):
        super().__init__(name="plain")
        self.method = method
        if hasattr(self, method):
            setattr(self, method, boom_later if inspect.iscoroutinefunction(getattr(self, method)) else boom)

    async def run(self, code, *, stdin="", limits=DEFAULT_LIMITS):
        errors = {"lost": SandboxLost("gone"), "refuses": FileRefused("no such file")}
        if self.method in errors:
            raise errors[self.method]
        return await super().run(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyLoss(Loss):
    def __call__(self, tokens, version):
        boom("loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyAdvantage(Advantage):
    def __call__(self, episodes_G):
        boom()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyBatch(FaultyAdvantage):
    def of_batch(self, batch):
        boom()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultySampler(Shuffled):
    def tasks(self, environment, seed, start):
        boom()


class FaultyStream(TaskStream):
    def observe(self, group):
        boom()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyStreams(Shuffled):
    def stream(self, environment, seed, start, *, in_flight=1, state=None):
        return FaultyStream(self.tasks(environment, seed, start))


@dataclass(frozen=True)
class FaultyFormat(ToolFormat):
    def parse(self, text):
        boom()

    def write(self, calls, content=""):
        return content


@dataclass(frozen=True, kw_only=True)
class FaultyAgent(Agent):
    async def check(self):
        boom("agent")

    async def play(self, context): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyEngine(EngineConfig):
    def build(self, generator, model_path):
        boom()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyStore(StoreConfig):
    async def open(self, run, *, keep, runtime):
        boom()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyLauncher(Launcher):
    def hosts(self, log_dir):
        boom()


def faulty_reward(episode):
    boom()


@hookimpl
def environments():
    return {one.name: one for one in (Sound, Faulty, Lost)}


@hookimpl
def rewards():
    return {
        "fine": Reward(name="fine", function=lambda episode: float(episode.success), inline=True),
        "faulty": Reward(name="faulty", function=faulty_reward),
        "faulty_inline": Reward(name="faulty_inline", function=faulty_reward, inline=True),
    }


@hookimpl
def sandboxes():
    return {"plain": lambda options: boom() if options.get("method") == "create" else Plain(**options)}


@hookimpl
def sinks():
    return {"faulty": lambda: boom()}


class Command:
    """What a module of a command has."""

    DESCRIPTION, EXAMPLES, TAKES_OVERRIDES = "Raise.", "", False

    @staticmethod
    def add_arguments(parser): ...

    @staticmethod
    def run(arguments, shell):
        boom("command")
