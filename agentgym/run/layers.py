"""The layers of a recipe: its own defaults, what fits the model, the recipe's file, the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from agentgym.config import COMMAND_LINE, origin, with_overrides
from agentgym.generators.config import GeneratorConfig
from agentgym.hooks import PluginRegistry
from agentgym.models.defaults import SFT_LEARNING_RATES, LearningRates, model_defaults
from agentgym.models.resolve import TINY
from agentgym.policies.outside.config import PolicyConfig
from agentgym.recipe import Command, ModelConfig, Recipe, build_recipe
from agentgym.trainer.config import TrainerConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger(__name__)

SECTIONS = {one.name for one in fields(Recipe)}
SHARED_SECTIONS: Mapping[str, type[DataclassInstance]] = {
    "model": ModelConfig,
    "trainer": TrainerConfig,
    "policy": PolicyConfig,
    "generator": GeneratorConfig,
}
"""Sections of ours that torchforge has too, or for which it has names of vLLM."""


def finish_recipe(
    given: Mapping[str, object],
    *,
    base: Mapping[str, object] | None = None,
    where: str = "recipe",
    plugins: Callable[[Sequence[str]], PluginRegistry] = PluginRegistry.discover,
    command: Command | None = None,
) -> tuple[Recipe, dict[str, str]]:
    """The recipe, and where its fields come from: see `layered`. plugins, command: see `build_recipe`."""
    base = base or {}
    command = command or ("sft" if "sft" in given else "train")
    ours = with_our_names(given, with_overrides(where, given, base), replace=bool(base))
    rates = SFT_LEARNING_RATES if command == "sft" else None
    mapping, sources = layered(ours, base=base, where=where, rates=rates)
    return build_recipe(mapping, with_overrides(where, ours, base), plugins, command), sources


def with_our_names(given: Mapping[str, object], where: str, *, replace: bool = False) -> dict[str, object]:
    """The recipe under our names; its keys that are unknown may be those of torchforge and vLLM.

    where, replace: see `agentgym.run.torchforge`, which is loaded only then.
    """
    if not any(_is_foreign(name, section) for name, section in given.items()):
        return dict(given)
    from agentgym.run.torchforge import with_our_names as read_as_ours

    return read_as_ours(given, where, note=log.warning, replace=replace)


def _is_foreign(name: str, section: object) -> bool:
    """Whether a section is none of ours, or one that torchforge has too and not as ours."""
    if (shared := SHARED_SECTIONS.get(name)) is None:
        return name not in SECTIONS
    if not isinstance(section, Mapping):
        return isinstance(section, str)
    plain = {one.name: isinstance(one.default, bool | int | float | str) for one in fields(shared)}
    return any(key not in plain or (plain[key] and isinstance(value, Mapping)) for key, value in section.items())


def layered(
    given: Mapping[str, object], *, base: Mapping[str, object], where: str, rates: LearningRates | None = None
) -> tuple[dict[str, object], dict[str, str]]:
    """What is given, with the model's defaults under it; and where each field comes from that is not a default.

    base: the part of `given` that a file sets, as it was read. where: what to call that file. The second result
    is by dotted key. Values are not checked: that is for whoever builds the recipe. rates: instead of those of
    reinforcement learning.
    """
    fields, of_base = _flat(given), _flat(base)
    unchanged = {key for key, value in fields.items() if key in of_base and of_base[key] == value}
    sources = {key: origin(where, key) if key in unchanged else COMMAND_LINE for key in fields}
    result = {name: dict(section) if isinstance(section, Mapping) else section for name, section in given.items()}
    path = fields.get("model.path", TINY)
    for key, default in model_defaults(path, fields, rates).items() if isinstance(path, str) else ():
        name, _, field = key.partition(".")
        section = result.setdefault(name, {})
        if section is None:  # an empty section of the file
            section = result[name] = {}
        if key not in fields and isinstance(section, dict):
            section[field] = default.value
            sources[key] = default.source
    return result, sources


def _flat(mapping: Mapping[str, object]) -> dict[str, object]:
    """Fields by dotted key; a section that is not a mapping is left out."""
    return {
        f"{name}.{field}": value
        for name, section in mapping.items()
        if isinstance(section, Mapping)
        for field, value in section.items()
    }
