"""Adapters of a plain model, as a trainer publishes them, and the model with them added by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from plain_model import PlainModel, make_model
from torch import Tensor

from agentgym.weights.adapters import NOTE, A, AdapterNote, B
from agentgym.weights.digest import digest

SCALE = 2.5


def adapted(base: PlainModel, folder: Path, *, seed: int) -> tuple[dict[str, Tensor], PlainModel]:
    """A version of adapters, drawn at random, and the plain model with them added to its matrices."""
    weights = dict(base.weights())
    note = AdapterNote(scale=SCALE, base_dtype="float32", dtype="float32", base=digest(weights.items()))
    version = {NOTE: note.to_tensor(torch.device("cpu"))}
    plain = make_model(folder, seed=0)
    plain.model.load_state_dict(base.model.state_dict())
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in plain.model.named_parameters():
            if "_proj" in name:
                stem = name.removesuffix("weight")
                version[stem + A], version[stem + B] = torch.randn(3, weight.shape[1]), torch.randn(len(weight), 3) / 20
                weight += SCALE * version[stem + B] @ version[stem + A]
    return version, plain
