"""What the test tasks of `tool_use` pay an oracle, and agents without the tools' replies; and how long they are.

    python benchmarks/tool_use_floor.py
    python benchmarks/tool_use_floor.py --write docs/environments.md

All test tasks of each level are played, with no model. The guesser asks the oracle's questions and makes its calls, but
draws every figure at random that it would have read in a withheld reply: what is left is luck. Tokens are those of a
whole right episode, the tools included, for the tokenizer of the model.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from agentgym.hooks import PluginRegistry
from agentgym.models.resolve import TINY, resolve_model
from agentgym.rl.demonstrations import Demonstration, written
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.scripted import play_script
from agentgym.rollout.tokenizer import HuggingFaceTokenizer
from agentgym.types import Message, Task
from agentgym_envs.tool_use.desk import schemas_of
from agentgym_envs.tool_use.environment import ToolUse, call_message, solution
from agentgym_envs.tool_use.plans import Plan
from agentgym_envs.tool_use.requests import CANNOT, final, question
from agentgym_envs.tool_use.shapes import LEVELS
from agentgym_envs.tool_use.worlds import TOOLS

BEGIN, END = "<!-- floor -->", "<!-- /floor -->"
HEADER = (
    "level", "tasks", "structures", "oracle", "says nothing", "always refuses", "oracle, replies withheld",
    "guesser, replies withheld", "tokens, median", "longest",
)  # fmt: skip
Script = Callable[[Task], Iterator[Message]]


def oracle(task: Task) -> Iterator[Message]:
    return solution(Plan.from_json(task.answer))


def silence(_task: Task) -> Iterator[Message]:
    yield {"role": "assistant", "content": ""}


def refusal(_task: Task) -> Iterator[Message]:
    yield {"role": "assistant", "content": CANNOT}


def guesser(task: Task) -> Iterator[Message]:
    """The right plan with made-up figures."""
    plan = Plan.from_json(task.answer)
    if plan.shape.kind == "none":
        yield from refusal(task)
        return
    if asked := question(plan):
        yield {"role": "assistant", "content": asked}
    rng = random.Random(task.task_id)
    playing = plan.play()
    told: str | None = None
    while True:
        try:
            tool, arguments = playing.send(told) if told is not None else next(playing)
        except StopIteration as ended:
            yield {"role": "assistant", "content": final(ended.value)}
            return
        yield call_message(tool, arguments, "call00001")
        told = ", ".join(f"{field} {rng.randint(10, 28 if field == 'day' else 99)}" for field in TOOLS[tool].fields)


async def share(tasks: list[Task], script: Script, scorer: Scorer, *, withhold: bool = False) -> str:
    environment = ToolUse(withhold_replies=withhold)
    episodes = [await play_script(environment, task, script(task), scorer=scorer) for task in tasks]
    if broken := next((episode.error for episode in episodes if episode.error), None):
        raise RuntimeError(str(broken))
    return f"{statistics.mean(episode.success for episode in episodes):.3f}"


async def row(level: int, renderer: ChatRenderer) -> list[str]:
    environment = ToolUse(levels=[level])
    tasks = list(environment.tasks("test"))
    scorer = Scorer.of(environment, PluginRegistry.discover())
    lengths = []
    for task in tasks:
        episode = await play_script(environment, task, oracle(task), scorer=scorer)
        tools = tuple(schemas_of(Plan.from_json(task.answer).offered))
        made = Demonstration(name=task.task_id, messages=tuple(episode.messages), tools=tools)
        lengths.append(len(written(made, renderer)))
    return [
        str(level),
        str(len(tasks)),
        str(len({environment.structure(task) for task in tasks})),
        await share(tasks, oracle, scorer),
        await share(tasks, silence, scorer),
        await share(tasks, refusal, scorer),
        await share(tasks, oracle, scorer, withhold=True),
        await share(tasks, guesser, scorer, withhold=True),
        f"{statistics.median(lengths):.0f}",
        str(max(lengths)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=TINY, help=f"whose tokenizer counts (default: {TINY})")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"put the table between {BEGIN} and {END}")
    given = parser.parse_args()
    renderer = ChatRenderer(HuggingFaceTokenizer(str(resolve_model(given.model, Path("runs")))))
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "--:|" * len(HEADER)]
    for level in LEVELS:
        lines.append("| " + " | ".join(asyncio.run(row(level, renderer))) + " |")
    print("\n".join(lines))
    if given.write:
        before, _, rest = given.write.read_text().partition(BEGIN)
        given.write.write_text("\n".join([before + BEGIN, *lines, END]) + rest.partition(END)[2])


if __name__ == "__main__":
    main()
