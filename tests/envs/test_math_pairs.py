"""Pairs of a right answer and a reply, each with its verdict and the reason: an honest model's, and an attacker's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from math_verify import parse, verify

from agentgym.testing import play
from agentgym.types import Message, Task
from agentgym_envs.math.environment import MathEnvironment

FILE = Path(__file__).parent.parent / "data" / "math_pairs.tsv"
DOCS = Path(__file__).parents[2] / "docs" / "environments.md"
ROWS = [line.replace("⏎", "\n").split("\t") for line in FILE.read_text().split("\n") if line]
PROMPT: tuple[Message, ...] = ({"role": "user", "content": "How much?"},)


async def test_a_reply_is_right_only_where_it_states_the_right_answer_and_no_other() -> None:
    environment = MathEnvironment()
    misjudged = []
    for kind, gold, reply, verdict, reason in ROWS:
        answer = gold if kind == "number" else {"expression": gold}
        episode = await play(environment, Task(task_id="math/pair", prompt=PROMPT, answer=answer, split="test"), reply)
        if episode.info["success"] is not (verdict == "right"):
            misjudged.append(f"{gold} | {reply} is {verdict}: {reason}")
    assert not misjudged, "\n".join(misjudged)
    assert len(ROWS) >= 150 and len({(kind, gold, reply) for kind, gold, reply, *_ in ROWS}) == len(ROWS)


def test_the_page_gives_the_score_of_math_verify_alone_on_the_same_pairs() -> None:
    judged_right = {"right": 0, "wrong": 0}
    for _, gold, reply, verdict, _ in ROWS:
        right, said = (parse(text, parsing_timeout=None) for text in (f"\\boxed{{{gold}}}", reply))
        judged_right[verdict] += verify(right, said, timeout_seconds=None)
    total = Counter(verdict for *_, verdict, _ in ROWS)
    cells = " | ".join(f"{judged_right[verdict]} of {total[verdict]}" for verdict in ("right", "wrong"))
    row = f"| math-verify alone | {cells} |"
    assert row in DOCS.read_text(), row
