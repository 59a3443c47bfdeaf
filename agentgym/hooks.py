"""Pluggy specifications, and a registry that one broken plugin can't take down.

An entry point of the group `agentgym` names a module (or an object) with hook implementations. Finding them
imports nothing; a plugin is imported when something it may provide is asked for.
"""

from __future__ import annotations

import importlib.metadata
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias, cast

import pluggy

from agentgym.env import Environment
from agentgym.errors import UserError, nearest
from agentgym.rewards import Reward
from agentgym.sandbox import SandboxBackend, SandboxOptions
from agentgym.types import Json

log = logging.getLogger(__name__)

GROUP = "agentgym"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

EnvironmentFactory: TypeAlias = Callable[..., Environment]
"""Called with the recipe's `env.options` as keyword arguments."""
SandboxFactory: TypeAlias = Callable[[SandboxOptions], SandboxBackend]


class MetricSink(Protocol):
    """Where a run's metrics go besides its own folder."""

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


SinkFactory: TypeAlias = Callable[[], MetricSink]
Kind: TypeAlias = Literal["environments", "rewards", "sandboxes", "sinks"]
Provided: TypeAlias = EnvironmentFactory | Reward | SandboxFactory | SinkFactory
KINDS: tuple[Kind, ...] = ("environments", "rewards", "sandboxes", "sinks")


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


class PluginStatus(StrEnum):
    FOUND = "found"  # not imported yet
    LOADED = "loaded"
    FAILED = "failed"
    DUPLICATE = "duplicate"
    DISABLED = "disabled"


@dataclass(slots=True, kw_only=True)
class PluginRecord:
    """One plugin: where it came from and how it fares."""

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


class PluginRegistry:
    """Finds plugins without importing them, and imports each behind a guard of its own."""

    def __init__(
        self, entry_points: Iterable[importlib.metadata.EntryPoint], disabled: Iterable[str] = ()
    ) -> None:
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(Specs)
        self._entry_points: dict[str, importlib.metadata.EntryPoint] = {}
        self._provided: dict[Kind, dict[str, tuple[Provided, PluginRecord]]] = {kind: {} for kind in KINDS}
        self.records: list[PluginRecord] = []
        off = set(disabled)
        for point in sorted(entry_points, key=lambda p: (p.name, p.value)):
            dist = point.dist
            record = PluginRecord(
                name=point.name,
                target=point.value,
                distribution=dist.name if dist else "unknown",
                version=dist.version if dist else "?",
            )
            self.records.append(record)
            if point.name in off:
                record.status = PluginStatus.DISABLED
            elif point.name in self._entry_points:
                self._mark_duplicate(record)
            else:
                self._entry_points[point.name] = point

    @classmethod
    def discover(cls, disabled: Iterable[str] = ()) -> PluginRegistry:
        """All installed plugins; imports none of them."""
        return cls(importlib.metadata.entry_points(group=GROUP), disabled)

    def register(self, plugin: object, name: str) -> PluginRecord:
        """Add a plugin of this process (a module or an object); used by tests and notebooks."""
        record = PluginRecord(name=name, target=repr(plugin), distribution="this process", version="-")
        self.records.append(record)
        self._adopt(plugin, record)
        return record

    def load_all(self) -> None:
        """Import every plugin that is not imported yet; failures are recorded, not raised."""
        for record in list(self.records):
            self._load(record)

    def names(self, kind: Kind) -> list[str]:
        """Everything of a kind that can be had; imports all plugins."""
        self.load_all()
        return sorted(self._provided[kind])

    def environment(self, name: str) -> EnvironmentFactory:
        return cast(EnvironmentFactory, self._get("environments", name))

    def reward(self, name: str) -> Reward:
        return cast(Reward, self._get("rewards", name))

    def sandbox(self, name: str) -> SandboxFactory:
        return cast(SandboxFactory, self._get("sandboxes", name))

    def sink(self, name: str) -> SinkFactory:
        return cast(SinkFactory, self._get("sinks", name))

    def provider(self, kind: Kind, name: str) -> PluginRecord:
        """Which plugin provides it."""
        self._get(kind, name)
        return self._provided[kind][name][1]

    def _get(self, kind: Kind, name: str) -> Provided:
        self._load_named(name)
        if name not in self._provided[kind]:
            self.load_all()
        if name in self._provided[kind]:
            return self._provided[kind][name][0]
        singular = kind[:-2] if kind == "sandboxes" else kind[:-1]
        for record in self.records:
            if record.name == name and record.status in (PluginStatus.FAILED, PluginStatus.DUPLICATE):
                raise UserError(
                    f"the plugin {record.origin} can't be used: {record.error}\n{record.trace}".rstrip()
                )
            if record.name == name and record.status is PluginStatus.DISABLED:
                raise UserError(f"the plugin {record.origin} is disabled; remove it from `plugins.disabled`")
        known = self._provided[kind]
        raise UserError(f"no {singular} {name!r}.{nearest(name, known)} Is its package installed?")

    def _load_named(self, name: str) -> None:
        for record in self.records:
            if record.name == name:
                self._load(record)

    def _load(self, record: PluginRecord) -> None:
        if record.status is not PluginStatus.FOUND:
            return
        try:
            plugin: object = self._entry_points[record.name].load()
        except Exception as error:  # plugin code: anything may come
            self._mark_failed(record, error)
            return
        self._adopt(plugin, record)

    def _adopt(self, plugin: object, record: PluginRecord) -> None:
        try:
            self._manager.register(plugin, record.name)
            self._manager.check_pending()  # finds misspelt hooks
            found = {kind: self._call(plugin, kind) for kind in KINDS}
        except Exception as error:  # plugin code: anything may come
            if self._manager.get_plugin(record.name) is not None:
                self._manager.unregister(name=record.name)
            self._mark_failed(record, error)
            return
        for kind, things in found.items():
            for name in things:
                if name in self._provided[kind]:
                    other = self._provided[kind][name][1]
                    record.status = PluginStatus.DUPLICATE
                    record.error = (
                        f"{kind} {name!r} is provided by {other.origin} already; uninstall or disable one"
                    )
                    log.warning("plugin %s: %s", record.origin, record.error)
                    return
        for kind, things in found.items():
            self._provided[kind].update({name: (thing, record) for name, thing in things.items()})
        record.status = PluginStatus.LOADED
        record.provides = tuple(f"{kind}:{name}" for kind in KINDS for name in found[kind])

    def _call(self, plugin: object, kind: Kind) -> Mapping[str, Provided]:
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        results = self._manager.subset_hook_caller(kind, others)()
        merged: dict[str, Provided] = {}
        for result in results:
            if not isinstance(result, Mapping):
                raise TypeError(f"hook {kind} returned {type(result).__name__}; return a mapping of names")
            merged.update(result)
        return merged

    def _mark_failed(self, record: PluginRecord, error: Exception) -> None:
        record.status = PluginStatus.FAILED
        record.error = f"{type(error).__name__}: {error}"
        record.trace = "".join(traceback.format_exception(error))
        log.warning("plugin %s did not load, going on without it: %s", record.origin, record.error)

    def _mark_duplicate(self, record: PluginRecord) -> None:
        first = next(r for r in self.records if r.name == record.name)
        record.error = (
            f"two distributions give the plugin {record.name!r}: {first.origin} and {record.origin}; "
            "uninstall or disable one"
        )
        first.status = record.status = PluginStatus.DUPLICATE
        first.error = record.error
        self._entry_points.pop(record.name, None)
