"""Names of torchforge and vLLM, read as ours: `services`, `actors`, `with_gpus`; `generator.vllm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from agentgym.config import COMMAND_LINE, origin
from agentgym.errors import UserError, nearest
from agentgym.generators.select import DECIDED, VllmEngineConfig
from agentgym.policies.outside.config import PolicyConfig
from agentgym.recipe import MOVED, Recipe
from agentgym.trainer.config import TrainerConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SECTIONS = ("services", "actors")
_GENERATOR = {
    "num_replicas": "generator.replicas",
    "procs": "generator.engine.tensor_parallel",
    "with_gpus": "generator.device",
}
SERVICE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "generator": _GENERATOR,
    "policy": _GENERATOR,
    "trainer": {"procs": "trainer.procs", "with_gpus": "trainer.device"},
}
"""By torchforge's name of a service and of its field: our field."""
IGNORED = ("hosts", "mesh_name", "num_replicas", "procs", "with_gpus")
"""Fields of a service that decide nothing here: names, one host, and the services that we place ourselves."""
OTHERS = ("ref_model", "reward_actor", "replay_buffer", "compute_advantages", "dataset")
"""Services of torchforge whose part is played without processes of its own, or beside the trainer."""

_OF_TRAINER: Mapping[str, str] = {
    "model.name": "model.path",
    "model.flavor": "model.path",
    "model.hf_assets_path": "model.path",
    "lr_scheduler.warmup_steps": "optimizer.warmup_steps",
    "training.seq_len": "trainer.seq_len",
    "training.max_norm": "optimizer.max_grad_norm",
    "training.dtype": "trainer.dtype",
    "compile.enable": "trainer.compile",
    "parallelism.tensor_parallel_degree": "trainer.tensor_parallel",
    "parallelism.context_parallel_degree": "trainer.context_parallel",
    "parallelism.data_parallel_shard_degree": "trainer.data_parallel_shard",
    "checkpoint.initial_load_path": "model.path",
    "activation_checkpoint.mode": "trainer.activation_checkpoint",
}
"""In the section `trainer`; in a recipe of fine-tuning at the top."""
SETTINGS: Mapping[str, str] = {
    "group_size": "loop.group_size",
    "local_batch_size": "loop.groups_per_step",
    "max_req_tokens": "rollout.max_episode_tokens",
    "max_res_tokens": "rollout.max_turn_tokens",
    "model": "model.path",
    "compile": "trainer.compile",
    "off_by_n": "loop.max_staleness",
    "replay_buffer.batch_size": "loop.groups_per_step",
    "replay_buffer.max_policy_age": "loop.max_staleness",
    **_OF_TRAINER,
    "training.local_batch_size": "sft.batch_size",
    "training.batch_size": "sft.batch_size",
    "training.steps": "sft.steps",
    "training.num_epochs": "sft.epochs",
    "training.dataset": "sft.data",
    "training.compile": "trainer.compile",
    "training.learning_rate": "optimizer.lr",
    "training.max_grad_norm": "optimizer.max_grad_norm",
    "training.warmup_steps": "optimizer.warmup_steps",
    "training.gradient_checkpointing": "trainer.activation_checkpoint",
    "training.gradient_accumulation_steps": "sft.batch_size",
    "training.sync_interval": "loop.sync_interval",
    "training.entropy_coef": "loss.entropy_coef",
    "checkpoint.interval": "sft.checkpoint_every",
    "checkpointing.save_interval": "sft.checkpoint_every",
    "grpo.n_samples": "loop.group_size",
    "grpo.clip_low": "loss.clip_low",
    "grpo.clip_high": "loss.clip_high",
    "grpo.beta": "loss.kl_coef",
    "grpo.temperature": "rollout.temperature",
    "ref_model.with_gpus": "trainer.reference_gpus",
    "processes.procs": "trainer.procs",
    "processes.with_gpus": "trainer.device",
    **{f"trainer.{key}": ours for key, ours in _OF_TRAINER.items()},
    "trainer.optimizer.lr": "optimizer.lr",
    "trainer.optimizer.eps": "optimizer.eps",
    "trainer.training.local_batch_size": "loop.groups_per_step",
    "trainer.training.steps": "loop.steps",
    "trainer.checkpoint.interval": "loop.checkpoint_every",
    "policy.engine_args": "generator.vllm",
    "policy.engine_args.model": "model.path",
    "policy.sampling_params.n": "loop.group_size",
    "policy.sampling_params.max_tokens": "rollout.max_turn_tokens",
    "policy.sampling_params.temperature": "rollout.temperature",
    "policy.sampling_params.top_p": "rollout.top_p",
    "metric_logging": "logging.sinks",
    "dataset": "env",
}
"""torchforge's settings, and ours for them: its values do not always fit ours, so `agentgym convert` reads them."""
_OF_RL: Mapping[str, str] = {
    "training.local_batch_size": "loop.groups_per_step",
    "training.batch_size": "loop.groups_per_step",
    "training.gradient_accumulation_steps": "loop.groups_per_step",
    "training.steps": "loop.steps",
    "checkpoint.interval": "loop.checkpoint_every",
    "checkpointing.save_interval": "loop.checkpoint_every",
}
"""Settings that a recipe of reinforcement learning has under the same names."""
_MARKS_RL = ("grpo", "group_size", "services", "actors", "policy", "replay_buffer", "generator")


