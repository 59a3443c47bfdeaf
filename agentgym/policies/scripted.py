"""An environment played without a model or a tokenizer: by a script, such as the environment's own oracle."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

from agentgym.env import Environment, EpisodeContext
from agentgym.held_loop import limited
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.runner import EpisodeBroken, EpisodeRunner
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox
from agentgym.tools import ToolCall
from agentgym.types import Episode, Message, Outcome, Stop, Task


async def play_script(
    environment: Environment[Any],
    task: Task,
    says: Iterator[Message] | Sequence[Message],
    *,
    scorer: Scorer,
    seed: int = 0,
    sandbox: Sandbox | None = None,
    config: RolloutConfig | None = None,
    started: Callable[[EpisodeContext[Any]], None] = lambda context: None,
) -> Episode:
    """One scored episode of assistant messages, with `content`, `tool_calls` or both; it has no token turns.

    says: a generator receives from `yield` the tuple of messages that answered. Where it ends before the episode,
    the stop is `abandoned`, and the episode is scored as it is. What fails in the environment is on the episode, as
    when a model plays; what the script itself raises is raised. started: called before the first message.
    """
    episode = Episode(episode_id=task.task_id, task=task, seed=seed)
    runner = EpisodeRunner(
        environment=environment, scorer=scorer, config=config or RolloutConfig(), sandbox=sandbox, episode=episode
    )
    try:
        async with AsyncExitStack() as stack:
            await runner.lease(stack)
            async with runner.started():
                started(runner.context)
                await _speak(runner, says)
        await runner.score()
    except EpisodeBroken as broken:
        episode.stop = episode.stop or Stop.ERROR
        episode.outcome, episode.error = Outcome.INFRA_ERROR, broken.record
    return episode


async def _speak(runner: EpisodeRunner, says: Iterable[Message]) -> None:
    script = iter(says)
    answer: tuple[Message, ...] | None = None  # a generator begins with nothing
    try:
        while runner.episode.stop is None:
            try:
                with limited(runner.config.env_timeout_s):
                    message = script.send(answer) if isinstance(script, Generator) else next(script)
            except StopIteration:
                runner.episode.stop = Stop.ABANDONED
                return
            reply = await runner.reply(scripted_turn(message))
            answer = reply.messages
    finally:
        if isinstance(script, Generator):
            script.close()


def scripted_turn(message: Message) -> AgentTurn:
    """A written assistant message as a turn. Raises ValueError for what is no message, and calls of another shape."""
    content = (message.get("content") or "") if isinstance(message, Mapping) else None
    if not isinstance(content, str):
        shape = '{"role": "assistant", "content": "..."}'
        raise ValueError(f"a script, such as `solve`, yields messages, as {shape}, not {message!r:.80}")
    calls = tuple(map(_read_call, message.get("tool_calls", [])))
    return AgentTurn(text=content, content=content, calls=calls)


def _read_call(given: Any) -> ToolCall:
    try:
        function = cast("dict[str, Any]", given["function"])
        name, arguments = function["name"], function.get("arguments") or {}
        if isinstance(arguments, str):  # as OpenAI's interface has it
            arguments = json.loads(arguments)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        shape = '{"type": "function", "function": {"name": ..., "arguments": {...}}}'
        raise ValueError(f"a tool call of a message has the shape {shape}, not {given!r:.200}") from None
    return ToolCall(name, arguments, str(given.get("id", "")))
