"""The generators as a loop calls them: completions of a prompt, of one replica or of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from agentgym.actors.service import Session
from agentgym.generators.actor import Generator
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService
from agentgym.jobs.calls import Call
from agentgym.recipe import Recipe
from agentgym.rollout.chat import ChatRenderer
from agentgym.types import Completion, GenerateRequest, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was sampled for one prompt. completion: its tokens, their log-probabilities, and the weights' versions."""

    text: str
    prompt_ids: tuple[int, ...]
    completion: Completion


class GeneratorCalls:
    """The generators: all replicas at one version of the weights."""

    def __init__(
        self,
        service: GeneratorService,
        renderer: ChatRenderer,
        recipe: Recipe,
        session: Session[Generator] | None = None,
    ) -> None:
        self._service, self._renderer, self._recipe, self._session = service, renderer, recipe, session
        self.generate = Call(self._generate, self._everywhere)
        self.update_weights = Call(service.update_weights)
        self.get_version = Call(self._version)
        self.get_metrics = Call(service.metrics)

    @property
    def config(self) -> GeneratorConfig:
        return self._recipe.generator

    async def _generate(
        self, prompt: str | Sequence[int], *, n: int = 1, sampling: SamplingParams | None = None
    ) -> list[Said]:
        """n completions of a prompt, which is a user's words or token ids.

        sampling: by default as in the recipe; with a seed, completion i gets the seed + i.
        """
        requests = self._requests(prompt, n, sampling)
        answers = await asyncio.gather(*(self._service.generate(one, session=self._session) for one in requests))
        return [self._said(one, answer) for one, answer in zip(requests, answers, strict=True)]

    async def _everywhere(
        self, prompt: str | Sequence[int], *, n: int = 1, sampling: SamplingParams | None = None
    ) -> list[list[Said]]:
        """By replica."""
        requests = self._requests(prompt, n, sampling)
        answers = await asyncio.gather(*map(self._service.generate_everywhere, requests))
        by_replica = zip(*answers, strict=False)  # of one that dies meanwhile some are missing
        return [[self._said(*both) for both in zip(requests, given, strict=True)] for given in by_replica]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[GeneratorCalls]:
        """Calls that stay with one replica, for its caches, and move only when it dies."""
        yield GeneratorCalls(self._service, self._renderer, self._recipe, self._service.new_session())

    def _requests(self, prompt: str | Sequence[int], n: int, sampling: SamplingParams | None) -> list[GenerateRequest]:
        rollout = self._recipe.rollout
        ids = self._renderer.prompt([{"role": "user", "content": prompt}]) if isinstance(prompt, str) else tuple(prompt)
        how = sampling or SamplingParams(
            max_tokens=rollout.max_turn_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
        )
        each = [how if how.seed is None else replace(how, seed=how.seed + i) for i in range(n)]
        return [GenerateRequest(prompt_ids=ids, sampling=one) for one in each]

    def _said(self, request: GenerateRequest, completion: Completion) -> Said:
        text = self._renderer.text(completion.completion_ids)
        return Said(text=text, prompt_ids=tuple(request.prompt_ids), completion=completion)

    async def _version(self) -> int:
        return self._service.version
