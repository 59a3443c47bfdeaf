"""A scripted policy: it plays given replies, directly or as a generator, so no model is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from agentgym.agents import Agent
from agentgym.env import Environment, EpisodeContext
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.policies.scripted import play_script
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox
from agentgym.text import template_child
from agentgym.text.chat import ChatRenderer
from agentgym.text.tokenizer import CHATML, Tokenizer
from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Message, Task, VersionSpan

Said: TypeAlias = str | Message
"""One reply of the policy: its text, or a whole assistant message with `tool_calls`."""
Replies: TypeAlias = Said | Sequence[Said] | Iterator[Said] | Callable[[Sequence[Message]], Said]
"""What the policy says: one reply, several, an iterator as `solve` returns it, or a function from the conversation
to the next reply."""
TokenIds: TypeAlias = tuple[int, ...]
SPECIAL = ("<|im_start|>", "<|im_end|>")


async def play(
    environment: Environment[Any],
    task: Task,
    replies: Replies,
    *,
    rewards: Mapping[str, float] | None = None,
    sandbox: Sandbox | None = None,
    seed: int = 0,
    may_break: bool = False,
) -> Episode:
    """Play one episode with these replies, and score it.

    rewards: weights by name; None takes the environment's own. Where the replies end before the episode, its stop is
    `abandoned`, and it is scored as it is. Raises AssertionError when the environment, a reward or the sandbox broke
    the episode, unless `may_break`; then `episode.error` says what it was.
    """
    talks: list[EpisodeContext[Any]] = []
    async with Scorer.of(environment, PluginRegistry.discover(), rewards) as scorer:
        episode = await play_script(
            environment, task, _script(replies, talks), scorer=scorer, seed=seed, sandbox=sandbox, started=talks.append
        )
    assert may_break or episode.error is None, f"task {task.task_id}: {episode.error}"
    return episode


async def play_agent(
    agent: Agent,
    environment: Environment[Any],
    replies: Sequence[Said | Exception] | Callable[[str], Said] | ScriptedGenerator,
    *,
    task: Task | None = None,
    rewards: Mapping[str, float] | None = None,
    sandbox: Sandbox | None = None,
    config: RolloutConfig | None = None,
    seed: int = 0,
) -> Episode:
    """Play one episode with an agent, whose policy is a `ScriptedGenerator` behind a real endpoint.

    replies: of the generator, or the generator itself. task: None takes the first test task. The agent is checked
    first, and not closed.
    """
    from agentgym.policies.by_agent import AgentPlayer
    from agentgym.rollout.activity import Activity
    from agentgym.serve.endpoint import Endpoint

    await agent.check()
    generator = replies if isinstance(replies, ScriptedGenerator) else ScriptedGenerator(replies)
    async with Scorer.of(environment, PluginRegistry.discover(), rewards) as scorer, Endpoint() as endpoint:
        player = AgentPlayer(
            environment=environment,
            scorer=scorer,
            sandbox=sandbox,
            renderer=ChatRenderer(generator.tokenizer),
            generator=generator,
            config=config or RolloutConfig(max_turn_tokens=10_000, max_episode_tokens=1_000_000, max_retries=0),
            activity=Activity(),
            agent=agent,
            name=type(agent).__name__,
            endpoint=endpoint,
        )
        task = task or next(iter(environment.tasks("test")))
        return await player.play(task, episode_id=task.task_id, seed=seed)


class CharacterTokenizer:
    """One id per character; the special tokens are 1 and 2, and 2 ends a turn."""

    def __init__(self, template: str = CHATML) -> None:
        """template: of chats, in Jinja."""
        self._template = template

    @property
    def end_ids(self) -> tuple[int, ...]:
        return (2,)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return SPECIAL

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        at = 0
        while at < len(text):
            token = next((one for one in SPECIAL if text.startswith(one, at)), "")
            ids.append(SPECIAL.index(token) + 1 if token else ord(text[at]))
            at += len(token) or 1
        return tuple(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(SPECIAL[i - 1] if i in (1, 2) else chr(i) for i in token_ids)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool, tools: Any = None) -> str:
        """Raises UserError when the template does not take the messages."""
        given: Any = {"messages": list(messages), "tools": tools, "add_generation_prompt": generation_prompt}
        try:
            return str(template_child.render({"template": self._template, "given": given}))
        except Exception as error:  # what a template raises, and jinja2 itself
            raise UserError(f"the chat template does not take the messages: {error}") from error


@dataclass
class ScriptedGenerator:
    """A generator that says given replies: the next at each call, and the first again after the last.

    replies: texts, assistant messages, token ids with their end, exceptions to raise; or a function from the prompt's
    text to a reply. delay_s: of each answer; one that takes longer than its request allows is cut in the middle.
    queued_s: as reported.
    requests: what was asked so far; asked: set at the first of them.
    """

    replies: Sequence[Said | TokenIds | Exception] | Callable[[str], Said]
    tokenizer: Tokenizer = field(default_factory=CharacterTokenizer)
    version: int = 0
    delay_s: float = 0.0
    queued_s: float = 0.0
    requests: list[GenerateRequest] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerateRequest) -> Completion:
        """The next reply as one completion; every token has the log-probability -0.5."""
        number = len(self.requests)  # now: others ask while this one waits
        self.requests.append(request)
        self.asked.set()
        late = self.delay_s > request.time_s
        await asyncio.sleep(min(self.delay_s, request.time_s))
        ids = self._next(request, number)
        cut = ids[: len(ids) // 2 if late else request.sampling.max_tokens]
        return Completion(
            completion_ids=cut,
            logprobs=(-0.5,) * len(cut),
            versions=(VersionSpan(version=self.version, start=0, end=len(cut)),),
            finish_reason=FinishReason.TIME if late else FinishReason.STOP if cut == ids else FinishReason.LENGTH,
            queued_s=self.queued_s,
        )

    async def update_weights(self, version: int) -> None:
        self.version = version

    def _next(self, request: GenerateRequest, number: int) -> tuple[int, ...]:
        if callable(self.replies):
            said: Said | TokenIds | Exception = self.replies(self.tokenizer.decode(request.prompt_ids))
        else:
            said = self.replies[number % len(self.replies)]
        if isinstance(said, Exception):
            raise said
        if isinstance(said, tuple):
            return said
        if isinstance(said, str):
            return (*self.tokenizer.encode(said), *self.tokenizer.end_ids[:1])
        return ChatRenderer(self.tokenizer).turn(said)


def _script(replies: Replies, talks: Sequence[EpisodeContext[Any]]) -> Iterator[Message] | Sequence[Message]:
    """The replies as messages. talks: holds the episode's context, once it has started."""
    if callable(replies):
        return _asked(replies, talks)
    if isinstance(replies, Iterator):
        return cast("Iterator[Message]", replies) if hasattr(replies, "send") else map(_message, replies)
    return [_message(one) for one in ([replies] if isinstance(replies, (str, Mapping)) else replies)]


def _asked(ask: Callable[[Sequence[Message]], Said], talks: Sequence[EpisodeContext[Any]]) -> Iterator[Message]:
    while True:
        yield _message(ask(tuple(talks[0].messages)))


def _message(said: Said) -> Message:
    return {"role": "assistant", "content": said} if isinstance(said, str) else said
