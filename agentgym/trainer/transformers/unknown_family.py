"""A model of a family without a record is trained only if transformers computes its exported weights as the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym.errors import UserError, nearest
from agentgym.families.architecture import Architecture
from agentgym.families.registry import families
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.packing_probe import LENGTHS, LIMITS, document
from agentgym.trainer.parallel import Ranks
from agentgym.types import Sample


def prove_unknown(
    architecture: Architecture,
    trainer: TrainerConfig,
    ranks: Ranks,
    folder: str,
    logprobs: Callable[[Sequence[Sample]], list[tuple[float, ...]]],
    weights: Iterable[tuple[str, Tensor]],
) -> None:
    """Raises UserError where a fresh forward pass differs. Collective, as `logprobs` and `weights` are.

    weights: of the trainer, under the names in files. Nothing is computed for families with a record: tests prove them.
    """
    if architecture.model_type in families():
        return
    documents = [document(f"fresh-{size}", size, architecture.vocab_size) for size in LENGTHS]
    ours = logprobs(documents)
    exported = {name: weight.detach().to("cpu", copy=True) for name, weight in weights if ranks.rank == 0}
    differs = torch.zeros((), device=ranks.device)
    if ranks.rank == 0:
        differs.fill_(_difference(documents, ours, _fresh(Path(folder), exported)))
    difference = float(ranks.same(differs))
    if not difference <= LIMITS[trainer.dtype]:
        raise UserError(
            f"{folder}: {architecture.model_type!r} is a family without a record, and its log-probabilities in the "
            f"trainer differ by {difference:.2g} nats from those of a fresh forward pass of transformers with the "
            f"exported weights (at most {LIMITS[trainer.dtype]:g} in {trainer.dtype}), so it can't be trained."
            f"{nearest(architecture.model_type, families())} docs/models.md says how to add one"
        )


def _fresh(folder: Path, weights: dict[str, Tensor]) -> Any:
    """Raises UserError for weights that transformers does not take as a whole model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM  # its classmethods have no types
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        kind = type(factory.from_config(config))
    model, info = kind.from_pretrained(None, config=config, state_dict=weights, output_loading_info=True)
    if absent := sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"]))):
        raise UserError(f"{folder}: transformers finds no {absent[0]} in the weights that the trainer exports")
    return model.eval()


@torch.no_grad()
def _difference(documents: Sequence[Sample], ours: Sequence[Sequence[float]], model: Any) -> float:
    """The largest, in nats; NaN where one is not a number."""
    found = []
    for one, trained in zip(documents, ours, strict=True):
        tokens = torch.tensor([one.token_ids])
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
        theirs = logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        found.append((theirs - torch.tensor(trained[1:])).abs().max())
    return float(torch.stack(found).max())