def settings_of(mapping: Mapping[str, object]) -> Mapping[str, str]:
    """torchforge's settings, and ours, as the recipe means them: for reinforcement learning or for fine-tuning."""
    return {**SETTINGS, **_OF_RL} if any(name in mapping for name in _MARKS_RL) else SETTINGS


_MOVED_SECTIONS = {key.partition(".")[0] for key in MOVED}
_OWN_SECTIONS = _MOVED_SECTIONS | {one.name for one in fields(Recipe)}
_SHARED_SECTIONS: Mapping[str, type[DataclassInstance]] = {"trainer": TrainerConfig, "policy": PolicyConfig}
"""Sections of both that have few names in common, by our class."""


def with_our_names(
    mapping: Mapping[str, object], where: str, *, note: Callable[[str], None], replace: bool = False
) -> dict[str, object]:
    """The recipe with torchforge's places of processes, and `generator.vllm`, under our names; `note` gets each.

    where: names the recipe in errors. replace: they win over fields that a file sets under our names. Raises UserError
    for a service or field that torchforge does not have either, for its other settings, with ours, and for a field
    that is set otherwise under our name.
    """
    _refuse_settings(mapping, where)
    result = {key: value for key, value in mapping.items() if key not in SECTIONS}
    for section in SECTIONS:
        services = mapping.get(section)
        if services is None:
            continue
        if not isinstance(services, Mapping):
            raise UserError(
                f"{origin(where, section)}: {section} is {services!r}; it has a section for each service, as in "
                "torchforge"
            )
        for service, places in services.items():
            _take(result, f"{section}.{service}", str(service), places, where, note, replace)
    if isinstance(generator := result.get("generator"), Mapping):
        places = {key: value for key, value in generator.items() if key in IGNORED}
        result["generator"] = {key: value for key, value in generator.items() if key not in places}
        _take(result, "generator", "generator", places, where, note, replace)
    _take_vllm(result, where, note, replace)
    return result


def _refuse_settings(mapping: Mapping[str, object], where: str) -> None:
    """Name torchforge's settings, and all else that is not ours in such sections or at the top, at once."""
    leaves = list(_leaves(mapping, ""))
    if any(key in MOVED for key in leaves):
        return  # an older recipe of ours: where its fields are now is said when it is built
    foreign = [key for key in leaves if not _is_ours(key)]
    if isinstance(mapping.get("model"), str):  # ours is a section
        foreign.append("model")
    known = {key: setting for key in foreign if (setting := _setting_of(key))}
    if not known:
        return  # what else is wrong is explained when the recipe is built
    sources, settings = [*dict.fromkeys(origin(where, key) for key in foreign)], settings_of(mapping)
    lines = [f"\n  {setting}: {settings[setting]}" for setting in dict.fromkeys(known.values())]
    if others := [key for key in foreign if key not in known]:
        lines.append(f"\n  not here, leave out: {', '.join(others)}")
    lines += [f"\n`agentgym convert {file}` writes them as a recipe" for file in sources if file != COMMAND_LINE][:1]
    names = "torchforge's settings have other names here (docs/from_torchforge.md)"
    raise UserError(f"{', '.join(sources)}: {names}:{''.join(lines)}")


def _leaves(mapping: Mapping[str, object], section: str) -> Iterator[str]:
    for name, value in mapping.items():
        key = f"{section}.{name}" if section else str(name)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, key)
        else:
            yield key


