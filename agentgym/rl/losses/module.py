"""A loss in torchforge's form: an `nn.Module` over padded rows that returns one number."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from agentgym.errors import UserError
from agentgym.import_path import import_object
from agentgym.rl.losses.loss import Aggregation, Loss, Reduction, TokenLoss, TrainedTokens
from agentgym.rl.losses.mismatch import METRICS, mismatch
from agentgym.types import Json

if TYPE_CHECKING:
    from torch import Tensor

FORM = ("logprobs", "ref_logprobs", "advantages", "padding_mask")


def is_module(value: object) -> bool:
    from torch import nn

    return isinstance(value, type) and issubclass(value, nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLoss(Loss):
    """Calls `forward(logprobs, ref_logprobs, advantages, padding_mask)` of the class at `path`, made with `options`.

    A recipe names the class itself, `loss: {name: my_package.losses:SimpleGRPOLoss, beta: 0.1}`, and gets this.

    All four are [S, T]: the trained tokens of a sample in a row, filled up with zeros; padding_mask is True for tokens.
    What is between the trained tokens (tool text) is left out.
    """

    metrics: ClassVar[Mapping[str, Reduction]] = METRICS

    aggregation: Aggregation = "sequence_mean"
    """What the module's number is a mean over, the samples of a microbatch or, with token_mean, its tokens: choose what
    it divides by, then microbatches and processes change nothing."""
    path: str
    """The import path of the module's class."""
    options: dict[str, Json] = field(default_factory=dict)
    """Keyword arguments of the class."""
    reference: bool = True
    """Run a reference model; without one, ref_logprobs are those of logprobs."""

    @classmethod
    def settings_of(cls, path: str, settings: Mapping[str, object]) -> dict[str, object]:
        """The fields of this class from a section that names a module: what is not a field is an option."""
        own = {key: value for key, value in settings.items() if key in ("aggregation", "horizon", "reference")}
        return {"path": path, "options": {k: v for k, v in settings.items() if k not in own}, **own}

    def __post_init__(self) -> None:
        if self.aggregation == "fixed_horizon":
            raise ValueError("aggregation is fixed_horizon; a module's loss is a mean: sequence_mean or token_mean")
        _made(self.path, json.dumps(self.options))

    @property
    def needs_reference(self) -> bool:
        return self.reference

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        index_N = tokens.sample_index
        _, row_N, counts_S = index_N.unique_consecutive(  # type: ignore[no-untyped-call]
            return_inverse=True, return_counts=True
        )
        place_N = row_N.new_ones(len(row_N)).cumsum(0) - 1 - (counts_S.cumsum(0) - counts_S)[row_N]
        shape = (len(counts_S), int(counts_S.max()))

        def padded(values_N: Tensor) -> Tensor:
            return values_N.new_zeros(shape).index_put((row_N, place_N), values_N)

        module = _made(self.path, json.dumps(self.options))
        loss = module(
            logprobs=padded(tokens.logprobs),
            ref_logprobs=padded(tokens.ref_logprobs if self.reference else tokens.logprobs.detach()),
            advantages=padded(tokens.advantages),
            padding_mask=padded(row_N.new_ones(len(row_N)).bool()),
        )
        if loss.numel() != 1:
            raise UserError(f"{self.path} returned a loss of shape {[*loss.shape]}; it must be one number")
        return TokenLoss(loss=loss.reshape(1).expand(len(index_N)), metrics=mismatch(tokens, version))


@functools.lru_cache(maxsize=8)
def _made(path: str, options: str) -> Callable[..., Tensor]:
    """The module, made once in each process. Raises UserError for one of another form."""
    cls = cast("Callable[..., Any]", import_object(path, "an nn.Module", is_module))
    try:
        module = cls(**json.loads(options))
    except TypeError as error:
        raise UserError(f"{path} could not be made with {options}: {error}") from error
    taken = inspect.signature(module.forward).parameters
    needed = {name for name, one in taken.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD}
    if not set(FORM) <= taken.keys() or needed - set(FORM):
        raise UserError(f"{path}: forward takes {', '.join(taken) or 'nothing'}; it must take {', '.join(FORM)}")
    return cast("Callable[..., Tensor]", module)
