"""Finds the family of a model, and reads a model's config.json by it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from agentgym.errors import UserError
from agentgym.families import by_transformers, known
from agentgym.families.architecture import Architecture
from agentgym.families.config_file import check_fields
from agentgym.families.family import Family, Router
from agentgym.runs.files import read_json

MAX_CONFIG_BYTES = 16 << 20  # the largest in use has some 100 kB


@cache
def families() -> Mapping[str, Family]:
    """All known families by model_type, in the order of their modules' names."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(known.__path__, f"{known.__name__}."):
        for family in importlib.import_module(module.name).FAMILIES:
            found |= dict.fromkeys(family.model_types, family)
    return found


def family_of(architecture: Architecture) -> Family:
    """One with the defaults for a model of no known family."""
    return families().get(architecture.model_type) or Family(model_types=(architecture.model_type,))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of any model. Raises UserError when it is missing or not a JSON object.

    Of a known family also for a field that no model can have.
    """
    path = folder / "config.json"
    if not path.exists():
        raise UserError(f"there is no {path}: give a Hugging Face model folder (config.json and *.safetensors)")
    config: dict[str, Any] = read_json(path, max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(config.get("model_type", ""), str):
        raise UserError(f"{path}: model_type is {config['model_type']!r:.80}; it must be a text")
    if config.get("model_type") in families():
        check_fields(config, path)
    return config


def read_architecture(folder: Path) -> Architecture:
    """Of any model that transformers knows; of dense ones without it. Raises UserError for others."""
    return architecture_of(read_config(folder), folder / "config.json")


def architecture_of(config: Mapping[str, Any], path: object) -> Architecture:
    """Reads the architecture from the contents of a config.json. path: names it in errors."""
    family = families().get(str(config.get("model_type")))
    if family is None or family.dense is None or family.dense.refusal(config):
        return by_transformers.read(config, path)
    return family.dense.read(config, path)


def read_dense(folder: Path) -> Architecture:
    """As `dense_of`, of the folder's config.json."""
    return dense_of(read_config(folder), folder / "config.json")


def dense_of(config: Mapping[str, Any], path: object) -> Architecture:
    """Raises UserError for a model that the trainer engine `titan` and the native generator do not compute exactly."""
    known_dense = [name for name, family in families().items() if family.dense is not None]
    family = families().get(str(config.get("model_type")))
    if family is None or family.dense is None:
        raise UserError(
            f"{path}: model_type is {config.get('model_type')!r}; trainer.engine=titan and generator.engine=native "
            f"are for dense models of {', '.join(map(repr, known_dense))}. Take trainer.engine=transformers and "
            "generator.engine=transformers, or vllm on a GPU"
        )
    if refused := family.dense.refusal(config):
        raise UserError(f"{path}: trainer.engine titan and generator.engine native do not compute {refused}")
    return family.dense.read(config, path)


def read_titan(folder: Path) -> Architecture:
    """As `read_dense`, of mixtures of experts too; their layers with experts are in `experts`."""
    config, path = read_config(folder), folder / "config.json"
    family = families().get(str(config.get("model_type")))
    if family is None or family.mixture is None:
        return dense_of(config, path)
    if refused := family.mixture.refusal(config):
        raise UserError(f"{path}: trainer.engine titan does not compute {refused}")
    sizes = family.mixture.read(config, path)
    found = by_transformers.read(config, path)
    return replace(found, rope_theta=sizes.rope_theta, rope_scaling=sizes.rope_scaling, layers=(), window=None)


def known_router(architecture: Architecture) -> Router:
    """Of a mixture of experts. Raises UserError for a model without one, or of a family whose router is not known."""
    router = family_of(architecture).router
    if router is None or architecture.experts is None:
        having = sorted(name for name, family in families().items() if family.router is not None)
        raise UserError(
            f"the model is a {architecture.model_type}, of which no routers are known: set trainer.router_replay to "
            f"off; it is for {', '.join(having)}"
        )
    return router


def expert_layers(folder: Path) -> tuple[int, ...]:
    """The layers with experts of the model in a folder. Raises UserError as `known_router`."""
    architecture = read_architecture(folder)
    known_router(architecture)
    assert architecture.experts is not None
    return architecture.experts.layers
