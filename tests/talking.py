"""An agent's side of a conversation through a handler, and a generator that answers when it is told to."""

from __future__ import annotations

import asyncio

from agentgym.policies.conversation import CallRequest, EpisodeHandler
from agentgym.rl.samples import episode_samples
from agentgym.rollout.config import RolloutConfig
from agentgym.text.chat import ChatRenderer
from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Task, VersionSpan

TASK = Task(task_id="t", prompt=())
SYSTEM = {"role": "system", "content": "Be kind."}
CONFIG = RolloutConfig(max_turn_tokens=500, max_episode_tokens=5000)
TOOL = {
    "type": "function",
    "function": {
        "name": "buy",
        "description": "Buys.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "count": {"type": "integer"}, "price": {"type": "number"}},
        },
    },
}
CALL = '<tool_call>\n{"name": "buy", "arguments": {"item": "an  apple",   "count": 2, "price": 1.0}}\n</tool_call>'


def user(text):
    return {"role": "user", "content": text}


def handler_of(generator, tokenizer, config=CONFIG, **settings):
    episode = Episode(episode_id="e", task=TASK, seed=7)
    return EpisodeHandler(ChatRenderer(tokenizer), generator, config, episode, **settings)


async def ask(handler, *messages, **fields):
    return await handler.call(CallRequest(messages=messages, **fields))


def said(answer, **changed):
    """What an agent sends back of an answer."""
    message = {"role": "assistant", "content": answer.content}
    if answer.calls:
        message["tool_calls"] = [
            {"type": "function", "id": c.call_id, "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in answer.calls
        ]
    return {**message, **changed}


def check(handler):
    """Every sampled token is trained once, with its logprob, and context is not."""
    episode = handler.episode
    samples = episode_samples(episode, 1.0)
    sampled = sorted(x for turn in episode.turns for x in zip(turn.completion_ids, turn.logprobs, strict=True))
    trained = sorted((i, x) for s in samples for i, x, m in zip(s.token_ids, s.logprobs, s.loss_mask, strict=True) if m)
    assert trained == sampled
    return samples


class Held:
    """Answers a call with the number of its arrival when it is told to."""

    version = 0

    def __init__(self, tokenizer):
        self.tokenizer, self.requests, self.gates = tokenizer, [], []

    async def generate(self, request: GenerateRequest) -> Completion:
        number = len(self.requests)
        self.requests.append(request)
        self.gates.append(asyncio.Event())
        await self.gates[number].wait()
        ids = (*self.tokenizer.encode(f"answer {number}"), 2)
        spans = (VersionSpan(version=self.version, start=0, end=len(ids)),)
        return Completion(
            completion_ids=ids, logprobs=(-0.5,) * len(ids), versions=spans, finish_reason=FinishReason.STOP
        )

    async def update_weights(self, version: int) -> None:
        self.version = version


async def until_asked(generator, count):
    while len(generator.requests) < count:
        await asyncio.sleep(0)
