"""Judges every row of a file of questions as `math` does: its solution, silence, wrong answers, echoes of the question.

    python benchmarks/math_rows.py gsm8k/test.jsonl MATH/test.json

Gold is the row's solution; wrong is the answer of the next row that has another one, and the right number plus one; an
echo is each formula of the question, boxed. Prints a Markdown table, then what was judged otherwise than it should: a
wrong answer that happens to mean the same as the right one is among them, and a number that the question gives. Ends
with 1 if a gold answer fails or silence pays.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import sys
import time
from collections.abc import Iterator

from agentgym.env import EpisodeContext
from agentgym.types import Task
from agentgym_envs.math.answers import plain_number
from agentgym_envs.math.environment import MathEnvironment

FORMULA = re.compile(r"\$([^$]+)\$")
KINDS = ("gold", "silence", "wrong", "plus one", "echo")


async def succeeds(environment: MathEnvironment, task: Task, said: str) -> bool:
    context = EpisodeContext(task=task, messages=list(task.prompt))
    context.state = await environment.start(context)
    context.messages.append({"role": "assistant", "content": said})
    await environment.reply(context)
    return context.info["success"] is True


def gold_of(task: Task) -> str:
    return str(task.answer["expression"] if isinstance(task.answer, dict) else task.answer)


def answers(environment: MathEnvironment, task: Task, other: Task) -> Iterator[tuple[str, str]]:
    *_, last = environment.solve(task)
    gold = gold_of(task)
    yield "gold", last["content"]
    yield "silence", ""
    if gold_of(other) != gold:
        yield "wrong", f"\\boxed{{{gold_of(other)}}}"
    number = plain_number(gold)
    if number is not None:
        yield "plus one", f"\\boxed{{{number.value + 1}}}"
    for formula in FORMULA.findall(task.prompt[0]["content"]):
        if formula.strip() != gold:
            yield "echo", f"\\boxed{{{formula}}}"


async def judge(path: str, source: str) -> tuple[dict[str, list[int]], list[str], float]:
    began = time.monotonic()
    environment = MathEnvironment(source=source, path=path, test_path=path)  # type: ignore[arg-type]
    tasks = list(environment.tasks("test"))
    counts = {kind: [0, 0] for kind in KINDS}
    odd: list[str] = []

    async def one(task: Task, other: Task) -> None:
        for kind, said in answers(environment, task, other):
            success = await succeeds(environment, task, said)
            counts[kind][0] += success
            counts[kind][1] += 1
            if success != (kind == "gold"):
                odd.append(f"{task.task_id} {kind}: right is {gold_of(task)!r:.60}, said {said!r:.100}")

    pairs = list(zip(tasks, itertools.chain(tasks[1:], tasks[:1]), strict=True))
    for start in range(0, len(pairs), 64):
        await asyncio.gather(*(one(task, other) for task, other in pairs[start : start + 64]))
        print(f"\r{path}: {min(start + 64, len(pairs))} of {len(pairs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return counts, odd, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--source", default="jsonl", help="jsonl, json or parquet (default: jsonl)")
    parser.add_argument("--show", type=int, default=20, help="how many of the odd verdicts to print (default: 20)")
    arguments = parser.parse_args()
    failed = False
    print("| file | " + " | ".join(f"{kind} succeeds" for kind in KINDS) + " | s |")
    print("|---|" + "--:|" * (len(KINDS) + 1))
    for path in arguments.files:
        counts, odd, seconds = asyncio.run(judge(path, arguments.source))
        cells = " | ".join(f"{right} of {total}" for right, total in counts.values())
        print(f"| {path} | {cells} | {seconds:.0f} |", *odd[: arguments.show], sep="\n")
        failed |= counts["gold"][0] < counts["gold"][1] or counts["silence"][0] > 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
