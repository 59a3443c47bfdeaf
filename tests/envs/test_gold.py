"""`gold.py` passes an environment only when it judged both plays of each task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gold import lists, measure

from agentgym import Environment, EpisodeContext, Message, Reply, Split, Task
from agentgym.hooks import PluginRegistry


class Say(Environment):
    """Say yes. silence: what becomes of an agent that says nothing."""

    name = "say"
    rewards = {"success": 1.0}

    def __init__(self, silence: str) -> None:
        self._silence = silence

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        yield Task(task_id="say/0", prompt=({"role": "user", "content": "Say yes."},), split=split)

    async def reply(self, context: EpisodeContext) -> Reply:
        said = context.messages[-1]["content"]
        if not said and self._silence == "breaks":
            raise LookupError("there is no word")
        context.info["success"] = said == "yes" or self._silence == "pays"
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message]:
        yield {"role": "assistant", "content": "yes"}


@pytest.mark.parametrize(
    ("silence", "passed", "told"),
    [
        ("fails", True, ""),
        ("pays", False, "doing nothing succeeds: say/0"),
        ("breaks", False, "the environment fails when nothing is done: say/0: "),
    ],
)
async def test_silence_must_be_judged_and_fail(silence: str, passed: bool, told: str) -> None:
    row = await measure("say", Say(silence), "test", None, PluginRegistry.discover())
    assert row.tasks == 1 and row.gold_failed == [] and row.passed is passed
    assert told in lists([row])
