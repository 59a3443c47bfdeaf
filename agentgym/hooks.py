"""The registry of plugins, in which a broken one does not affect the others.

An entry point of the group `agentgym` names a module (or an object) with hook implementations. Finding them
imports nothing; a plugin is imported when something it may provide is asked for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import logging
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias, TypeVar, cast

import pluggy

from agentgym.components import SEAMS, ComponentKind, find
from agentgym.contracts import ContractError, check_made, warn_misspelt
from agentgym.env import Environment, with_shorthand
from agentgym.errors import InfraError, UserError, nearest
from agentgym.hook_specs import GROUP as GROUP
from agentgym.hook_specs import NOUNS as NOUNS
from agentgym.hook_specs import ONE_TOO_MANY, Provided, Specs, checked
from agentgym.hook_specs import EnvironmentFactory as EnvironmentFactory
from agentgym.hook_specs import Kind as Kind
from agentgym.hook_specs import PluginRecord as PluginRecord
from agentgym.hook_specs import PluginStatus as PluginStatus
from agentgym.hook_specs import SandboxFactory as SandboxFactory
from agentgym.hook_specs import SinkFactory as SinkFactory
from agentgym.hook_specs import hookimpl as hookimpl
from agentgym.hook_specs import hookspec as hookspec
from agentgym.import_path import import_class, import_object, is_import_path
from agentgym.plugin_errors import PluginError, blamed, detail_of, shown_name
from agentgym.rewards import Reward, RewardFunction, marked_reward
from agentgym.sandbox import SandboxBackend, SandboxOptions, SandboxPlugin
from agentgym.sinks import EpisodeSink, MetricSink
from agentgym.stability import ATTRIBUTE, built_for, stated_by

log = logging.getLogger(__name__)


Made = TypeVar("Made")
Offer: TypeAlias = tuple[Provided, PluginRecord]
OURS = PluginRecord(name="agentgym", target="agentgym.components", distribution="agentgym", version="(built in)")


class PluginRegistry:
    """Finds plugins without importing them, and imports each behind a guard of its own.

    disabled: names of plugins, or of distributions whose plugins are all left out.
    """

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint], disabled: Iterable[str] = ()) -> None:
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(Specs)
        self._entry_points: dict[str, importlib.metadata.EntryPoint] = {}
        self._provided: dict[Kind, dict[str, list[Offer]]] = {kind: {} for kind in NOUNS}
        for kind, seam in SEAMS.items():
            self._provided[kind] = {name: [(path, OURS)] for name, path in seam.builtin.items()}
        self.records: list[PluginRecord] = []
        off = set(disabled)
        named = functools.cache(_name_and_version)  # a distribution of many entry points is read once
        points = {(point.name, point.value, named(point.dist)): point for point in entry_points}
        for (_, _, (distribution, version)), point in sorted(points.items(), key=lambda item: item[0]):
            record = PluginRecord(name=point.name, target=point.value, distribution=distribution, version=version)
            same = [r for r in self.records if r.name == record.name and r.status is not PluginStatus.DISABLED]
            self.records.append(record)
            if {record.name, record.distribution} & off:
                record.status = PluginStatus.DISABLED
            elif same:
                self._mark_duplicates([*same, record])
            else:
                self._entry_points[point.name] = point
        known = {r.name for r in self.records} | {r.distribution for r in self.records}
        for name in sorted(off - known):
            raise UserError(f"plugins.disabled names {name!r}, which is not installed.{nearest(name, known)}")

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
        """Everything of a kind that is available; imports all plugins."""
        self.load_all()
        return sorted(self._provided[kind])

    def listed(self, kind: Kind) -> dict[str, Offer | UserError]:
        """Everything of a kind by its name; where several plugins provide it, the error that says so."""
        found: dict[str, Offer | UserError] = {}
        for name in self.names(kind):
            try:
                found[name] = self._offer(kind, name)
            except UserError as error:
                found[name] = error
        return found

    def environment(self, name: str) -> EnvironmentFactory:
        """The environment by name, by name and its first option, or by import path: `my_env.py:GuessNumber`."""
        short, _, value = name.partition(":")
        offered = self._get("environments", short) if value and short in self.names("environments") else None
        if made := with_shorthand(offered, value):
            return made
        if is_import_path(name):
            return import_class(name, "a subclass of agentgym.Environment", Environment, local=True)
        return cast(EnvironmentFactory, self._get("environments", name))

    def reward(self, name: str, environment: object = None) -> Reward:
        """The reward by name, by `distribution:name`, or by import path: `my_rewards.py:short`.

        environment: its class; of several plugins' rewards the one of its distribution is taken, or else ours.
        """
        if not is_import_path(name):
            classes = getattr(environment, "__mro__", ())  # also what it extends
            beside = [o for one in classes for o in self._provided["environments"].get(vars(one).get("name", ""), [])]
            return cast(Reward, self._offer("rewards", name, [*(r.distribution for _, r in beside), "agentgym"])[0])
        distribution, _, short = name.rpartition(":")
        provided = self._rewards_of(distribution)
        if short in provided:
            return provided[short]
        try:
            found = import_object(name, "a function that takes an episode", _is_reward, local=True)
        except UserError as error:
            if not provided:
                raise
            raise UserError(f"{error} {distribution!r} provides the rewards {str(sorted(provided))[1:-1]}") from None
        if isinstance(found, Reward):
            return found
        return marked_reward(found) or Reward(name=short, function=cast(RewardFunction, found))

    def _rewards_of(self, distribution: str) -> dict[str, Reward]:
        if distribution not in {record.distribution for record in self.records}:
            return {}
        self.load_all()
        offers = [offer for offers in self._provided["rewards"].values() for offer in offers]
        return {cast(Reward, one).name: cast(Reward, one) for one, by in offers if by.distribution == distribution}

    def sandbox(self, name: str) -> SandboxPlugin:
        """The sandbox by name. Its `create` raises UserError, with the plugin, for a backend that is incomplete."""
        if is_import_path(name):
            known = nearest(name, self.names("sandboxes"))
            advice = "its plugin gives it a name: agentgym new NAME --template sandbox"
            raise UserError(f"a sandbox is chosen by its name, not by the import path {name!r}; {advice}.{known}")
        return self._sandbox(name, self._offer("sandboxes", name))

    def _sandbox(self, name: str, offer: Offer) -> SandboxPlugin:
        factory, record = cast(SandboxFactory, offer[0]), offer[1]
        plugin = factory if isinstance(factory, SandboxPlugin) else SandboxPlugin(create=factory)

        def create(options: SandboxOptions) -> SandboxBackend:
            with blamed("sandbox", plugin.create, name):
                return _made(lambda: plugin.create(options), SandboxBackend, f"sandbox {name!r}", record)

        return replace(plugin, create=create)

    def sandboxes(self) -> dict[str, SandboxPlugin]:
        """Every sandbox that is available by its name; those with a rank for `auto` first, in its order."""
        offers = {name: one for name, one in self.listed("sandboxes").items() if not isinstance(one, UserError)}
        found = {name: self._sandbox(name, one) for name, one in offers.items()}
        ranks = {name: math.inf if one.auto_rank is None else one.auto_rank for name, one in found.items()}
        return {name: found[name] for name in sorted(found, key=lambda name: (ranks[name], name))}

    def sink(self, name: str) -> SinkFactory:
        """Makes the sink of that name or import path; raises UserError, with the plugin, for one that is incomplete."""
        record: PluginRecord | None = None
        if is_import_path(name):
            found: object = import_object(name, "a class with the methods open, log and close", _is_sink, local=True)
        else:
            found, record = self._offer("sinks", name)
        factory = cast(SinkFactory, found)

        def make() -> MetricSink:
            with blamed("sink", factory, name):
                made = _made(factory, MetricSink, f"sink {name!r}", record)
            warn_misspelt(type(made), EpisodeSink)
            return made

        return make

    def component(self, kind: ComponentKind, name: str) -> type:
        """The class of a component: one of ours, a plugin's, or that of an import path."""
        own = ":" in name or name in SEAMS[kind].builtin  # a plugin never replaces one of ours
        if own:
            return find(kind, name)
        path, record = self._offer(kind, name)
        try:
            return find(kind, cast(str, path))
        except UserError as error:
            raise UserError(f"{NOUNS[kind]} {name!r} of the plugin {record.origin}: {error}") from error

    def check_components(self) -> None:
        """Import every component that a plugin offers, and make its sandboxes and sinks, which starts nothing.

        A plugin with one that is refused has failed; what only lacks options or a package has not.
        """
        for kind in SEAMS:
            for name, offers in self._provided[kind].items():
                for thing, record in offers:
                    try:
                        find(kind, cast(str, thing))
                    except UserError as error:
                        record.status, record.error = PluginStatus.FAILED, f"{NOUNS[kind]} {name!r}: {error}"
        made: dict[Kind, Callable[[str, Offer], object]] = {
            "sandboxes": lambda name, offer: self._sandbox(name, offer).create({}),
            "sinks": lambda name, _: self.sink(name)(),
        }
        for seam, make in made.items():
            for name, one in self.listed(seam).items():
                if isinstance(one, UserError):
                    continue
                try:
                    make(name, one)
                except (ContractError, PluginError) as error:
                    one[1].status, one[1].error = PluginStatus.FAILED, str(error)
                except (UserError, InfraError):
                    pass

    def provider(self, kind: Kind, name: str) -> PluginRecord:
        """Which plugin provides it."""
        return self._offer(kind, name)[1]

    def _get(self, kind: Kind, name: str) -> Provided:
        return self._offer(kind, name)[0]

    def _offer(self, kind: Kind, name: str, preferred: Iterable[str] = ()) -> Offer:
        """What a plugin of the same name provides, or else the only one that provides it.

        So it does not depend on what was asked for before. preferred: distributions, whose offers decide between
        several, the first before the second.
        """
        for record in [one for one in self.records if one.name == name]:
            self._load(record)
        offers = [offer for offer in self._provided[kind].get(name, []) if offer[1].name == name]
        if not offers:
            self.load_all()
            offers = self._provided[kind].get(name, [])
        for distribution in preferred:
            offers = [offer for offer in offers if offer[1].distribution == distribution] or offers
        if len(offers) == 1:
            return offers[0]
        noun = NOUNS[kind]
        if offers:
            origins = " and by ".join(record.origin for _, record in offers)
            chosen = " or ".join(repr(f"{record.distribution}:{name}") for _, record in offers)
            advice = f"write {chosen}" if kind == "rewards" else ONE_TOO_MANY
            raise UserError(f"{noun} {name!r} is provided by {origins}; {advice}")
        for record in self.records:
            if record.name == name and record.status in (PluginStatus.FAILED, PluginStatus.DUPLICATE):
                raise UserError(
                    f"the plugin {record.origin} could not be loaded: {record.error}\n{record.trace}".rstrip()
                )
            if record.name == name and record.status is PluginStatus.DISABLED:
                raise UserError(f"the plugin {record.origin} is disabled; remove it from `plugins.disabled`")
        failed = "".join(
            f"\nThe plugin {record.origin} did not load: {record.error}"
            for record in self.records
            if record.status is PluginStatus.FAILED
        )
        raise UserError(f"no {noun} {name!r}.{nearest(name, self._provided[kind])} Is its package installed?{failed}")

    def _load(self, record: PluginRecord) -> None:
        if record.status is not PluginStatus.FOUND:
            return
        try:
            plugin: object = self._entry_points[record.name].load()
        except (Exception, SystemExit) as error:  # plugin code: anything may come
            self._mark_failed(record, error, stated_by(record.target.partition(":")[0]))
            return
        self._adopt(plugin, record)

    def _adopt(self, plugin: object, record: PluginRecord) -> None:
        if self._manager.has_plugin(record.name):
            self._mark_failed(record, ValueError(f"there is a plugin {record.name!r} already"))
            return
        stated: object = None
        try:
            stated = getattr(plugin, ATTRIBUTE, None)
            built = built_for(stated, record.distribution)
            self._manager.register(plugin, record.name)
            self._check_names(plugin)
            found = {kind: self._call(plugin, kind) for kind in NOUNS}
        except (Exception, SystemExit) as error:  # plugin code: anything may come
            if self._manager.has_plugin(record.name):
                self._manager.unregister(name=record.name)
            self._mark_failed(record, error, stated)
            return
        record.status = PluginStatus.LOADED
        if ";" in built:  # what has changed since
            log.warning("plugin %s was %s", record.origin, built)
        record.provides = tuple(f"{kind}:{name}" for kind in NOUNS for name in found[kind])
        for kind, things in found.items():
            for name, thing in things.items():
                offers = self._provided[kind].setdefault(name, [])
                if offers:
                    record.error = f"{kind} {name!r} is provided by {offers[0][1].origin} too; {ONE_TOO_MANY}"
                    log.warning("plugin %s: %s", record.origin, record.error)
                offers.append((thing, record))

    def _check_names(self, plugin: object) -> None:
        for caller in self._manager.get_hookcallers(plugin) or ():
            if not caller.has_spec() and not all(one.optionalhook for one in caller.get_hookimpls()):
                raise ContractError(f"there is no hook {caller.name!r}.{nearest(caller.name, NOUNS)}")
        if not self._manager.get_hookcallers(plugin):
            for name in NOUNS:
                if inspect.isfunction(getattr(plugin, name, None)):
                    raise ContractError(f"the function {name!r} is not marked as a hook; write @hookimpl above it")

    def _call(self, plugin: object, kind: Kind) -> Mapping[str, Provided]:
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        caller = self._manager.subset_hook_caller(kind, others)
        results = caller()
        if len(results) < len(caller.get_hookimpls()):  # pluggy drops None
            raise ContractError(f"hook {kind} returned None; return a mapping of names")
        return {name: thing for result in results for name, thing in checked(kind, result).items()}

    def _mark_failed(self, record: PluginRecord, error: BaseException, stated: object = None) -> None:
        record.status = PluginStatus.FAILED
        refused = isinstance(error, UserError)  # its text says all, and the traceback is ours
        record.error = str(error) if refused else f"{type(error).__name__}: {detail_of(error)}"
        try:
            built = built_for(stated, record.distribution)
        except UserError as wrong:
            built = str(wrong)
        if built and built not in record.error:
            record.error += f" ({built})"
        record.trace = "" if refused else "".join(traceback.format_exception(error))
        log.warning("plugin %s did not load and is left out: %s", record.origin, record.error)

    def _mark_duplicates(self, records: list[PluginRecord]) -> None:
        name = records[0].name
        origins = " and ".join(record.origin for record in records)
        for record in records:
            record.status = PluginStatus.DUPLICATE
            record.error = f"{len(records)} distributions give the plugin {name!r}: {origins}; {ONE_TOO_MANY}"
        self._entry_points.pop(name, None)


def _name_and_version(distribution: importlib.metadata.Distribution | None) -> tuple[str, str]:
    if distribution is None:
        return "unknown", "?"
    metadata = distribution.metadata  # read from its file at every access
    return shown_name(metadata["Name"]), metadata["Version"]


def _made(make: Callable[[], Made], base: type, what: str, record: PluginRecord | None) -> Made:
    """What a factory makes. Raises ContractError, with the plugin, for what is not a complete `base`."""
    what = f"{what} of the plugin {record.origin}" if record else what
    try:
        made = make()
    except ContractError as error:
        raise ContractError(f"{what}: {error}") from error
    check_made(made, base, what)
    return made


def _is_sink(thing: object) -> bool:
    """Also a class that lacks one method, which `check_made` names."""
    return isinstance(thing, type) and sum(hasattr(thing, name) for name in ("open", "log", "close")) >= 2


def _is_reward(thing: object) -> bool:
    return isinstance(thing, Reward) or inspect.isroutine(thing)
