"""The layers of a recipe: its own defaults, what fits the model, the recipe's file, the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields as fields_of

from agentgym.config import COMMAND_LINE, origin, with_overrides
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.models.defaults import LearningRates, model_defaults
from agentgym.models.resolve import TINY
from agentgym.recipe import Recipe, build_kind, build_recipe
from agentgym.run.sft_config import LEARNING_RATES, SftRecipe
from agentgym.run.torchforge import with_our_names

log = logging.getLogger(__name__)

OF_SFT = {one.name for one in fields_of(SftRecipe)} - {one.name for one in fields_of(Recipe)}
OF_TRAINING = {one.name for one in fields_of(Recipe)} - {one.name for one in fields_of(SftRecipe)}
"""Sections that only one of the two kinds of recipe has."""


def finish_recipe(
    given: Mapping[str, object],
    *,
    base: Mapping[str, object] | None = None,
    where: str = "recipe",
    plugins: Callable[[Sequence[str]], PluginRegistry] = PluginRegistry.discover,
) -> tuple[Recipe, dict[str, str]]:
    """The recipe, and where its fields come from: see `layered`. plugins: see `build_recipe`."""
    ours, blamed = _given(given, base or {}, where, OF_SFT, "supervised fine-tuning: use `agentgym sft`")
    mapping, sources = layered(ours, base=base or {}, where=where)
    return build_recipe(mapping, blamed, plugins), sources


def finish_sft(
    given: Mapping[str, object],
    *,
    base: Mapping[str, object] | None = None,
    where: str = "recipe",
    plugins: Callable[[Sequence[str]], PluginRegistry] = PluginRegistry.discover,
) -> tuple[SftRecipe, dict[str, str]]:
    """As `finish_recipe`, of supervised fine-tuning, which has learning rates of its own."""
    advice = "reinforcement learning: give it to `agentgym train`, and leave it out of `agentgym sft`"
    ours, blamed = _given(given, base or {}, where, OF_TRAINING, advice)
    mapping, sources = layered(ours, base=base or {}, where=where, rates=LEARNING_RATES)
    return build_kind(SftRecipe, mapping, blamed, plugins), sources


def _given(
    given: Mapping[str, object], base: Mapping[str, object], where: str, others: Collection[str], advice: str
) -> tuple[dict[str, object], str]:
    """What is given, under our names, and what its errors call it: the files, or the command line.

    Raises UserError for sections of `others`, that only the other kind of recipe has.
    """
    blamed = with_overrides(where, given, base)
    if found := [name for name in given if name in others]:
        sources = ", ".join(dict.fromkeys(origin(blamed, name) for name in found))
        noun, verb = ("section", "is") if len(found) == 1 else ("sections", "are")
        raise UserError(f"{sources}: the {noun} {', '.join(map(repr, found))} {verb} for {advice}")
    ours = with_our_names(given, blamed, note=log.warning, replace=bool(base))
    return ours, with_overrides(where, ours, base)


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
