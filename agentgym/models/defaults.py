"""Settings that fit a model: the shipped policy brings its own, any other's follow from its config and the device."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from agentgym.errors import UserError
from agentgym.families.registry import architecture_of, read_config
from agentgym.models.device import pick_device
from agentgym.models.resolve import TINY, ModelUnavailable, is_tiny, model_config
from agentgym.models.smollm2 import SMOLLM2
from agentgym.models.tiny import policy_path, policy_recipe
from agentgym.policies.outside.config import served_name

LENGTHS = ("trainer.seq_len", "generator.max_model_len", "rollout.max_episode_tokens")
TURN_LENGTH = "rollout.max_turn_tokens"
ROWS = "trainer.rows_per_microbatch"
KEYS = ("optimizer.lr", *LENGTHS, TURN_LENGTH, "trainer.dtype", "generator.dtype", "trainer.compile", ROWS)
"""The fields of a recipe whose defaults depend on the model."""

MAX_LENGTH = {"cpu": 1024, "cuda": 4096}  # tokens, where the model's own context is longer
MAX_LENGTHS = {SMOLLM2: {"cpu": 1024, "cuda": 2048}}  # of models that lose the thread before their context is full
MICROBATCHES = ((3 * 10**9, 8192), (0, 16_384))
"""Least number of parameters, and tokens at a time on a GPU: fewer leave it waiting for its next kernel."""
LENGTH_STEP = 64  # rows are shared by the ranks of tensor parallelism
LearningRates: TypeAlias = Sequence[tuple[int, float]]
OF_SERVERS = {TURN_LENGTH: 4096, "rollout.max_episode_tokens": 32768, "rollout.episode_time_s": 3600.0}
"""For a policy behind a server: thoughts count, and nothing of it has to fit into a machine here."""
LEARNING_RATES: LearningRates = ((10**9, 1e-6), (3 * 10**8, 5e-6), (10**8, 3e-5), (10**7, 5e-5), (0, 5e-4))
"""Least number of parameters, and where to start with full fine-tuning by AdamW. From 100 million: as SmolLM2 learns in
docs/results.md.
"""
SFT_LEARNING_RATES: LearningRates = ((10**9, 1e-5), (10**8, 1e-4), (10**7, 3e-4), (0, 1e-3))
"""The same for supervised fine-tuning."""


class Default(NamedTuple):
    """source: where the value comes from, for a person."""

    value: object
    source: str


LORA_FACTOR = 10
"""What adapters learn faster by than all weights do: "LoRA Without Regret", Schulman and others, 2025."""


def model_defaults(path: str, given: Mapping[str, object], rates: LearningRates | None = None) -> dict[str, Default]:
    """The model's defaults, with the learning rate of adapters if `trainer.lora` has a rank."""
    found = _model_defaults(path, given, rates)
    lora, rate = given.get("trainer.lora"), found.get("optimizer.lr")
    if isinstance(lora, Mapping) and lora.get("rank") and rate is not None and isinstance(rate.value, float):
        source = f"{rate.source}; {LORA_FACTOR} times that of full fine-tuning, for trainer.lora"
        found["optimizer.lr"] = Default(value=LORA_FACTOR * rate.value, source=source)
    return found


