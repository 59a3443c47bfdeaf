"""Does a policy learn through an agent's program as it does in the built-in loop? Whole training runs, arm beside arm.

    python benchmarks/agents.py --python .venv-agents/bin/python
    python benchmarks/agents.py --arms mini_swe --seeds 0          one run; the table has all that are in --out
    python benchmarks/agents.py --arms none                        the table alone

Both arms train the policy that ships with the package on `code_exec`, with equal recipes and seeds, in the embedded
interpreter. In `mini_swe` the policy is asked by mini-swe-agent, unchanged, through the run's endpoint: its default
agent and its text-based model, with the templates `tiny`. --python: the interpreter of an environment that has it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ARMS = ("chat", "mini_swe")
COLUMNS = "| arm | seed | before | after | rise (95% interval, paired by task) | steps | episodes trained | in all |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=(*ARMS, "none"), default=ARMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8, help="a step, of 8 episodes each")
    parser.add_argument("--tasks", type=int, default=128, help="held out, played twice each before and after")
    parser.add_argument("--processes", type=int, default=4, help="of the agent's program")
    parser.add_argument("--python", default="", help="the interpreter that has mini-swe-agent")
    parser.add_argument("--out", type=Path, default=Path("runs-agents"), help="where the runs are kept")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for arm in arguments.arms:
            if arm != "none" and not (arguments.out / f"{arm}-{seed}" / "comparison.json").is_file():
                run(arm, seed, arguments)
    print(table(arguments.out))


def run(arm: str, seed: int, arguments: argparse.Namespace) -> None:
    """One training run. Its folder gets how long it took, too."""
    words = ["train", "--env", "code_exec", "--seed", str(seed), "--name", f"{arm}-{seed}", "--plain"]
    words += ["--runs-dir", str(arguments.out), "--sandbox.name", "monty"]
    words += ["--loop.steps", str(arguments.steps), "--loop.groups_per_step", str(arguments.groups)]
    words += ["--loop.checkpoint_every", "0", "--eval.tasks", str(arguments.tasks)]
    if arm == "mini_swe":
        words += ["--agent", "mini_swe", "--agent.templates", "tiny", "--agent.where", "folder"]
        words += ["--agent.processes", str(arguments.processes), "--agent.python", arguments.python]
    began = time.monotonic()
    subprocess.run([Path(sys.executable).with_name("agentgym"), *words], check=True)
    (arguments.out / f"{arm}-{seed}" / "took.json").write_text(json.dumps(time.monotonic() - began))


def table(out: Path) -> str:
    """Of all runs that have ended, in Markdown."""
    rows = [COLUMNS, "|---|---|---|---|---|---|---|---|"]
    for folder in sorted(out.glob("*-*")):
        arm, _, seed = folder.name.rpartition("-")
        if arm not in ARMS or not (folder / "comparison.json").is_file():
            continue
        found: dict[str, Any] = json.loads((folder / "comparison.json").read_text())
        first, last, rise = found["first"], found["last"], found["difference"]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        episodes = sum(line.get("rollout/episodes", 0) for line in lines)
        took_s = json.loads((folder / "took.json").read_text()) if (folder / "took.json").is_file() else 0
        rows.append(
            f"| {arm} | {seed} | {first['success']:.3f} | {last['success']:.3f} | {rise['mean']:+.3f} "
            f"[{rise['low']:+.3f}, {rise['high']:+.3f}] | {found['steps']} | {episodes:g} | {took_s:.0f} s |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
