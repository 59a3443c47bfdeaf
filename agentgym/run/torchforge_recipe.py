"""A recipe of ours from one of torchforge: names and values converted, and a comment for what has no counterpart."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentgym.config import describe
from agentgym.errors import UserError
from agentgym.recipe import Recipe
from agentgym.run.torchforge import OTHERS, SECTIONS, SERVICE_FIELDS, set_field, settings_of, vllm_field
from agentgym.yaml import dump_inline, dump_yaml, flat, value_at

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_MOST_REFERENCES = 100  # of one value, which then refers to itself
_EPISODES = (
    "replay_buffer.batch_size", "trainer.training.local_batch_size", "local_batch_size", "training.batch_size",
    "training.local_batch_size",
)  # fmt: skip
"""Settings of how much a step has for each rank, the first of which counts; likewise below."""
_RANKS = (
    "replay_buffer.dp_size", "trainer.parallelism.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree",
)  # fmt: skip
_PROCS = ("processes.procs", "actors.trainer.procs", "services.trainer.procs")
_SIZES = ("grpo.n_samples", "policy.sampling_params.n", "group_size")
_SAID_ELSEWHERE = (
    "dataset.model", "model_name", "model.name", "model.flavor", "trainer.model.name", "trainer.model.flavor",
)  # fmt: skip
_DATASET = ("dataset.path", "dataset.revision", "dataset.subset")
OWN = {one.key for one in describe(Recipe)}
_CHECKPOINTING = {"none": "none", "full": "full", "selective": "selective", "op": "selective"}


def resolved(mapping: Mapping[str, object], where: str) -> dict[str, object]:
    """The mapping with OmegaConf's `${key}`, `${sum:a,b}` and `${oc.env:NAME,default}` replaced by their values.

    What refers to nothing stays as it is. Raises UserError for a value that refers to itself.
    """

    def value_of(reference: str) -> object:
        name, colon, rest = reference.partition(":")
        words = [one.strip() for one in rest.split(",")]
        if not colon:
            return value_at(mapping, reference)
        if name == "oc.env":
            return os.environ.get(words[0], words[1] if len(words) > 1 else None)
        return sum(map(int, words)) if name == "sum" and all(map(str.isdecimal, words)) else None

    def replaced(value: object, key: str) -> object:
        for _ in range(_MOST_REFERENCES - key.count(".")):
            if isinstance(value, Mapping):
                return {name: replaced(inner, f"{key}.{name}") for name, inner in value.items()}
            if isinstance(value, list):
                return [replaced(inner, f"{key}.{place}") for place, inner in enumerate(value)]
            found = _REFERENCE.search(value) if isinstance(value, str) else None
            if not isinstance(value, str) or found is None or (one := value_of(found[1])) is None:
                return value
            value = one if found[0] == value else f"{value[: found.start()]}{one}{value[found.end() :]}"
        raise UserError(f"{where}: {key:.60} refers to itself")

    return {name: replaced(value, name) for name, value in mapping.items()}


@dataclass(slots=True)
class Converted:
    """recipe: under our names. notes: what was computed. left: theirs by key, each with why it has no counterpart."""

    recipe: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left: dict[str, tuple[object, str]] = field(default_factory=dict)

    def text(self, source: str) -> str:
        """As a file."""
        lines = [f"# From torchforge's {source}, by `agentgym convert`.", *(f"# {note}" for note in self.notes)]
        body = [dump_yaml(self.recipe).rstrip()] if self.recipe else []
        for why in sorted({why for _, why in self.left.values()}):
            body.append(f"# Without a counterpart here{f': {why}' if why else ''}")
            body += [f"#   {key}: {dump_inline(value)}" for key, (value, of) in self.left.items() if of == why]
        return "\n".join([*lines, *body, ""])


def convert(mapping: Mapping[str, object], where: str) -> Converted:
    """Raises UserError for a recipe that has no setting of torchforge, and for what `resolved` refuses."""
    theirs = resolved(mapping, where)
    fields, names, made = flat(theirs), settings_of(mapping), Converted()
    name = fields.pop("model.name") if "/" in str(fields.get("model.name")) else None
    if name := fields.pop("model", None) or name:
        fields["model.hf_assets_path"] = name
    if not any(key in names or key.partition(".")[0] in SECTIONS for key in flat(theirs)):
        raise UserError(f"{where} has no setting of torchforge: it is a recipe already, or another project's")
    known = {key: value for key, value in fields.items() if value is not None and "${" not in str(value)}
    used = _convert_batches(known, names, made, where) | _convert_data(fields, made)
    for key, value in fields.items():
        if key not in used and key not in _SAID_ELSEWHERE:
            _convert_one(key, value, names, made)
    if names["training.steps"] == "loop.steps" and "env" not in made.recipe:
        made.notes.append(f"env: the file names none of ours, so {Recipe().env.name} is played; `agentgym envs list`")
    return made


def _convert_batches(fields: Mapping[str, object], names: Mapping[str, str], made: Converted, where: str) -> set[str]:
    """torchforge's batches are episodes, or conversations, of each rank in each of the parts that it accumulates.

    Ours are groups, or conversations, of the whole step. Returns the settings that are done.
    """

    def number(keys: Sequence[str], default: int) -> int:
        for key in (one for one in keys if one in fields):
            text = str(fields[key]).removesuffix(".0")
            if (not text.isdecimal() and not (key in _RANKS and text == "-1")) or text == "0":
                raise UserError(f"{where}: {key} is {fields[key]!r}; give a whole number of at least 1")
            return int(text)
        return default

    target, size = names["training.local_batch_size"], 0
    used = {key for key in fields if names.get(key) == target} | {_RANKS[0]}
    if target == "loop.groups_per_step":
        size = number(_SIZES, 0)
        used |= {*_SIZES}
        tokens = [number([key], 0) for key in ("max_req_tokens", "max_res_tokens")]
        if all(tokens):
            set_field(made.recipe, "rollout.max_episode_tokens", sum(tokens))
            used.add("max_req_tokens")
        if not any(key.startswith("grpo.") for key in fields):
            made.notes.append("loss: the program has torchforge's, with a KL of beta 0.1; here it is loss.kl_coef")
    if size:
        set_field(made.recipe, "loop.group_size", max(2, size))
    if batch := next((key for key in _EPISODES if key in fields), ""):
        ranks = number(_RANKS, 1)
        ranks = ranks if ranks > 0 else number(_PROCS, 1)  # -1 is all of them
        parts = number(["training.gradient_accumulation_steps"], 1)
        count = number([batch], 1) * ranks * parts
        set_field(made.recipe, target, max(1, math.ceil(count / (size or 1))))
        groups = f", in groups of {max(2, size)}" if size else ""
        made.notes.append(f"{target}: {batch} {fields[batch]} x {ranks} ranks x {parts} parts are {count}{groups}")
    return used & {*fields}


def _convert_data(fields: Mapping[str, object], made: Converted) -> set[str]:
    """GSM8K is an environment of ours; other data sets are the user's to choose one for."""
    path = str(fields.get("dataset.path", ""))
    if "gsm8k" not in path.lower():
        return set()
    subset = str(fields.get("dataset.subset", fields.get("dataset.revision", "main")))
    options = {"source": "hub", "path": path, "subset": subset}
    made.recipe["env"] = {"name": "math", "options": options}
    return {*_DATASET, "dataset.streaming", "dataset.data_split", "dataset.split"}


