"""What a call of an agent costs the endpoint: processor time beside verifiers' interception server, on the same work.

    python -m venv /tmp/peer && /tmp/peer/bin/pip install verifiers==0.4.0 pluggy ruamel.yaml httptools
    /tmp/peer/bin/python benchmarks/endpoint_overhead.py              1,000 agents at once, 8 calls each, both servers

Every agent holds a connection of its own and plays a conversation with a tool: it sends the whole history, reads the
call that it is answered with, and appends a result. The model is a fake that answers after 50 ms; all that lies
between the socket and the engine is done as in training: the request is read, its history matched with what was
sampled, the new messages rendered (one tokenizer, ChatML), the turn recorded with its ids and log-probabilities, the
answer written. verifiers' `TrainClient` is given its own Qwen3 renderer, which continues a conversation without
rendering it again, and an engine in the process in place of one behind HTTP, whose answer costs it no parsing.
Each server is a process; the agents are in another. Prints one line of JSON, and a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL_S = 0.05
SAID = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la src tests"}}\n</tool_call><|im_end|>'
RESULT = "total 8\n" + "\n".join(f"-rw-r--r-- 1 user user {100 + n} May  1 12:00 file_{n}.py" for n in range(8))
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"type": "function", "function": {"name": "bash", "description": "Runs it.", "parameters": PARAMETERS}}
SYSTEM = "You work in a shell. Think before you act, and change nothing that you were not asked to change. " * 10
TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"]
TOKENS += ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def make_tokenizer(folder: str) -> None:
    """The tiny policy's, with the control tokens of Qwen3."""
    from transformers import AutoTokenizer

    (policy,) = ROOT.glob("agentgym/models/tiny/policy")
    tokenizer = AutoTokenizer.from_pretrained(str(policy))
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS})
    tokenizer.save_pretrained(folder)


class Ours:
    """The endpoint, with a seat for each agent."""

    async def start(self, folder: str, num_agents: int) -> tuple[str, list[str]]:
        from agentgym.rollout.chat import ChatRenderer
        from agentgym.rollout.config import RolloutConfig
        from agentgym.rollout.conversation import EpisodeSeat
        from agentgym.rollout.tokenizer import HuggingFaceTokenizer
        from agentgym.serve.endpoint import Endpoint
        from agentgym.types import Completion, Episode, FinishReason, Task, VersionSpan

        renderer = ChatRenderer(HuggingFaceTokenizer(folder, "builtin:chatml"))
        ids = renderer.tokenizer.encode(SAID)
        completion = Completion(
            completion_ids=ids,
            logprobs=(-0.5,) * len(ids),
            versions=(VersionSpan(version=0, start=0, end=len(ids)),),
            finish_reason=FinishReason.STOP,
        )

        class Engine:
            version = 0

            async def generate(self, request: object) -> Completion:
                await asyncio.sleep(MODEL_S)
                return completion

            async def update_weights(self, version: int) -> None: ...

        config = RolloutConfig(max_turns=1000, max_turn_tokens=500, max_episode_tokens=1_000_000)
        self.endpoint = await Endpoint().__aenter__()
        task = Task(task_id="task", prompt=({"role": "user", "content": "?"},))
        self.episodes = [Episode(episode_id=str(n), task=task, seed=n) for n in range(num_agents)]
        seats = [EpisodeSeat(renderer, Engine(), config, episode) for episode in self.episodes]
        return self.endpoint.url, [self.endpoint.admit(seat) for seat in seats]

    def recorded(self) -> tuple[int, int]:
        """Calls, and the longest sequence of ids that was recorded of one episode."""
        turns = [episode.turns for episode in self.episodes]
        return sum(map(len, turns)), max(len(t[-1].prompt_ids) + len(t[-1].completion_ids) for t in turns)

    async def stop(self) -> None:
        await self.endpoint.__aexit__(None, None, None)


