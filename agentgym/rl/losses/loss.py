"""What a loss is: a frozen dataclass that maps the trained tokens of a batch to a loss for each, and metrics.

Axis: N trained tokens. Tokens that are masked never get here, so no loss can see them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Aggregation: TypeAlias = Literal["token_mean", "sequence_mean", "fixed_horizon"]
Reduction: TypeAlias = Literal["mean", "max", "sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """All [N], those of a sample in order and together. logprobs carries the gradient.

    entropy: of the policy's distribution before each token; it carries a gradient where the loss `needs_entropy`.
    sampler_logprobs: of the engine that sampled the token. old_logprobs: of the trainer's weights before the first
    update by this batch; where a batch makes one update only, those of logprobs without their gradient.
    sample_index: which sample of the batch a token belongs to.
    """

    logprobs: Tensor
    entropy: Tensor
    sampler_logprobs: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor
    versions: Tensor
    sample_index: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """loss: [N], to be weighted by the aggregation and summed.

    metrics: without gradient, by names that the loss declares. [N], or for `max` and `sum` any other shape, also
    an empty one.
    """

    loss: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(ABC):
    """Inherit it as a frozen dataclass: the fields are the loss's settings in a recipe.

    metrics: how each of the loss's metrics is combined over microbatches and processes. `mean` is over all
    trained tokens of the batch. One that no microbatch gave a value is left out of the step's metrics.
    """

    metrics: ClassVar[Mapping[str, Reduction]] = {}

    aggregation: Aggregation = "token_mean"
    """How tokens are weighted: `token_mean` equally over the batch (DAPO), `sequence_mean` equally within a sequence
    and sequences equally (GRPO), `fixed_horizon` by 1 / (sequences * horizon), whatever the length (Dr. GRPO)."""
    horizon: int = 256
    """The divisor of `fixed_horizon`, in tokens; the usual choice is rollout.max_turn_tokens."""

    @property
    def has_sampler(self) -> bool:
        """Whether a policy sampled its tokens, so that the trainer's log-probabilities are compared with its own."""
        return True

    @property
    def needs_reference(self) -> bool:
        """Whether ref_logprobs are read; a reference model then runs beside the trainer."""
        return False

    @property
    def needs_old(self) -> bool:
        """Whether old_logprobs are read; they cost a forward pass where a batch makes several updates."""
        return False

    @property
    def needs_entropy(self) -> bool:
        """Whether the gradient of the entropy is used."""
        return False

    @abstractmethod
    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        """The loss of each trained token. version: the newest published weights."""
