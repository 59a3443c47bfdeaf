"""The texts of a run's token ids, by the tokenizer of one of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Decode = Callable[[int], str]


def tokenizer_file(run_dir: Path) -> Path | None:
    """The tokenizer file of a checkpoint, or of an evaluation's model; None if the folder has none."""
    files = sorted(run_dir.glob("checkpoints/*/**/tokenizer.json")) or sorted(run_dir.glob("*/tokenizer.json"))
    return files[0] if files else None


def find_decoder(run_dir: Path, model: str = "") -> Decode | None:
    """A function from token id to text; None without a tokenizer or without the package `tokenizers`.

    model: a local folder to look into where the run's has none.
    """
    file = tokenizer_file(run_dir)
    if file is None and model and (place := Path(model) / "tokenizer.json").is_file():
        file = place
    if file is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(file))

    def decode(token_id: int) -> str:
        return str(tokenizer.decode([token_id], skip_special_tokens=False))

    return decode
