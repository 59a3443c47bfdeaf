"""Every entrance of text, with lone surrogates in it: what came in can be written as UTF-8, and no episode broke.

An entrance is a function that lets a text in and returns all that is known of it afterwards. A new one joins ENTRANCES.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp.server.lowlevel import Server
from mcp.types import CallToolResult, ListToolsResult, Tool
from policy_servers import ScriptedServer, completion

from agentgym.agents import Agent, AgentFailed
from agentgym.env import Environment, Reply
from agentgym.errors import InfraError
from agentgym.mcp import McpServer
from agentgym.policies.by_agent import AgentPlayer
from agentgym.policies.by_messages import MessagePlayer
from agentgym.policies.conversation import CallRequest
from agentgym.policies.outside.cache import AnswerCache
from agentgym.policies.outside.config import PolicyConfig
from agentgym.policies.outside.policy import ServedPolicy
from agentgym.policies.scripted import play_script
from agentgym.rewards import Reward
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.worker import failure
from agentgym.sandbox import CaseResult, RunResult, RunStatus, Verdict
from agentgym.serve.anthropic_messages import AnthropicMessages
from agentgym.serve.chat_completions import ChatCompletions
from agentgym.serve.reading import read_json
from agentgym.serve.responses import Responses
from agentgym.testing import CharacterTokenizer, ScriptedGenerator, run_fast
from agentgym.text.chat import ChatRenderer
from agentgym.tools import MalformedCall, ToolCall, ToolResult
from agentgym.types import Episode, Message, Outcome, Task

texts = st.text(st.sampled_from('\ud83d\ude00\udcffaé😀"\\ '), min_size=1, max_size=5)
CONFIG = RolloutConfig(max_turn_tokens=500, max_episode_tokens=20_000, max_retries=0, cut_turns="score")


def whole(text: str) -> str:
    """The rule, the slow way: two halves side by side are their character, every other half is U+FFFD."""
    out = []
    while text:
        is_pair = "\ud800" <= text[0] < "\udc00" and "\udc00" <= text[1:2] <= "\udfff"
        taken, text = (text[:2], text[2:]) if is_pair else (text[0], text[1:])
        is_half = not is_pair and "\ud800" <= taken <= "\udfff"
        out.append(json.loads(json.dumps(taken)) if is_pair else "\ufffd" if is_half else taken)
    return "".join(out)


@dataclass
class OddTools:
    """Its schema has the text, its tool is given it and says it; the name `break` breaks."""

    text: str
    given: list[Any] = field(default_factory=list)

    def schemas(self) -> Any:
        parameters = {"type": "object", "properties": {self.text: {"description": self.text}}}
        return [{"type": "function", "function": {"name": "t", "description": self.text, "parameters": parameters}}]

    def is_parallel_safe(self, name: str) -> bool:
        return False

    async def call(self, call: ToolCall) -> ToolResult:
        self.given.append(call)
        json.dumps([call.name, call.arguments], ensure_ascii=False).encode()  # as tools do that write or send it
        if call.name == "break":
            raise InfraError(self.text)
        return ToolResult(self.text)


class Odd(Environment[Any]):
    """Says the text wherever an environment can."""

    name = "odd"
    max_turns = 3

    def __init__(self, text: str) -> None:
        self.text = text
        self.tools_now = OddTools(text)
        self.task = Task(task_id="t", prompt=({"role": "user", "content": text},))

    def tasks(self, split: str, seed: int = 0) -> Any:
        yield self.task

    async def toolbox(self, context: Any) -> Any:
        return self.tools_now

    async def reply(self, context: Any) -> Reply:
        context.info[self.text] = {self.text: [self.text], "success": True}
        return Reply(messages=({"role": "user", "content": self.text},))


def right(episode: Episode) -> float:
    json.dumps([episode.messages, episode.info], ensure_ascii=False).encode()  # as rewards do that write or send it
    return 1.0


def shared(text: str, reward: Any = right) -> dict[str, Any]:
    scorer = Scorer([Reward(name="right", function=reward, inline=True)], {"right": 1.0})
    return {"environment": Odd(text), "scorer": scorer, "config": CONFIG, "sandbox": None, "activity": Activity()}


def escaped(text: str) -> str:
    return json.dumps(text)


def call_of(text: str, name: str = "t") -> str:
    return f'<tool_call>{{"name": {escaped(name)}, "arguments": {{{escaped(text)}: [{escaped(text)}]}}}}</tool_call>'


def scored(episode: Episode, environment: Odd) -> list[Any]:
    assert episode.outcome is Outcome.SCORED, episode.error
    return [replace(episode, task=replace(episode.task, prompt=())), environment.tools_now.given]


def own_policy(text: str) -> Any:
    tokenizer = CharacterTokenizer()
    generator = ScriptedGenerator([call_of(text), call_of(text, text), text], tokenizer)
    player = EpisodePlayer(**(given := shared(text)), renderer=ChatRenderer(tokenizer), generator=generator)
    episode = run_fast(player.play(given["environment"].task, episode_id="e", seed=1))
    sampled = [(*tokenizer.encode(one), 2) for one in generator.replies]
    assert [turn.completion_ids for turn in episode.turns] == sampled, "what was sampled is trained as it was sampled"
    return scored(episode, given["environment"])


class StrictServer(ScriptedServer):
    """Takes what can be sent."""

    async def complete(self, body: Mapping[str, Any]) -> Any:
        json.dumps(body, ensure_ascii=False).encode()
        return await super().complete(body)


def served_policy(text: str) -> Any:
    arguments = f"{{{escaped(text)}: {escaped(text)}}}"
    calls = completion(text, ("t", arguments), (text, {text: text}), ("t", text), reasoning=text)
    server = StrictServer([calls, completion([{"type": "text", "text": text}], reasoning_content=text, refusal=text)])
    config = PolicyConfig(base_url="http://127.0.0.1:1", return_reasoning=True)
    policy = ServedPolicy(model="m", config=config, server=server, cache=AnswerCache(None, config.base_url))
    player = MessagePlayer(**(given := shared(text)), policy=policy)
    return scored(
        run_fast(player.play(given["environment"].task, episode_id="e", seed=1)), given["environment"]
    ), server.asked


def agents_program(text: str) -> Any:
    seen: list[Any] = []

    class Hall:
        url, model = "http://nowhere", "policy"

        def admit(self, handler: Any) -> str:
            self.handler = handler
            return "key"

        def conclude(self, key: str) -> None: ...

    class Program(Agent):
        async def play(self, context: Any) -> None:
            seen.append([context.messages, context.tools, await context.call_tool("t", {text: [text]})])
            request = CallRequest(
                messages=({"role": "user", "content": text},), tools=tuple(context.tools), stop=(text,)
            )
            seen.append([request, await hall.handler.call(request)])
            seen.append(await context.answer(text))
            context.note(text, {text: text})
            raise AgentFailed("exit", text)

    tokenizer, hall = CharacterTokenizer(), Hall()
    player = AgentPlayer(
        **(given := shared(text)),
        renderer=ChatRenderer(tokenizer),
        generator=ScriptedGenerator([f"<think>{text}</think>{text}{call_of(text)}"], tokenizer),
        agent=Program(),
        name="program",
        endpoint=hall,
    )
    episode = run_fast(player.play(given["environment"].task, episode_id="e", seed=1))
    assert episode.outcome is Outcome.INVALID, episode.error
    return seen, replace(episode, task=replace(episode.task, prompt=())), given["environment"].tools_now.given


def endpoint(text: str) -> Any:
    """What a program sends, in each dialect, with its escapes and as raw bytes."""
    told = {"name": text, "description": text, "parameters": {text: text}}
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": f"{{{escaped(text)}: 1}}"}}
    chat = [{"role": "user", "content": text}, {"role": "assistant", "tool_calls": [call]}]
    chat.append({"role": "tool", "tool_call_id": text, "content": [{"type": "text", "text": text}]})
    uses = [{"type": "tool_use", "id": text, "name": text, "input": {text: [text]}}, {"type": "text", "text": text}]
    result = {"type": "tool_result", "tool_use_id": text, "content": text}
    items = [
        {"type": "message", "role": "user", "content": text},
        {"type": "function_call", "call_id": text, "name": text, "arguments": f"{{{escaped(text)}: 1}}"},
        {"type": "function_call_output", "call_id": text, "output": text},
    ]
    bodies = (
        (ChatCompletions(), {"messages": chat, "tools": [{"type": "function", "function": told}], "stop": text}),
        (
            AnthropicMessages(),
            {
                "messages": [{"role": "assistant", "content": uses}, {"role": "user", "content": [result]}],
                "max_tokens": 9,
                "system": text,
                "tools": [{"name": text, "description": text, "input_schema": {text: text}}],
                "stop_sequences": [text],
            },
        ),
        (Responses(), {"input": items, "tools": [{"type": "function", **told}], "instructions": text}),
    )
    for dialect, body in bodies:
        for ascii_only in (True, False):
            data = json.dumps({"model": "m", **body}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
            yield dialect.read(read_json(data)).request


def mcp_server(text: str) -> Any:
    """What a server is sent; what real ones say is in tests/test_mcp.py."""
    given: list[Any] = []

    async def list_tools(context: Any, parameters: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[Tool(name="t", input_schema={"type": "object", "properties": {"a": {"type": "array"}}})]
        )

    async def call_tool(context: Any, parameters: Any) -> CallToolResult:
        given.append(parameters.arguments)
        return CallToolResult(content=[])

    async def main() -> Any:
        session = await McpServer.of(Server("odd", on_list_tools=list_tools, on_call_tool=call_tool)).open()
        try:
            asked = ({text: [text]}, {"a": f"[{escaped(text)}]"}, {"a": text})
            results = [await session.call(ToolCall("t", arguments)) for arguments in asked]
            return [*results, await session.call(ToolCall(text, {}))]
        finally:
            await session.close()

    return asyncio.run(main()), given


def sandbox(text: str) -> Any:
    result = CaseResult(passed=False, error=text)
    run = RunResult(status=RunStatus.OK, exit_code=0, stdout=text, stderr=text)
    return run, Verdict(status=RunStatus.OK, results=(result,), error=text)


def reward_that_fails(text: str) -> Any:
    def broken(episode: Episode) -> float:
        raise ValueError(text)

    calls: list[Message] = [{"role": "assistant", "content": text}]
    given = shared(text, broken)
    play = play_script(given["environment"], given["environment"].task, calls, scorer=given["scorer"])
    episode = run_fast(play)
    assert episode.error is not None and episode.error.source == "reward:right"
    return episode.error, failure(ValueError(text))


def tool_that_breaks(text: str) -> Any:
    call: Any = {"type": "function", "function": {"name": "break", "arguments": {text: text}}}
    given = shared(text)
    says: list[Message] = [{"role": "assistant", "content": text, "tool_calls": [call]}]
    episode = run_fast(play_script(given["environment"], given["environment"].task, says, scorer=given["scorer"]))
    assert episode.error is not None and episode.error.source == "environment:odd.break"
    return episode.error, episode.messages, episode.tool_calls


def calls_and_turns(text: str) -> Any:
    return ToolCall(text, {text: ({text: text},)}, text), MalformedCall(text, text), ToolResult(text, "tool")


def task(text: str) -> Any:
    return [Task(task_id=text, prompt=({"role": "user", "content": text},), category=text)]


ENTRANCES = {
    one.__name__: one
    for one in (
        own_policy,
        served_policy,
        agents_program,
        endpoint,
        mcp_server,
        sandbox,
        reward_that_fails,
        tool_that_breaks,
        calls_and_turns,
        task,
    )
}


def shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda one: asdict(one) if is_dataclass(one) else str(one))


@pytest.mark.parametrize("entrance", ENTRANCES)
@settings(max_examples=25)
@given(text=texts)
@example(text="\ud83d")
@example(text="\ud83d\ude00")
def test_text_that_enters_can_be_written_as_utf8_and_breaks_no_episode(entrance: str, text: str) -> None:
    came = shown(list(ENTRANCES[entrance](text)))
    came.encode()
    assert json.dumps(whole(text), ensure_ascii=False)[1:-1] in came