def _model_defaults(path: str, given: Mapping[str, object], rates: LearningRates | None) -> dict[str, Default]:
    """The defaults of `KEYS` for a model, by dotted key; a key that is absent keeps the recipe's own default.

    given: the fields that a recipe or the command line sets, by dotted key. Lengths follow those that are given.
    rates: other learning rates than those of reinforcement learning, also for the shipped policy.
    """
    if served_name(path) is not None:
        return {key: Default(value=value, source="a policy behind a server") for key, value in OF_SERVERS.items()}
    if is_tiny(path):
        own = {
            f"{section}.{name}": Default(value=value, source=f"recipe of {TINY}")
            for section, fields in policy_recipe().items()
            if isinstance(fields, Mapping)
            for name, value in fields.items()
        }
        return own | (_rate(read_config(policy_path()), rates) if rates else {})
    if all(key in given for key in KEYS):
        return {}  # nothing to look up: a hub may be out of reach
    try:
        config = model_config(path)
    except ModelUnavailable:
        config = {}  # whoever loads the model reports why
    found: dict[str, Default] = {}
    for section in ("trainer", "generator"):
        device = _device(section, given)
        dtype = "bfloat16" if device == "cuda" else "float32"
        found[f"{section}.dtype"] = Default(value=dtype, source=f"the device: {device}")
    on_gpu, exchanged = _device("trainer", given) == "cuda", given.get("trainer.expert_parallel", 1) != 1
    source = "trainer.expert_parallel, with which nothing is compiled" if exchanged else found["trainer.dtype"].source
    found["trainer.compile"] = Default(value=on_gpu and not exchanged, source=source)
    if config or any(key in given for key in LENGTHS):
        found |= _lengths(config, given, MAX_LENGTHS.get(path, MAX_LENGTH))
    if on_gpu and config:
        found[ROWS] = _rows(given.get("trainer.seq_len", found["trainer.seq_len"].value), config)
    return found | _rate(config, rates or LEARNING_RATES)


def _rows(seq_len: object, config: Mapping[str, object]) -> Default:
    """Larger models keep more of each token until the backward pass, and fill a GPU with fewer."""
    parameters = _num_parameters(config) or 0
    tokens = next(tokens for least, tokens in MICROBATCHES if parameters >= least)
    rows = max(1, tokens // seq_len) if isinstance(seq_len, int) and seq_len > 0 else 4
    return Default(value=rows, source=f"the device: cuda, {tokens:,} tokens at a time in rows of {seq_len}")


def _rate(config: Mapping[str, object], rates: LearningRates) -> dict[str, Default]:
    parameters = _num_parameters(config)
    if parameters is None:
        return {}
    rate = next(rate for least, rate in rates if parameters >= least)
    return {"optimizer.lr": Default(value=rate, source=f"the model: {parameters:,} parameters")}


def _lengths(config: Mapping[str, object], given: Mapping[str, object], most: Mapping[str, int]) -> dict[str, Default]:
    """One length for rows, context and episode, so that they fit; that of the given ones where there are any."""
    context = _context(config)
    longest = context if isinstance(context, int) and context > 0 else sys.maxsize
    fixed = [value for key in LENGTHS if isinstance(value := given.get(key), int)]
    turn = given.get(TURN_LENGTH)
    if fixed:
        length = min(*fixed, longest)
        source = f"{', '.join(key for key in LENGTHS if key in given)}, given"
    else:
        device = "cuda" if _device("trainer", given) == _device("generator", given) == "cuda" else "cpu"
        bound = max(most[device], turn if isinstance(turn, int) else 0)
        length = min(-(-bound // LENGTH_STEP) * LENGTH_STEP, longest)
        length -= length % LENGTH_STEP if length > LENGTH_STEP else 0
        source = f"the model: a context of {context} tokens (at most {bound} by default on this device)"
    found = {key: Default(value=length, source=source) for key in LENGTHS}
    episode = given.get("rollout.max_episode_tokens", length)
    turn_length = max(1, episode // 4) if isinstance(episode, int) else length
    found[TURN_LENGTH] = Default(value=turn_length, source="a quarter of rollout.max_episode_tokens")
    return found


def _context(config: Mapping[str, object]) -> object:
    """The context length of the language model in it, by either of its usual names."""
    inner = config.get("text_config")
    for of in (inner if isinstance(inner, Mapping) else {}, config):
        for name in ("max_position_embeddings", "n_positions"):
            if name in of:
                return of[name]
    return None


def _num_parameters(config: Mapping[str, object]) -> int | None:
    """None for an architecture that can't be trained here; what is wrong with it is reported when it is loaded."""
    try:
        return architecture_of(config, "config.json").num_parameters
    except UserError:
        return None


def _device(section: str, given: Mapping[str, object]) -> str:
    """What is given counts, also on a machine without it: a recipe may be prepared elsewhere."""
    device = str(given.get(f"{section}.device", "auto"))
    return pick_device("auto", section) if device == "auto" else device