def _convert_one(key: str, value: object, names: Mapping[str, str], made: Converted) -> None:
    section, _, rest = key.partition(".")
    service, _, place = rest.partition(".")
    target, why = names.get(key) or (key if key in OWN else ""), ""
    if section in ("services", "actors"):
        target = SERVICE_FIELDS.get(service, {}).get(place, "")
        why = "" if target else "no processes of its own here" if service in OTHERS else "decides nothing here"
    elif section == "generator" and rest in SERVICE_FIELDS["generator"]:
        target = SERVICE_FIELDS["generator"][rest]
    elif key.startswith("policy.engine_args.") and not target:
        target = vllm_field(key.removeprefix("policy.engine_args."))
        if value_at(made.recipe, "generator.engine.name") is None:
            set_field(made.recipe, "generator.engine.name", "vllm")
    elif section == "metric_logging":
        if service == "wandb":
            set_field(made.recipe, "logging.sinks", ["wandb"])
        target, why = "", "logging.sinks has names alone, and the terminal shows metrics always"
    elif section == "ref_model":
        target, why = "", "it has the trainer's settings; trainer.reference_gpus gives it GPUs of its own"
    elif not target and section in ("rollout_threads", "training_threads"):
        why = "groups are played as many as loop.max_staleness allows"
    if target in ("env", "sft.data"):
        target, why = "", "give tasks of an environment (env), conversations as files (sft.data)"
    if isinstance(value, str) and "${" in value:
        target, why = "", "it refers to what the file does not have"
    ours = _value(target, value)
    if ours is None or "." not in target:
        made.left[key] = (value, why)
        return
    before = value_at(made.recipe, target)
    if before is None:
        set_field(made.recipe, target, ours)
    elif before != ours:
        made.left[key] = (value, f"{target} is {dump_inline(before)}")


def _value(target: str, value: object) -> object:
    """None: nothing of ours is like it."""
    match target:
        case "model.path":
            return str(value).removeprefix("hf://") or None
        case "trainer.activation_checkpoint":
            return {True: "full", False: "none"}[value] if isinstance(value, bool) else _CHECKPOINTING.get(str(value))
        case "trainer.dtype" if value not in ("float32", "bfloat16"):
            return None
        case "generator.device" | "trainer.device":
            return {True: "cuda", False: "cpu"}.get(value) if isinstance(value, bool) else None
        case "generator.engine.options.pipeline_parallel_size" if value == 1:
            return None
    return value
