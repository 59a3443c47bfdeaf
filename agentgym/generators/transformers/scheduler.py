"""Steps over running sequences: new ones join, all get a token per step, ended ones leave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from torch import nn

from agentgym.errors import InfraError
from agentgym.generators.native.sampler import sample, uniforms
from agentgym.generators.slots import Line
from agentgym.generators.transformers.batching import computing_of
from agentgym.generators.transformers.sequence import Sequence
from agentgym.models.routers import Routers
from agentgym.types import Completion, GenerateRequest


class PlainScheduler:
    """Implements `StepScheduler` for a model of transformers."""

    def __init__(
        self,
        model: nn.Module,
        *,
        max_batch: int,
        routers_of: Callable[[nn.Module], Routers | None] = lambda _: None,
        alone: bool = False,
    ) -> None:
        """routers_of: a model's, where the experts that they choose are to be returned. alone: never in a batch."""
        self.version = 0
        self._routers_of = routers_of
        self._routers = routers_of(model)
        self.computing = computing_of(model, self._routers, max_batch=max_batch, alone=alone)
        self._max_batch = max_batch
        self._waiting: Line[Sequence] = Line()
        self._running: dict[int, Sequence] = {}
        self._num_tokens = 0
        self._num_prompt_tokens = 0

    @property
    def idle(self) -> bool:
        return not len(self._waiting) and not self._running

    def submit(self, ticket: int, request: GenerateRequest) -> None:
        given = request.sampling.seed
        sequence = Sequence(
            request=request,
            submitted_s=time.monotonic(),
            seed=(int.from_bytes(os.urandom(8), "little") if given is None else given) % 2**64,
            tokens=list(request.prompt_ids),
        )
        self._waiting.put(ticket, sequence, continues=request.continues)

    def cancel(self, ticket: int) -> None:
        if not self._waiting.remove(ticket) and (sequence := self._running.pop(ticket, None)) is not None:
            self.computing.leave([sequence])

    def set_weights(self, version: int, weights: nn.Module) -> None:
        self.version = version
        self._routers = self._routers_of(weights)
        for sequence in self._running.values():
            sequence.forget_computed()
        self.computing.set_model(weights, self._routers)

    def metrics(self) -> dict[str, float]:
        return {
            "generator/tokens_total": self._num_tokens,
            "generator/prompt_tokens_total": self._num_prompt_tokens,
            "generator/computed_tokens_total": self.computing.num_computed,
            "generator/running": len(self._running),
            "generator/waiting": len(self._waiting),
            "generator/slots": self._max_batch,
        }

    def step(self) -> list[tuple[int, Completion]]:
        """One token for every running sequence. Returns what ended, by ticket.

        Raises InfraError when the weights give no usable probabilities.
        """
        while len(self._waiting) and len(self._running) < self._max_batch:
            ticket, sequence = self._waiting.pop()
            self._running[ticket] = sequence
            self._num_prompt_tokens += len(sequence.tokens)
        if not self._running:
            return []
        self._append()
        now_s = time.monotonic()
        width = 0 if self._routers is None else self._routers.width
        running = self._running.items()
        ended = [(ticket, done) for ticket, one in running if (done := one.completion(now_s, width))]
        self.computing.leave([self._running.pop(ticket) for ticket, _ in ended])
        return ended

    def _append(self) -> None:
        """Sample the next token of each."""
        sequences, logits_BV = self.computing.compute(list(self._running.values()))
        params = [sequence.request.sampling for sequence in sequences]
        places = np.asarray([sequence.num_sampled for sequence in sequences], np.int64)
        tokens, logprobs = sample(
            logits_BV,
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
