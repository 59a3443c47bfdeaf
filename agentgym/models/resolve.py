"""Resolves `model.path` to a local folder in Hugging Face format."""

from __future__ import annotations

import filecmp
import hashlib
import shutil
from pathlib import Path
from typing import Any

from agentgym.errors import UserError, nearest
from agentgym.families.architecture import Architecture
from agentgym.families.registry import architecture_of, read_config
from agentgym.models.released import released_config
from agentgym.models.smollm2 import SMOLLM2, smollm2_folder
from agentgym.models.tiny import policy_path
from agentgym.policies.outside.config import served_name
from agentgym.text.tokenizer_files import check_tokenizer_files

TINY = "builtin:tiny"
ALLOWED = f"a checkpoint of a run, a Hugging Face folder, a hub name like Qwen/Qwen3-0.6B, {TINY} or {SMOLLM2}"


class ModelUnavailable(UserError):
    """There is no config.json of a model, here or at the hub: the error says what to do."""


def resolve_model(path: str, scratch: Path, *, random_weights: bool = False) -> Path:
    """The folder of a model: the shipped one, a local one, a package's, or one from the hub, each in its cache.

    random_weights: the same architecture and tokenizer with freshly drawn weights, in a folder under `scratch`.
    """
    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    folder = _checked(local_folder(path) or _download(path, patterns))
    return write_random_policy(folder, scratch / "random-weights") if random_weights else folder


def resolve_tokenizer(path: str) -> Path:
    """The folder of a model's tokenizer; from the hub without the weights."""
    return _checked(local_folder(path) or _download(path, ["*.json", "*.txt", "*.model", "*.jinja"]))


def model_config(path: str) -> dict[str, Any]:
    """The model's config.json: from its folder, from what is known of released models, or from the hub.

    Raises ModelUnavailable where there is none, and UserError for a file that is there and can't be read.
    """
    try:
        folder = local_folder(path)
    except UserError as error:
        known = released_config(path)  # of a package that is not installed
        if known is None:
            raise ModelUnavailable(str(error)) from error
        return known
    if folder is None:
        known = released_config(path)
        if known is not None:
            return known
        folder = _download(path, ["config.json"])
    return read_config(_checked(folder))


def model_architecture(path: str) -> Architecture:
    """Raises UserError where the model's config.json is out of reach, or of a model that can't be trained."""
    return architecture_of(model_config(path), path)


def check_local(path: str) -> None:
    """Checks a path for a dry run. Raises UserError for a path where nothing is, or a folder that is not a model's, or
    whose files no tokenizer can be built of; the hub is not asked.
    """
    folder = local_folder(path)
    if folder is not None:
        read_config(_checked(folder))
        check_tokenizer_files(folder, parse=True)


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
    if folder.exists():
        raise UserError(f"the model {path!r} is a file; give {ALLOWED}")
    parent = folder.parent
    if path.startswith(("builtin:", "pypi:")):
        raise UserError(f"no model {path!r}.{nearest(path, (TINY, SMOLLM2))} Or give {ALLOWED}.")
    if path.startswith((".", "/", "~")) or path.count("/") != 1 or parent.is_dir():
        siblings = [place.name for place in parent.iterdir() if place.is_dir()] if parent.is_dir() else []
        hint = nearest(folder.name, siblings) if siblings else ""
        raise UserError(f"no model folder {path!r}.{hint} Give {ALLOWED}.")
    return None


def is_tiny(path: str) -> bool:
    """Whether it is the shipped policy or a checkpoint of it: a folder with the same architecture and tokenizer."""
    if path == TINY or not Path(path).is_dir():
        return path == TINY
    folder, ours = local_folder(path) or Path(path), policy_path()
    tokenizer = folder / "tokenizer.json"
    if not (tokenizer.is_file() and (folder / "config.json").is_file()):
        return False
    if not filecmp.cmp(tokenizer, ours / "tokenizer.json", shallow=False):
        return False
    try:
        return architecture_of(read_config(folder), path) == architecture_of(read_config(ours), TINY)
    except UserError:
        return False  # what is wrong with it is reported when it is loaded


def weights_mark(folder: Path) -> str:
    """Changes when the weights in a model's folder are written again: by the size and time of their files."""
    files = sorted((path.name, path.stat()) for path in folder.glob("*.safetensors"))
    text = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in files)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write_random_policy(source: Path, target: Path, *, seed: int = 0, device: str = "cpu") -> Path:
    """A policy with `source`'s config.json and tokenizer and freshly drawn weights, for tests of size and speed.

    bfloat16, scaled as the architecture's own initialisation defines. device: of torch, which draws them; others draw
    other values. Returns `target`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    target.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(source)
    factory: Any = AutoModelForCausalLM  # its classmethods have no types
    with torch.device(device):
        model = factory.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(target)
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model") and not (target / file.name).exists():
            shutil.copy(file, target / file.name)
    return target


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"the model folder {str(folder)!r} has no config.json; give {ALLOWED} as --model.path")
    return folder


def _download(name: str, patterns: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds: all mean that the model is unavailable
        raise ModelUnavailable(f"the model {name!r} {_why_unavailable(name, error)}") from error


def _why_unavailable(name: str, error: Exception) -> str:
    """The rest of a sentence: why, and what to do."""
    other = f"could not be loaded from the hub ({' '.join(str(error).split())}); give a folder with it as --model.path"
    if isinstance(error, ImportError):
        return other
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"is not whole in the cache {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} cannot be reached; where it "
            f"can, run `hf download {name} --local-dir FOLDER`, copy that folder here, and give it as --model.path"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"is not at {constants.ENDPOINT}, or is private or gated: check the name, accept its terms there and run "
            "`hf auth login`, or give another as --model.path"
        )
    return other
