"""A policy of a given architecture with freshly drawn weights, for tests of size and speed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def write_random_policy(source: Path, target: Path, *, seed: int = 0) -> Path:
    """Draw weights for `source`'s config.json, and write them to `target` with its tokenizer.

    bfloat16, scaled as the architecture's own initialisation says. Returns `target`.
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
