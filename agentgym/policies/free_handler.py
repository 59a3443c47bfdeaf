"""Calls that belong to no episode: a served checkpoint."""

from __future__ import annotations

import itertools

from agentgym.errors import InfraError, UserError
from agentgym.policies.call_handler import CallAnswer, CallRefused, CallRequest, too_long
from agentgym.policies.prompting import understood
from agentgym.policies.reading import answer_of, read_turn
from agentgym.rollout.generator import Generator
from agentgym.text.chat import ChatRenderer
from agentgym.tools import ToolCall
from agentgym.types import FinishReason, GenerateRequest, SamplingParams, Turn

_KINDS = {"temperature": float, "top_p": float, "top_k": int, "seed": int}


class FreeHandler:
    """Each call is rendered and sampled on its own, with the caller's sampling. No call knows of another."""

    def __init__(self, renderer: ChatRenderer, generator: Generator, *, max_tokens: int = 4096) -> None:
        """max_tokens: of a prompt and its completion together, what the model can read."""
        self._renderer, self._generator, self._max_tokens = renderer, generator, max_tokens
        self._call_ids = itertools.count()

    def count(self, request: CallRequest) -> int:
        """The tokens of the prompt that `call` would send. Raises CallRefused."""
        return len(self._prompt(request))

    async def call(self, request: CallRequest) -> CallAnswer:
        ids = self._prompt(request)
        room = self._max_tokens - len(ids)
        if room < 1:
            message = too_long(len(ids), self._max_tokens, "what the model takes with its answer")
            raise CallRefused("context_length", message, param="messages")
        sampling = self._sampling(request, min(room, request.max_tokens or room))
        try:
            completion = await self._generator.generate(GenerateRequest(prompt_ids=ids, sampling=sampling))
        except InfraError as error:
            raise CallRefused("unavailable", str(error)) from error
        except ValueError as error:  # a request that no replica can serve
            raise CallRefused("invalid", str(error), param="messages") from error
        turn = Turn.of(ids, completion)
        cut = turn.finish_reason is not FinishReason.STOP
        reading = read_turn(self._renderer, turn.completion_ids, tools=request.tools, stop=request.stop, cut=cut)
        calls = tuple(ToolCall(call.name, call.arguments, f"call{next(self._call_ids):05d}") for call in reading.calls)
        return answer_of(turn, reading, calls, cached_tokens=0)

    def _prompt(self, request: CallRequest) -> tuple[int, ...]:
        talk = [one.message for one in understood(request)]
        try:
            return self._renderer.prompt(talk, request.tools or None)
        except UserError as error:
            raise CallRefused("invalid", str(error), param="messages") from error

    def _sampling(self, request: CallRequest, max_tokens: int) -> SamplingParams:
        given = {name: kind(request.sampling[name]) for name, kind in _KINDS.items() if name in request.sampling}
        for name, value in given.items():  # one by one, so that the answer can name what is wrong
            try:
                SamplingParams(max_tokens=1, **{name: value})
            except ValueError as error:
                raise CallRefused("invalid", str(error), param=name) from error
        return SamplingParams(max_tokens=max_tokens, stop_token_ids=self._renderer.end_ids, **given)
