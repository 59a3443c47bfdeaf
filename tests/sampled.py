"""A turn as a policy of one version samples it."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.types import FinishReason, Turn, VersionSpan


def sampled_turn(
    prompt: Sequence[int],
    said: Sequence[int],
    logprobs: float | Sequence[float] = -1.0,
    *,
    version: int = 0,
    masked: bool = False,
) -> Turn:
    """prompt, said: token ids. logprobs: of each token that was said, or the same for all."""
    return Turn(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(said),
        logprobs=tuple(logprobs) if isinstance(logprobs, Sequence) else (logprobs,) * len(said),
        versions=(VersionSpan(version=version, start=0, end=len(said)),) if said else (),
        finish_reason=FinishReason.STOP,
        masked=masked,
    )
