"""What captured conversations cost: processor time per call and memory per episode, with a fake model.

    python benchmarks/conversations.py                  1,000 agents at once, of 20 turns that each call a tool
    python benchmarks/conversations.py --rewrite        each of them edits its first message before every call

An agent sends its whole history with every call, as new objects, as an endpoint reads them from JSON. The model answers
at once; the tokenizer is the tiny policy's. `replay` is the same without a seat: the history rendered and tokenized
again at every call, which is what a plain server does. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from pathlib import Path

import agentgym
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.conversation import CallRequest, EpisodeSeat
from agentgym.rollout.tokenizer import HuggingFaceTokenizer
from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Task, VersionSpan

SAID = (
    '<tool_call>\n{"name": "run", "arguments": {"command": "ls -l /tmp/folder", "seconds": 2}}\n</tool_call><|im_end|>'
)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "run",
            "description": "Run a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "seconds": {"type": "integer"}},
            },
        },
    },
)
SYSTEM = "You solve tasks on a computer. " * 20
OUTPUT = "drwxr-xr-x 2 root root 4096 file number {}\n" * 6
SPEED = 1_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Model:
    version = 0

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.completion = Completion(
            completion_ids=ids,
            logprobs=(-0.5,) * len(ids),
            versions=(VersionSpan(version=0, start=0, end=len(ids)),),
            finish_reason=FinishReason.STOP,
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        await asyncio.sleep(0)
        return self.completion

    async def update_weights(self, version: int) -> None: ...


async def converse(seat: EpisodeSeat, number: int, num_turns: int, *, rewrite: bool) -> list[str]:
    """One agent: what it sent with each call, as JSON."""
    history: list[dict[str, object]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Task {number}: find the file."},
    ]
    sent = []
    for turn in range(num_turns):
        if rewrite:
            history[1] = {"role": "user", "content": f"Task {number}: find the file. Step {turn}."}
        sent.append(json.dumps(history))
        answer = await seat.call(CallRequest(messages=tuple(json.loads(sent[-1])), tools=TOOLS))
        [call] = answer.calls
        function = {"name": call.name, "arguments": dict(call.arguments)}
        calls = [{"type": "function", "id": call.call_id, "function": function}]
        history.append({"role": "assistant", "content": answer.content, "tool_calls": calls})
        history.append({"role": "tool", "tool_call_id": call.call_id, "content": OUTPUT.format(*range(6))})
    return sent


def seat_of(renderer: ChatRenderer, model: Model, number: int) -> EpisodeSeat:
    limits = RolloutConfig(max_turn_tokens=512, max_episode_tokens=100_000, episode_time_s=3600)
    episode = Episode(episode_id=f"e{number}", task=Task(task_id="t", prompt=()), seed=number)
    return EpisodeSeat(renderer, model, limits, episode)


async def measure(num_episodes: int, num_turns: int, *, rewrite: bool) -> dict[str, float]:
    (policy,) = Path(agentgym.__file__).parent.glob("*/tiny/policy")
    tokenizer = HuggingFaceTokenizer(str(policy))
    renderer, model = ChatRenderer(tokenizer), Model(tokenizer.encode(SAID))
    await converse(seat_of(renderer, model, -1), -1, 2, rewrite=rewrite)  # what is made once, at first use
    seats = [seat_of(renderer, model, number) for number in range(num_episodes)]
    gc.collect()
    before_bytes, began_s = resident_bytes(), time.process_time()
    talks = (converse(seat, n, num_turns, rewrite=rewrite) for n, seat in enumerate(seats))
    sent = await asyncio.gather(*talks)
    used_s, held_bytes = time.process_time() - began_s, resident_bytes() - before_bytes
    held_bytes -= sum(len(text) for talk in sent for text in talk)
    began_s = time.process_time()
    for text in (text for talk in sent for text in talk):
        json.loads(text), json.dumps(text)
    json_s = time.process_time() - began_s
    some = [text for talk in sent[:: max(1, num_episodes // 20)] for text in talk]
    began_s = time.process_time()
    for text in some:
        renderer.prompt(json.loads(text), TOOLS)
    replay_s = time.process_time() - began_s
    num_calls = num_episodes * num_turns
    turns = [turn for seat in seats for turn in seat.episode.turns]
    assert len(turns) == num_calls
    assert sum(len(seat.episode.branches) for seat in seats) == (num_calls if rewrite else 0)
    return {
        "calls": num_calls,
        "last_prompt_tokens": len(seats[0].episode.turns[-1].prompt_ids),
        "cpu_us_per_call": round((used_s - json_s) / num_calls * SPEED, 1),
        "replay_us_per_call": round(replay_s / len(some) * SPEED, 1),
        "kib_per_episode": round(held_bytes / num_episodes / 1024, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rewrite", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.episodes, arguments.turns, rewrite=arguments.rewrite))))


if __name__ == "__main__":
    main()
