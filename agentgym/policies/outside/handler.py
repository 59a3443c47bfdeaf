"""A policy behind a server as a handler: one call of a conversation, without an episode."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.errors import InfraError
from agentgym.policies.conversation import CallAnswer, CallRefused, CallRequest
from agentgym.policies.outside.answers import ChatRequest, ContextFull, Filtered, RequestRefused, sent_message
from agentgym.policies.outside.policy import ServedPolicy
from agentgym.tools import ToolCall


@dataclass(frozen=True, slots=True)
class ServedHandler:
    """Asked with the policy's own retries and limits. max_tokens: of a turn, where the call sets none."""

    policy: ServedPolicy
    max_tokens: int

    async def call(self, request: CallRequest) -> CallAnswer:
        given = request.sampling
        asked = ChatRequest(
            model=self.policy.model,
            messages=tuple(map(sent_message, request.messages)),
            tools=request.tools,
            max_tokens=request.max_tokens or self.max_tokens,
            temperature=given.get("temperature", 1.0),
            top_p=given.get("top_p", 1.0),
            top_k=int(given.get("top_k", 0)),
            seed=int(given.get("seed", 0)),
            options=self.policy.config.options,
        )
        try:
            answer = (await self.policy.answer(asked)).answer
        except ContextFull as error:
            raise CallRefused("context_length", str(error), param="messages") from error
        except (Filtered, RequestRefused) as error:
            raise CallRefused("invalid", str(error), param="messages") from error
        except InfraError as error:
            raise CallRefused("unavailable", str(error)) from error
        calls = tuple(call for call in answer.calls if isinstance(call, ToolCall))
        usage = answer.usage
        return CallAnswer(
            content=answer.content,
            reasoning=answer.reasoning,
            calls=calls,
            finish="length" if answer.finish == "length" else "tool_calls" if calls else "stop",
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )
