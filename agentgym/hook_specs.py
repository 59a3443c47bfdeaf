"""What a plugin may implement: the hooks, what each returns, and the check of what it returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

import pluggy

from agentgym.components import SEAMS, ComponentKind
from agentgym.contracts import check_call, check_class
from agentgym.env import Environment
from agentgym.rewards import Reward
from agentgym.sandbox import SandboxBackend, SandboxOptions, SandboxPlugin
from agentgym.sinks import MetricSink

GROUP = "agentgym"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

EnvironmentFactory: TypeAlias = Callable[..., Environment]
"""Called with the recipe's `env.options` as keyword arguments."""
SandboxFactory: TypeAlias = SandboxPlugin | Callable[[SandboxOptions], SandboxBackend]
"""A plain function or class declares nothing, so it is chosen by its name only."""


SinkFactory: TypeAlias = Callable[[], MetricSink]
Kind: TypeAlias = Literal["environments", "rewards", "sandboxes", "sinks"] | ComponentKind
Provided: TypeAlias = EnvironmentFactory | Reward | SandboxFactory | SinkFactory | str
NOUNS: Mapping[Kind, str] = {
    "environments": "environment",
    "rewards": "reward",
    "sandboxes": "sandbox",
    "sinks": "sink",
    **{kind: seam.noun for kind, seam in SEAMS.items()},
}
BASES: Mapping[str, type] = {"environments": Environment, "sandboxes": SandboxBackend, "sinks": MetricSink}
ONE_TOO_MANY = "uninstall one, or name one distribution or plugin under `plugins.disabled`"


class PluginStatus(StrEnum):
    FOUND = "found"  # not imported yet
    LOADED = "loaded"
    FAILED = "failed"
    DUPLICATE = "duplicate"  # another distribution brings a plugin of this name
    DISABLED = "disabled"


@dataclass(slots=True, kw_only=True)
class PluginRecord:
    """One plugin: where it came from and its status. error: also what it provides that another one owns."""

    name: str
    target: str
    distribution: str
    version: str
    status: PluginStatus = PluginStatus.FOUND
    error: str = ""
    trace: str = ""
    provides: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        return f"{self.name!r} of {self.distribution} {self.version}"


class Specs:
    """What a plugin may implement. Each hook is synchronous, quick, and returns name -> what to build."""

    @hookspec
    def environments(self) -> Mapping[str, EnvironmentFactory]:  # type: ignore[empty-body]
        """Environments by name."""

    @hookspec
    def rewards(self) -> Mapping[str, Reward]:  # type: ignore[empty-body]
        """Reward functions by name."""

    @hookspec
    def sandboxes(self) -> Mapping[str, SandboxFactory]:  # type: ignore[empty-body]
        """Sandbox backends by name."""

    @hookspec
    def sinks(self) -> Mapping[str, SinkFactory]:  # type: ignore[empty-body]
        """Metric sinks by name."""

    @hookspec
    def losses(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Losses by name: frozen dataclasses that inherit `agentgym.rl.losses.Loss`.

        This hook and those below return import paths, "package.module:Class", imported when a recipe chooses them.
        """

    @hookspec
    def advantages(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Advantages by name: they inherit `agentgym.rl.advantages.Advantage`."""

    @hookspec
    def task_samplers(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Task samplers by name: they inherit `agentgym.rollout.tasks.TaskSampler`."""

    @hookspec
    def generator_engines(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Generator engines by name: their configs, which inherit `agentgym.generators.config.EngineConfig`."""

    @hookspec
    def weight_stores(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Weight stores by name: their configs, which inherit `agentgym.weights.config.StoreConfig`."""

    @hookspec
    def launchers(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Launchers by name: they inherit `agentgym.actors.launchers.Launcher`."""

    @hookspec
    def tool_formats(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Formats of tool calls by name: they inherit `agentgym.text.tool_formats.base.ToolFormat`."""

    @hookspec
    def agents(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Agents by name: programs that play an episode, which inherit `agentgym.Agent`."""


def checked(kind: Kind, result: object) -> Mapping[str, Provided]:
    """What a hook returned; a TypeError or ValueError says what is wrong with it."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"hook {kind} is `async def`; write `def`: hooks only list what a plugin provides")
    if not isinstance(result, Mapping):
        raise TypeError(f"hook {kind} returned {type(result).__name__}; return a mapping of names")
    for name, thing in result.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"hook {kind} returned the name {name!r}; a name is a string")
        if kind == "rewards":
            if not isinstance(thing, Reward):
                raise TypeError(f"reward {name!r} is {thing!r:.80}; return agentgym.Reward objects")
            if thing.name != name:
                raise ValueError(f"reward {name!r} calls itself {thing.name!r}; give it one name")
            check_call(thing.function, 1, f"the function of the reward {name!r}")
        elif kind in SEAMS:
            if not isinstance(thing, str) or ":" not in thing:
                raise TypeError(f"{NOUNS[kind]} {name!r} is {thing!r:.80}; return 'package.module:Class'")
        elif not callable(thing):
            raise TypeError(f"{kind} {name!r} is {thing!r:.80}; return a class or a function that builds it")
        else:
            _check_class(kind, name, thing.create if isinstance(thing, SandboxPlugin) else thing)
    return result


def _check_class(kind: Kind, name: str, thing: object) -> None:
    """Raises TypeError or ContractError for a class of another kind, or one that lacks methods; a function may be
    asked when it has made something."""
    if not isinstance(thing, type):
        return
    if kind == "environments" and not issubclass(thing, Environment):
        raise TypeError(f"environment {name!r} is {thing!r:.80}; an environment's class inherits agentgym.Environment")
    check_class(thing, BASES[kind], f"{NOUNS[kind]} {name!r}")
