"""Steps over running sequences: each has a cache of its own, as transformers makes it, and is computed alone.

So no architecture is padded or masked, and company can't change a sequence's numbers. It costs speed.
"""

from __future__ import annotations

import inspect
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentgym.errors import InfraError
from agentgym.generators.native.sampler import sample, uniforms
from agentgym.models.routers import Routers
from agentgym.routes import Routes
from agentgym.types import Completion, FinishReason, GenerateRequest, VersionSpan


@dataclass(slots=True, kw_only=True)
class Sequence:
    """One request. cache: of the first `computed` tokens. switches: (version, first completion token sampled by it).

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


class PlainScheduler:
    """Implements `StepScheduler` for a model of transformers."""

    def __init__(
        self, model: nn.Module, *, max_batch: int, routers_of: Callable[[nn.Module], Routers | None] = lambda _: None
    ) -> None:
        """routers_of: a model's, where the experts that they choose are to be returned."""
        self.version = 0
        self.model = model
        self._routers_of = routers_of
        self._routers = routers_of(model)
        self._max_batch = max_batch
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._running: dict[int, Sequence] = {}
        self._num_tokens = 0
        self._num_prompt_tokens = 0
        self._num_computed = 0
        parameters = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def submit(self, ticket: int, request: GenerateRequest) -> None:
        given = request.sampling.seed
        self._waiting[ticket] = Sequence(
            request=request,
            submitted_s=time.monotonic(),
            seed=(int.from_bytes(os.urandom(8), "little") if given is None else given) % 2**64,
            tokens=list(request.prompt_ids),
        )

    def cancel(self, ticket: int) -> None:
        self._waiting.pop(ticket, None)
        self._running.pop(ticket, None)

    def set_weights(self, version: int, weights: nn.Module) -> None:
        self.model, self.version = weights, version
        self._routers = self._routers_of(weights)
        for sequence in self._running.values():
            sequence.forget_computed()

    def metrics(self) -> dict[str, float]:
        return {
            "generator/tokens_total": self._num_tokens,
            "generator/prompt_tokens_total": self._num_prompt_tokens,
            "generator/computed_tokens_total": self._num_computed,
            "generator/running": len(self._running),
            "generator/waiting": len(self._waiting),
        }

    def step(self) -> list[tuple[int, Completion]]:
        """One token for every running sequence. Returns what ended, by ticket.

        Raises InfraError when the weights give no usable probabilities.
        """
        while self._waiting and len(self._running) < self._max_batch:
            ticket, sequence = self._waiting.popitem(last=False)
            self._running[ticket] = sequence
            self._num_prompt_tokens += len(sequence.tokens)
        running = list(self._running.items())
        if not running:
            return []
        self._append([sequence for _, sequence in running])
        now_s = time.monotonic()
        width = 0 if self._routers is None else self._routers.width
        ended = [(ticket, completion) for ticket, one in running if (completion := _completion(one, now_s, width))]
        for ticket, _ in ended:
            del self._running[ticket]
        return ended

    def _append(self, sequences: list[Sequence]) -> None:
        """Sample the next token of each."""
        params = [sequence.request.sampling for sequence in sequences]
        places = np.asarray([sequence.num_sampled for sequence in sequences], np.int64)
        tokens, logprobs = sample(
            torch.stack([self._logits(sequence) for sequence in sequences]),
            uniforms_B=uniforms(np.asarray([sequence.seed for sequence in sequences], np.uint64), places),
            temperature_B=np.asarray([one.temperature for one in params], np.float32),
            top_k_B=np.asarray([one.top_k for one in params], np.int64),
            top_p_B=np.asarray([one.top_p for one in params], np.float32),
        )
        if not np.isfinite(logprobs).all():
            raise InfraError(f"the weights of version {self.version} give log-probabilities that are not numbers")
        now_s = time.monotonic()
        for sequence, token, logprob in zip(sequences, tokens.tolist(), logprobs.tolist(), strict=True):
            if not sequence.switches or sequence.switches[-1][0] != self.version:
                sequence.switches.append((self.version, sequence.num_sampled))
            if not sequence.logprobs:
                sequence.began_s = now_s
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
        self._num_tokens += len(sequences)

    def _logits(self, sequence: Sequence) -> Tensor:
        """float32, [vocabulary], after the sequence's last token. A model without a cache computes all of it again."""
        new = sequence.tokens[sequence.computed :]
        device = next(self.model.parameters()).device
        if self._routers is not None:
            self._routers.record()
        output = self.model(
            input_ids=torch.tensor([new], device=device),
            past_key_values=sequence.cache,
            use_cache=True,
            **self._last_only,
        )
        self._num_computed += len(new)
        if self._routers is not None:
            ids = self._routers.taken().to(torch.uint16).cpu().numpy().tobytes()
            known = (
                len(sequence.routes) - sequence.computed * 2 * self._routers.width
            )  # of those that were computed again
            sequence.routes += ids[known:]
        sequence.cache = getattr(output, "past_key_values", None)
        sequence.computed = 0 if sequence.cache is None else len(sequence.tokens)
        logits: Tensor = output.logits[0, -1].float()
        return logits


def _completion(sequence: Sequence, now_s: float, width: int) -> Completion | None:
    """What the sequence ended with; None while it goes on. width: of its routes, 0 where they are not recorded."""
    request, begin = sequence.request, len(sequence.request.prompt_ids)
    if sequence.tokens[-1] in request.sampling.stop_token_ids:
        reason = FinishReason.STOP
    elif sequence.num_sampled == request.sampling.max_tokens:
        reason = FinishReason.LENGTH
    elif now_s - sequence.began_s >= request.time_s:
        reason = FinishReason.TIME
    else:
        return None
    starts = [start for _, start in sequence.switches]
    return Completion(
        completion_ids=tuple(sequence.tokens[begin:]),
        logprobs=tuple(sequence.logprobs),
        versions=tuple(
            VersionSpan(version=version, start=start, end=end)
            for (version, start), end in zip(sequence.switches, [*starts[1:], sequence.num_sampled], strict=True)
        ),
        finish_reason=reason,
        queued_s=sequence.began_s - sequence.submitted_s,
        routes=Routes(width=width, ids=bytes(sequence.routes)).from_token(request.routes_from) if width else None,
    )
