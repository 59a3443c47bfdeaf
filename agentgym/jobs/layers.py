"""The layers of a recipe: its own defaults, what fits the model, the recipe's file, the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from agentgym.config import origin
from agentgym.hooks import PluginRegistry
from agentgym.jobs.sft_config import LEARNING_RATES, SftRecipe
from agentgym.jobs.torchforge import with_our_names
from agentgym.models.defaults import LearningRates, model_defaults
from agentgym.models.resolve import TINY
from agentgym.recipe import Recipe, build_kind, build_recipe

log = logging.getLogger(__name__)

COMMAND_LINE = "command line"


def finish_recipe(
    given: Mapping[str, object],
    *,
    base: Mapping[str, object] | None = None,
    where: str = "recipe",
    plugins: Callable[[Sequence[str]], PluginRegistry] = PluginRegistry.discover,
) -> tuple[Recipe, dict[str, str]]:
    """The recipe, and where its fields come from: see `layered`. plugins: see `build_recipe`."""
    mapping, sources = layered(given, base=base or {}, where=where)
    return build_recipe(mapping, where, plugins), sources


def finish_sft(
    given: Mapping[str, object],
    *,
    base: Mapping[str, object] | None = None,
    where: str = "recipe",
    plugins: Callable[[Sequence[str]], PluginRegistry] = PluginRegistry.discover,
) -> tuple[SftRecipe, dict[str, str]]:
    """As `finish_recipe`, of supervised fine-tuning, which has learning rates of its own."""
    mapping, sources = layered(given, base=base or {}, where=where, rates=LEARNING_RATES)
    return build_kind(SftRecipe, mapping, where, plugins), sources


def layered(
    given: Mapping[str, object], *, base: Mapping[str, object], where: str, rates: LearningRates | None = None
) -> tuple[dict[str, object], dict[str, str]]:
    """What is given, with the model's defaults under it; and where each field comes from that is not a default.

    base: the part of `given` that a file sets, as it was read. where: what to call that file. The second result
    is by dotted key. Values are not checked: that is for whoever builds the recipe. rates: instead of those of
    reinforcement learning.
    """
    given = with_our_names(given, where, note=log.warning, replace=True)
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
