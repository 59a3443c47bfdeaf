"""What was sampled for a prompt, for loops of one's own: as text, as tokens, and as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentgym.types import Completion, Stop

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One completion of a prompt, which is kept as it was given.

    prompt_tokens: its token ids. completion: the sampled tokens, their log-probabilities, and the weights' versions.
    stop: DONE where it came to the end of its turn; else the limit that cut it. metadata: the user's own.
    """

    prompt: str | Sequence[int]
    text: str
    prompt_tokens: tuple[int, ...]
    completion: Completion
    stop: Stop
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt_ids(self) -> Tensor:
        """The prompt's tokens, [P] of int64."""
        return _tensor(self.prompt_tokens, "int64")

    @property
    def token_ids(self) -> Tensor:
        """The sampled tokens, [C] of int64, the stop token included."""
        return _tensor(self.completion.completion_ids, "int64")

    @property
    def logprobs(self) -> Tensor:
        """The sampler's natural logs, [C] of float32."""
        return _tensor(self.completion.logprobs, "float32")

    @property
    def stop_reason(self) -> str:
        """`stop` at the end of the turn, `length` where a limit of tokens or time cut it."""
        return "stop" if self.stop is Stop.DONE else "length"

    @property
    def policy_version(self) -> int:
        """The oldest weights that sampled a token of it."""
        return min((span.version for span in self.completion.versions), default=0)

    @property
    def generator_version(self) -> int:
        return self.policy_version


class Answers(list[Said]):
    """The completions of a prompt. The only one's attributes are also the list's own: `answers.text`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if len(self) != 1:
            raise AttributeError(f"{len(self)} completions have no {name!r}: take one of them, as in answers[0].{name}")
        return getattr(self[0], name)


def _tensor(values: Sequence[float], dtype: str) -> Tensor:
    import torch

    return torch.tensor(values, dtype=getattr(torch, dtype))
