"""A run as the page's tests look at it: it learns, and of its last episodes one attacks the page, one is long, one
calls tools and one has branches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer
from view_runs import episode, turn, write_evaluation, write_run, write_step

from agentgym.models.resolve import policy_path
from agentgym.runs.changes import Change, record_change
from agentgym.runs.folder import RunFolder
from agentgym.types import Episode, Group, ToolTrace

STEPS = 40
HOSTILE, LONG, TOOLS, BRANCHED = (f"train-{STEPS}-{n}" for n in (1, 2, 3, 4))
HOSTILE_TEXT = (
    "<script>window.attacked = 'script'</script><img src=x onerror=\"window.attacked='img'\">"
    "<a href=\"javascript:window.attacked='link'\">click</a> javascript:window.attacked='text' "
    "\u202etxt.exe\u202c \x1b[31mred\x1b[0m\x07 </textarea><style>body{display:none}</style> {{7*7}} "
    "${window.attacked=1}"
)
REPORT = {
    "environment": "math", "version": 2, "clean": False, "notes": ["2 parts were left out"],
    "probes": [{"probe": "candidates", "episodes": 16, "reward": 0.3, "success": 0.31, "finding": "gamed",
                "what": HOSTILE_TEXT}],
    "findings": [{"kind": "gamed", "where": "candidates", "text": "succeeds in 5 of 16 tasks", "detail": HOSTILE_TEXT}],
}  # fmt: skip


def spoken(
    index: int, *texts: str, question: str = "What is 17 + 25?", branches: Sequence[tuple[int, ...]] = ()
) -> Episode:
    """An episode whose turns say these texts, in the tokens of the tiny policy."""
    tokenizer = Tokenizer.from_file(str(policy_path() / "tokenizer.json"))
    ids = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
    made = replace(episode(9000, index, success=index != 1), turns=[], tool_calls=[], messages=[], branches=[*branches])
    made.branch_reasons = ["message removed"] * (len(branches) - 1)
    made.task = replace(made.task, task_id=f"count-{question}", prompt=({"role": "user", "content": question},))
    made.messages = [*made.task.prompt]
    for text in texts:
        said = tokenizer.encode(f"{text}<|im_end|>").ids
        made.turns.append(turn(ids, said, old=STEPS - 2, new=STEPS - 1))
        made.messages.append({"role": "assistant", "content": text})
        ids = [*ids, *said, *tokenizer.encode("\n").ids]
    return made


def last_group() -> Group:
    hostile = spoken(0, f"{HOSTILE_TEXT}\n[a](javascript:window.attacked=1)", question=HOSTILE_TEXT)
    hostile.messages.append({"role": "user", "content": "x" * 200_000})
    hostile.tool_calls = [
        ToolTrace(turn=1, name="<i>add</i>", arguments='{"a": <b>', result=HOSTILE_TEXT, error="malformed")
    ]
    hostile.info |= {"said": HOSTILE_TEXT}
    long = spoken(1, " ".join(f"word{n}" for n in range(4_000)))
    tools = spoken(2, "Seventeen plus twenty-five:\n17 + 25 = 42.")
    tools.tool_calls = [ToolTrace(turn=1, name="add", arguments={"a": 17, "b": 25}, result="42", seconds=0.012)]
    branched = spoken(3, "One answer.", "Another one.", branches=[(0,), (0, 1)])
    return Group(
        group_id=9000, task=tools.task, start_version=STEPS - 2, episodes=[hostile, long, tools, branched],
        advantages=[1.0, -1.0, 0.61, 1.0],
    )  # fmt: skip


def write_runs(folder: Path) -> RunFolder:
    """The run, still open, beside one that has ended and a report of `agentgym envs check`."""
    write_run(folder, "other")
    run = write_run(folder, "one", steps=STEPS - 1, done=False)
    write_step(run, STEPS)
    record_change(run.path, Change(step=12, setting="optimizer.lr", before=1e-4, value=5e-5))
    group = last_group()
    logprobs = {
        one.episode_id: [[p + 0.01 * at for at, p in enumerate(t.logprobs)] for t in one.turns]
        for one in group.episodes
    }
    run.save_groups(STEPS, [group], [], logprobs)
    write_evaluation(run, STEPS, wins=8)
    (folder / "check-math.json").write_text(json.dumps(REPORT))
    return run
