"""One request while it is sampled, and what it ends with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from agentgym.routes import Routes
from agentgym.types import Completion, FinishReason, GenerateRequest, VersionSpan


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request. cache: of the first `computed` tokens, while no batch has it. switches: (version, first completion
    token sampled by it).

    routes: of the tokens so far, each as it was first computed; see `Routes.ids`.
    """

    request: GenerateRequest
    submitted_s: float  # by the monotonic clock, as began_s
    seed: int
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    switches: list[tuple[int, int]] = field(default_factory=list)
    cache: Any = None
    computed: int = 0
    began_s: float = 0.0
    routes: bytearray = field(default_factory=bytearray)

    @property
    def num_sampled(self) -> int:
        return len(self.logprobs)

    def forget_computed(self) -> None:
        self.cache, self.computed = None, 0

    def add_routes(self, ids_TW: Tensor) -> None:
        """The routes of the tokens that were just computed, the last ones; those computed again keep their first."""
        known = len(self.routes) // (2 * ids_TW.shape[1]) - (len(self.tokens) - len(ids_TW))
        self.routes += ids_TW[known:].numpy().tobytes()

    def completion(self, now_s: float, width: int) -> Completion | None:
        """What it ended with; None while it goes on. width: of its routes, 0 where they are not recorded."""
        reason = self._finish_reason(now_s)
        if reason is None:
            return None
        request, starts = self.request, [start for _, start in self.switches]
        return Completion(
            completion_ids=tuple(self.tokens[len(request.prompt_ids) :]),
            logprobs=tuple(self.logprobs),
            versions=tuple(
                VersionSpan(version=version, start=start, end=end)
                for (version, start), end in zip(self.switches, [*starts[1:], self.num_sampled], strict=True)
            ),
            finish_reason=reason,
            queued_s=self.began_s - self.submitted_s,
            routes=Routes(width=width, ids=bytes(self.routes)).from_token(request.routes_from) if width else None,
        )

    def _finish_reason(self, now_s: float) -> FinishReason | None:
        if self.tokens[-1] in self.request.sampling.stop_token_ids:
            return FinishReason.STOP
        if self.num_sampled == self.request.sampling.max_tokens:
            return FinishReason.LENGTH
        return FinishReason.TIME if now_s - self.began_s >= self.request.time_s else None
