"""The generators as a loop calls them: completions of a prompt, of one replica or of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from agentgym.actors.service import Session
from agentgym.errors import UserError
from agentgym.generators.actor import Generator
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService
from agentgym.recipe import Recipe
from agentgym.rollout.episode import turn_sampling
from agentgym.run.calls import Call
from agentgym.text.chat import ChatRenderer
from agentgym.types import Completion, FinishReason, GenerateRequest, SamplingParams, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was sampled for one prompt. completion: its tokens, their log-probabilities, and the weights' versions.

    stop: DONE where it came to the end of its turn; else the limit that cut it.
    """

    text: str
    prompt_ids: tuple[int, ...]
    completion: Completion
    stop: Stop


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

        Each ends where an episode's turn does: with the end of the turn, or at the limits of the recipe's `rollout`.
        sampling: by default as in the recipe; with a seed, completion i gets the seed + i. One without stop_token_ids
        ends with the turn, too. Raises UserError for a prompt that leaves no room in rollout.max_episode_tokens.
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

    def _requests(self, prompt: str | Sequence[int], n: int, given: SamplingParams | None) -> list[GenerateRequest]:
        config = self._recipe.rollout
        ids = self._renderer.prompt([{"role": "user", "content": prompt}]) if isinstance(prompt, str) else tuple(prompt)
        room = config.max_episode_tokens - len(ids)
        if given is None and room < 1:
            raise UserError(
                f"the prompt has {len(ids)} tokens, rollout.max_episode_tokens is {config.max_episode_tokens}: "
                "raise it, or give a shorter prompt"
            )
        how = given or turn_sampling(config, self._renderer, min(room, config.max_turn_tokens), seed=None)
        how = replace(how, stop_token_ids=how.stop_token_ids or self._renderer.end_ids)
        each = [how if how.seed is None else replace(how, seed=how.seed + i) for i in range(n)]
        time_s = min(config.episode_time_s, config.generate_timeout_s)
        return [GenerateRequest(prompt_ids=ids, sampling=one, time_s=time_s) for one in each]

    def _said(self, request: GenerateRequest, completion: Completion) -> Said:
        room = self._recipe.rollout.max_episode_tokens - len(request.prompt_ids)
        if completion.finish_reason is FinishReason.STOP:
            stop = Stop.DONE
        elif completion.finish_reason is FinishReason.TIME:
            stop = Stop.TIME
        else:
            stop = Stop.TURN_TOKENS if request.sampling.max_tokens < room else Stop.EPISODE_TOKENS
        text = self._renderer.text(completion.completion_ids)
        return Said(text=text, prompt_ids=tuple(request.prompt_ids), completion=completion, stop=stop)

    async def _version(self) -> int:
        return self._service.version