def _is_ours(key: str) -> bool:
    section, _, rest = key.partition(".")
    if section in SECTIONS:
        return True
    if (ours := _SHARED_SECTIONS.get(section)) is None or not rest:
        return section in _OWN_SECTIONS and not (rest and key in SETTINGS)
    name = rest.partition(".")[0]
    return name in {one.name for one in fields(ours)} and key not in SETTINGS


def _setting_of(key: str) -> str:
    """The setting, or the section in `SETTINGS` that it is in; else nothing."""
    while key and key not in SETTINGS:
        key = key.rpartition(".")[0]
    return key


def _take_vllm(result: dict[str, object], where: str, note: Callable[[str], None], replace: bool) -> None:
    """`generator.vllm` holds vLLM's engine arguments by its own names, as `generator.engine.options` does."""
    generator = result.get("generator")
    if not isinstance(generator, Mapping) or "vllm" not in generator:
        return
    alias = "generator.vllm"
    arguments = {} if generator["vllm"] is None else generator["vllm"]
    if not isinstance(arguments, Mapping):
        raise UserError(
            f"{origin(where, alias)}: {alias} is {arguments!r}; it has vLLM's engine arguments, as in quantization: fp8"
        )
    result["generator"] = {key: value for key, value in generator.items() if key != "vllm"}
    engine = generator.get("engine")
    name = engine.get("name") if isinstance(engine, Mapping) else engine
    if name not in (None, "auto", "vllm"):
        raise UserError(
            f"{origin(where, alias)}: {alias} is set, but generator.engine.name is {name!r}: set that to vllm, or "
            f"leave {alias} out"
        )
    set_field(result, "generator.engine.name", "vllm", alias, "")
    for argument, value in arguments.items():
        target = vllm_field(str(argument))
        set_field(result, target, value, f"{alias}.{argument}", _guard(where, target, replace))
        note(f"{alias}.{argument} is read as {target}: {value}")


def vllm_field(argument: str) -> str:
    """Ours, where a field decides the argument of vLLM's engine."""
    ours = DECIDED.get(argument, "")
    if ours.startswith("generator."):
        return ours
    known = {one.name for one in fields(VllmEngineConfig)} - {"options"}
    return f"generator.engine.{argument}" if argument in known else f"generator.engine.options.{argument}"


def _take(
    result: dict[str, object],
    path: str,
    service: str,
    fields: object,
    where: str,
    note: Callable[[str], None],
    replace: bool,
) -> None:
    if service not in (*SERVICE_FIELDS, *OTHERS):
        raise UserError(f"{origin(where, path)}: there is no {path!r}.{nearest(service, (*SERVICE_FIELDS, *OTHERS))}")
    if not isinstance(fields, Mapping):
        raise UserError(f"{origin(where, path)}: {path} is {fields!r}; it has fields such as procs and with_gpus")
    for name, value in fields.items():
        target = SERVICE_FIELDS.get(service, {}).get(str(name))
        if target is not None:
            device = "cuda" if value is True else "cpu"
            ours = device if name == "with_gpus" and isinstance(value, bool) else value
            set_field(result, target, ours, f"{path}.{name}", _guard(where, target, replace))
            note(f"{path}.{name} is read as {target}: {ours}")
        elif name in IGNORED:
            note(f"{path}.{name} decides nothing here; leave it out")
        else:
            known = SERVICE_FIELDS.get(service, dict.fromkeys(IGNORED, ""))
            source = origin(where, f"{path}.{name}")
            raise UserError(f"{source}: there is no '{path}.{name}'.{nearest(str(name), known)}")


def _guard(where: str, target: str, replace: bool) -> str:
    """What set a field that no alias may contradict; nothing where one may."""
    source = origin(where, target)
    return "" if replace and source != COMMAND_LINE else source


def set_field(result: dict[str, object], key: str, value: object, alias: str = "", where: str = "") -> None:
    """Set a field by its dotted key, in place. where: empty replaces another value."""
    *sections, name = key.split(".")
    splits_engine = key == "generator.engine.tensor_parallel"
    if splits_engine and value == 1:
        return
    mapping = result
    for section in sections:
        given = mapping.get(section)
        inner: dict[str, object] = {"name": given} if isinstance(given, str) else {}
        inner |= given if isinstance(given, Mapping) else {}
        mapping[section] = inner
        mapping = inner
    if splits_engine:
        mapping.setdefault("name", "vllm")
    if where and mapping.get(name, value) != value:
        raise UserError(f"{where}: {alias} is {value!r} and {key} is {mapping[name]!r}, which mean the same: keep one")
    mapping[name] = value
