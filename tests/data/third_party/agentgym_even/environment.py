"""An environment: say two things whose lengths are even, which a sandbox measures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentgym import Environment, Episode, EpisodeContext, Reply, SandboxSpec, Split, Task


@dataclass
class Attempts:
    lengths: list[int] = field(default_factory=list)


class EvenLengths(Environment[Attempts]):
    """Say two things of even length."""

    name = "even"
    rewards = {"success": 1.0, "brevity": 0.5}
    max_turns = 2

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for number in itertools.count(seed) if split == "train" else range(8):
            yield Task(
                task_id=f"{split}-{number}",
                prompt=({"role": "user", "content": f"Number {number}: say something of even length."},),
                sandbox=SandboxSpec(allow_interpreters=("ruler",)),
                split=split,
            )

    async def start(self, context: EpisodeContext[Attempts]) -> Attempts:
        return Attempts()

    async def reply(self, context: EpisodeContext[Attempts]) -> Reply:
        assert context.sandbox is not None
        measured = await context.sandbox.run(context.messages[-1]["content"])
        context.state.lengths.append(int(measured.stdout))
        context.info["lengths"] = context.state.lengths
        context.info["success"] = all(length % 2 == 0 for length in context.state.lengths)
        return Reply(messages=({"role": "user", "content": "And another one."},), done=context.turn == self.max_turns)


def brevity(episode: Episode) -> float:
    """1 for nothing said, towards 0 for much."""
    lengths = episode.info["lengths"]
    assert isinstance(lengths, list)
    return 1 / (1 + sum(lengths) / 100)
