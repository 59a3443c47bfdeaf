"""A plugin of which everything raises when it is used; `boom` is the line to be named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from agentgym import (
    Agent,
    AgentContext,
    Environment,
    Episode,
    EpisodeContext,
    Reply,
    Reward,
    SandboxSpec,
    Task,
    hookimpl,
)
from agentgym.rl.advantages import Advantage
from agentgym.rl.losses import Loss, TokenLoss, TrainedTokens
from agentgym.rollout.tasks import Shuffled
from agentgym.sandbox import Capabilities, RunResult, RunStatus, SandboxBackend
from agentgym.text.tool_formats.base import Parsed, ToolFormat
from agentgym.tools import ToolCall


def boom(what: str) -> NoReturn:
    raise KeyError(what)


class Sound(Environment):
    """Runs what the agent says."""

    name = "sound"
    rewards = {"fine": 1.0}

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        for number in itertools.count(seed) if split == "train" else range(8):
            prompt = ({"role": "user", "content": f"Say {number}."},)
            spec = SandboxSpec(allow_interpreters=("plain",))
            yield Task(task_id=f"{split}-{number}", prompt=prompt, split=split, sandbox=spec)

    async def reply(self, context: EpisodeContext) -> Reply:
        if context.sandbox is not None:
            await context.sandbox.run(context.messages[-1]["content"])
        context.info["success"] = len(context.messages[-1]["content"]) % 2 == 0
        return Reply(done=True)


class FaultyEnvironment(Sound):
    name = "faulty"

    async def reply(self, context: EpisodeContext) -> Reply:
        boom("environment")


class FaultyTools(Sound):
    name = "tools"

    class World:
        def look(self) -> str:
            """Look around."""
            boom("tool")

    tools = World

    async def start(self, context: EpisodeContext) -> World:
        return self.World()


class Plain(SandboxBackend):
    """method: which raises."""

    def __init__(self, method: str = "") -> None:
        self.method = method

    def _maybe(self, method: str) -> None:
        if method == self.method:
            boom("sandbox")

    @property
    def name(self) -> str:
        return "plain"

    def supports(self, spec: SandboxSpec) -> bool:
        self._maybe("supports")
        return True

    async def probe(self) -> Capabilities:
        self._maybe("probe")
        return Capabilities(backend="plain", detail="", isolated=True)

    async def start(self) -> Plain:
        self._maybe("start")
        return self

    async def close(self) -> None:
        self._maybe("close")

    async def run(self, code: str, **_: object) -> RunResult:
        self._maybe("run")
        return RunResult(status=RunStatus.OK, exit_code=0, stdout="", stderr="")

    async def grade(self, request: object) -> NoReturn:
        boom("grade")

    def metrics(self) -> dict[str, float]:
        self._maybe("metrics")
        return {}


class FaultySink:
    method = "log"

    def _maybe(self, method: str) -> None:
        if method == self.method:
            boom("sink")

    def open(self, run_dir: str, config: object) -> None:
        self._maybe("open")

    def log(self, step: int, metrics: object) -> None:
        self._maybe("log")

    def close(self) -> None:
        self._maybe("close")


class FaultyOpen(FaultySink):
    method = "open"


class FaultyClose(FaultySink):
    method = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyLoss(Loss):
    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        boom("loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyAdvantage(Advantage):
    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        boom("advantage")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyBatch(Advantage):
    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        return [float(n) for n, _ in enumerate(episodes_G)]

    def of_batch(self, batch: object) -> NoReturn:
        boom("batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultySampler(Shuffled):
    def tasks(self, environment: Environment, seed: int, start: int) -> Iterator[Task]:
        boom("sampler")
        yield


@dataclass(frozen=True)
class FaultyFormat(ToolFormat):
    def parse(self, text: str) -> Parsed:
        boom("format")

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        return content


@dataclass(frozen=True, kw_only=True)
class FaultyAgent(Agent):
    method: str = "play"

    async def check(self) -> None:
        if self.method == "check":
            boom("agent")

    async def play(self, context: AgentContext) -> None:
        boom("agent")


def faulty_reward(episode: Episode) -> float:
    boom("reward")


@hookimpl
def environments() -> Mapping[str, type[Environment]]:
    return {one.name: one for one in (Sound, FaultyEnvironment, FaultyTools)}


@hookimpl
def rewards() -> Mapping[str, Reward]:
    return {
        "fine": Reward(name="fine", function=lambda episode: float(episode.success), inline=True),
        "faulty": Reward(name="faulty", function=faulty_reward),
        "faulty_inline": Reward(name="faulty_inline", function=faulty_reward, inline=True),
    }


@hookimpl
def sandboxes() -> Mapping[str, object]:
    return {"plain": lambda options: boom("create") if options.get("method") == "create" else Plain(**options)}


@hookimpl
def sinks() -> Mapping[str, type[FaultySink]]:
    return {"faulty": FaultySink, "faulty_open": FaultyOpen, "faulty_close": FaultyClose, "faulty_create": _create}


def _create() -> NoReturn:
    boom("create")


@hookimpl
def losses() -> Mapping[str, str]:
    return {"faulty": "agentgym_faulty:FaultyLoss"}


@hookimpl
def advantages() -> Mapping[str, str]:
    return {"faulty": "agentgym_faulty:FaultyAdvantage", "faulty_batch": "agentgym_faulty:FaultyBatch"}


@hookimpl
def task_samplers() -> Mapping[str, str]:
    return {"faulty": "agentgym_faulty:FaultySampler"}


@hookimpl
def tool_formats() -> Mapping[str, str]:
    return {"faulty": "agentgym_faulty:FaultyFormat"}


@hookimpl
def agents() -> Mapping[str, str]:
    return {"faulty": "agentgym_faulty:FaultyAgent"}