class Verifiers:
    """Their interception server, with a session for each agent."""

    async def start(self, folder: str, num_agents: int) -> tuple[str, list[str]]:
        import renderers.client
        from renderers.configs import Qwen3RendererConfig
        from transformers import AutoTokenizer
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import TrainClientConfig
        from verifiers.v1.interception import InterceptionServer
        from verifiers.v1.session import RolloutSession
        from verifiers.v1.task import TaskData
        from verifiers.v1.trace import AgentInfo, Trace, TraceTask

        ids = AutoTokenizer.from_pretrained(folder).encode(SAID, add_special_tokens=False)
        logprobs = {"content": [{"logprob": -0.5, "token": f"token_id:{i}"} for i in ids]}
        choice = {"token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}

        class Answer:
            def __init__(self) -> None:
                self.content = {"request_id": "r", "choices": [choice]}

        class Engine:
            base_url = "http://engine/v1"

            async def post(self, *_: object, **__: object) -> Answer:
                await asyncio.sleep(MODEL_S)
                return Answer()

            async def close(self) -> None: ...

        renderers.client.parse_generate_response = lambda content: content
        renderers.client._max_prompt_len_cache["http://engine/v1", folder] = None
        config = TrainClientConfig(
            base_url="http://engine/v1", api_key_var="NONE", renderer_model_name=folder, multiplex=num_agents,
            renderer=Qwen3RendererConfig(enable_thinking=False),
        )  # fmt: skip
        self.server = InterceptionServer()
        await self.server.__aenter__()
        client = self.server._client(config)
        client.client = Engine()
        self.traces, keys = [], []
        for n in range(num_agents):
            task = TraceTask(type="Task", data=TaskData(idx=n, prompt="?"), key=str(n), hash=str(n))
            trace = Trace.model_construct(
                **fresh_fields(Trace, task=task, agent=AgentInfo.model_construct(config=None))
            )
            self.traces.append(trace)
            session = RolloutSession(ctx=ModelContext(model=folder, client=config), trace=trace)
            keys.append(self.server.register(session)[0])
        return self.server.base_url, keys

    def recorded(self) -> tuple[int, int]:
        nodes = [trace.nodes for trace in self.traces]
        sampled = sum(node.sampled for one in nodes for node in one)
        return sampled, max(sum(len(node.token_ids) for node in one) for one in nodes)

    async def stop(self) -> None:
        await self.server.__aexit__(None, None, None)


def fresh_fields(kind: Any, **given: object) -> dict[str, object]:
    """A model's defaults and what is given, without the settings that only a whole run has."""
    made = {
        name: f.get_default(call_default_factory=True) for name, f in kind.model_fields.items() if not f.is_required()
    }
    return made | given


async def serve(side: str, folder: str, num_agents: int) -> None:
    """The child: prints where it is, waits for the agents' end, prints what it took."""
    server = {"agentgym": Ours, "verifiers": Verifiers}[side]()
    url, keys = await server.start(folder, num_agents)
    print(json.dumps({"url": url, "keys": keys}), flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.readline)  # one call has warmed all up
    began = time.process_time()
    await loop.run_in_executor(None, sys.stdin.readline)
    used = time.process_time() - began
    calls, num_ids = server.recorded()
    print(json.dumps({"cpu_s": used, "recorded": calls, "longest_ids": num_ids}), flush=True)
    await server.stop()


class Agent:
    """Sends its history over one connection, and grows it."""

    def __init__(self, url: str, key: str, number: int) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port, self._key = int(port), key
        task = f"Task {number}: list the sources and the tests, then say which test is missing."
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM}, {"role": "user", "content": task},
        ]  # fmt: skip

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def call(self) -> None:
        body = json.dumps({"model": "policy", "messages": self._messages, "tools": [TOOL]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length:")[2].partition("\r\n")[0])
        found = json.loads(await self._reader.readexactly(length))
        assert " 200 " in answer.partition("\r\n")[0], found
        message = found["choices"][0]["message"]
        [call] = message["tool_calls"]
        self._messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]

    def close(self) -> None:
        self._writer.close()


async def measure(side: str, folder: str, num_agents: int, num_calls: int) -> dict[str, float]:
    words = [__file__, "--serve", side, "--folder", folder, "--agents", str(num_agents + 1)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=pipe, stdout=pipe, env=environ, limit=2**24
    )
    assert child.stdin is not None and child.stdout is not None
    told = json.loads(await child.stdout.readline())
    agents = [Agent(told["url"], key, n) for n, key in enumerate(told["keys"])]
    for agent in agents:
        await agent.connect()
    warm = agents.pop()
    for _ in range(3):
        await warm.call()

    async def play(agent: Agent) -> None:
        for _ in range(num_calls):
            await agent.call()

    child.stdin.write(b"\n")
    await asyncio.sleep(0.1)
    began = time.perf_counter()
    await asyncio.gather(*map(play, agents))
    wall_s = time.perf_counter() - began
    child.stdin.write(b"\n")
    found = json.loads(await child.stdout.readline())
    for agent in [*agents, warm]:
        agent.close()
    await child.wait()
    calls = num_agents * num_calls
    assert found["recorded"] == calls + 3, found
    return {"cpu_us_per_call": 1e6 * found["cpu_s"] / calls, "wall_s": wall_s, "longest_ids": found["longest_ids"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="the servers take turns")
    parser.add_argument("--sides", nargs="+", default=["agentgym", "verifiers"])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve, given.folder, given.agents))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(folder)
        rows: dict[str, list[dict[str, float]]] = {side: [] for side in given.sides}
        for _ in range(given.repeats):
            for side, found in rows.items():
                found.append(asyncio.run(measure(side, folder, given.agents, given.calls)))
                print(side, found[-1], file=sys.stderr, flush=True)
    print(json.dumps({"agents": given.agents, "calls": given.calls, **rows}))
    print("| server | CPU per call, median | of each run |\n|---|--:|---|")
    for side, found in rows.items():
        each = [row["cpu_us_per_call"] for row in found]
        print(f"| {side} | {statistics.median(each):,.0f} µs | {', '.join(f'{one:,.0f}' for one in each)} |")


if __name__ == "__main__":
    main()
