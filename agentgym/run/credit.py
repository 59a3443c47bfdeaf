"""What a recipe's advantage needs beside the trainer: a critic, and a teacher that speaks the policy's tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from agentgym.actors.runtime import Runtime
from agentgym.errors import UserError
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.recipe import Recipe
from agentgym.trainer.credit import Credit
from agentgym.trainer.reference import ReferenceModel
from agentgym.trainer.setup import TrainerSetup

TOKENIZER = "tokenizer.json"


def find_teacher(recipe: Recipe, model_path: Path, scratch: Path) -> Path | None:
    """The folder of the advantage's teacher; None where it has none.

    Raises UserError for a model that is not there, can't be run by the trainer, is too short, or has other tokens.
    """
    path = recipe.advantage.teacher_path
    if path is None:
        return None
    if not path:
        raise UserError("advantage.teacher is empty; name the model to learn from, as model.path names one")
    teacher = resolve_model(path, scratch)
    positions = read_architecture(teacher).max_positions
    if positions < recipe.trainer.seq_len:
        raise UserError(
            f"the teacher {teacher} has {positions} positions, but trainer.seq_len is {recipe.trainer.seq_len}; "
            "lower it, or take another teacher"
        )
    mine, other = _tokens(model_path), _tokens(teacher)
    differing = sorted(token for token in mine.keys() | other.keys() if mine.get(token) != other.get(token))
    if differing:
        raise UserError(
            f"the teacher {teacher} has other tokens than {model_path}: {len(differing)} differ, for example "
            f"{differing[0]!r}. It judges the policy's tokens, so take a model with the same tokenizer"
        )
    return teacher


def make_credit(
    recipe: Recipe, setup: TrainerSetup, teacher: Path | None, runtime: Runtime, *, early: bool = False
) -> Credit:
    """Its teacher is not started yet. early: see ReferenceModel."""
    model = None
    if teacher is not None:
        of_teacher = replace(setup, model_path=str(teacher))
        model = ReferenceModel(of_teacher, runtime=runtime, name="teacher", early=early)
    return Credit(advantage=recipe.advantage, teacher=model)


def _tokens(folder: Path) -> dict[str, int]:
    """Every token with its number."""
    file = folder / TOKENIZER
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        vocab = content["model"]["vocab"]
        if isinstance(vocab, list):  # a unigram model: pieces with scores
            vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
        return {**vocab, **{token["content"]: token["id"] for token in content.get("added_tokens", [])}}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} can't be compared with the teacher's: {error!r}. Distillation needs both tokenizers as "
            f"{TOKENIZER}, to see that they are the same"
        ) from error
