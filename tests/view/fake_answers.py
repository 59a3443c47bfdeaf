"""What a server of `agentgym view` would answer about one run that learns, about environments and reports."""

from __future__ import annotations

import math
import random
from typing import Any

from view.fake_episodes import HOSTILE, HOSTILE_TEXT, STEPS

from agentgym.tables.changeable import changeable_json

RUN = "runs:math-1"
OTHER = "runs:math-2"
NOW = 1_795_335_544.0
Answer = dict[str, Any]


def run_row(run: str = RUN) -> Answer:
    return {
        "id": run,
        "root": "runs",
        "name": run.split(":")[1],
        "kind": "train",
        "status": "running" if run == RUN else "done",
        "reason": "",
        "changed": NOW - 12,
        "environment": "math",
        "model": "builtin:tiny",
        "step": STEPS,
        "steps": 60,
        "reward": 0.71,
        "success": 0.68,
        "held_out": 0.66,
        "gain": None if run == RUN else {"mean": 0.15, "low": 0.08, "high": 0.22, "n": 128},
        "sandbox": "",
        "unsafe": False,
        "spark": [0.4 + 0.3 * i / 30 for i in range(30)],
    }


def run_answer(run: str = RUN) -> Answer:
    difference = {
        "to_step": 0,
        "mean": 0.15,
        "low": 0.08,
        "high": 0.22,
        "n": 128,
        "better": 28,
        "worse": 7,
        "clear": True,
    }
    evaluations = [
        {
            "step": step,
            "finished": True,
            "success": 0.51 + 0.15 * step / 40,
            "low": 0.43 + 0.15 * step / 40,
            "high": 0.59 + 0.15 * step / 40,
            "tasks": 128,
            "episodes": 256,
            "difference": difference if step else None,
        }
        for step in (0, 20, 40)
    ]
    shares = [
        ("generate", 120.1, 0.61),
        ("sandbox", 0.0, 0.0),
        ("train", 71.0, 0.36),
        ("reference", 0.0, 0.0),
        ("publish", 1.2, 0.006),
    ]
    return {
        **run_row(run),
        "diagnosis": {
            "verdict": "learning",
            "sentence": "Learning: held-out success rose by 0.150 [0.080, 0.220] over 40 steps.",
            "problems": [
                {
                    "kind": "no_signal",
                    "text": "42% of groups have no signal: the tasks are too easy",
                    "severity": "warning",
                    "meaning": "Such a group is thrown away.",
                    "advice": "Raise env.level.",
                    "metrics": ["loop/skipped_groups"],
                }
            ],
            "missing": "",
        },
        "first_step": 1,
        "last_step": STEPS,
        "time": {"started": NOW - 220, "changed": NOW - 12, "wall_s": 208.0},
        "time_shares": [{"phase": p, "seconds": s, "share": x} for p, s, x in shares],
        "busy_share": 0.93,
        "infra": {
            "episodes": 5120,
            "infra_errors": 3,
            "unsupported": 0,
            "prompt_too_long": 0,
            "retries": 4,
            "by_source": [
                {
                    "source": "sandbox",
                    "kind": "TimeoutError",
                    "count": 3,
                    "example": HOSTILE,
                    "message": "no answer within 10 s <b>",
                }
            ],
        },
        "evaluations": evaluations,
        "checkpoints": [0, 20, 40],
        "episodes": {"train": list(range(1, STEPS + 1)), "eval": [0, 20, 40], "count": 5888},
        "sandbox_info": {},
        "config": {
            "loop.steps": {"value": 60, "source": "--loop.steps", "text": "Training steps."},
            "env": {"value": "math", "source": "--env", "text": ""},
            "rollout.group_size": {"value": 8, "source": None, "text": ""},
        },
        "steering": {
            "able": run == RUN,
            "why_not": "" if run == RUN else "the run has ended",
            "requests": [],
            "settings": changeable_json({"optimizer": {"lr": 1e-4}}, []) if run == RUN else [],
            "changes": [],
        },
    }


def curves() -> Answer:
    source = random.Random(3)
    steps = list(range(1, STEPS + 1))

    def walk(start: float, end: float, noise: float) -> list[float]:
        return [max(0.0, start + (end - start) * i / STEPS + source.gauss(0, noise)) for i in range(STEPS)]

    def curve(
        key: str, label: str, unit: str, values: list[float], at: list[int] = steps, around: float = 0.0, **more: object
    ) -> Answer:
        low = [value - around for value in values] if around else None
        high = [value + around for value in values] if around else None
        return {
            "key": key,
            "label": label,
            "unit": unit,
            "steps": at,
            "values": values,
            "low": low,
            "high": high,
            "n": [16] * len(at) if around else None,
            "n_of": "groups",
            "thinned": False,
            **more,
        }

    held_out = curve(
        "eval/success", "held-out success", "share", [0.51, 0.6, 0.66], [0, 20, 40], 0.08, n=[128] * 3, n_of="tasks"
    )
    found = [
        held_out,
        curve(
            "eval/difference",
            "held-out success against step 0, paired by task",
            "share",
            [0.09, 0.15],
            [20, 40],
            0.07,
            n=[128] * 2,
            n_of="tasks",
        ),
        curve("rollout/success_mean", "training success", "share", walk(0.45, 0.68, 0.03), around=0.07),
        curve("rollout/reward_mean", "training reward", "", walk(0.5, 0.71, 0.03), around=0.06),
        curve("train/loss", "loss", "", [source.gauss(0.02, 0.03) for _ in steps]),
        curve("train/mismatch_kl", "KL to the sampler", "nats", walk(0.001, 0.004, 0.0005)),
        curve("train/entropy", "entropy", "nats", walk(0.6, 0.35, 0.02)),
        curve("train/grad_norm", "gradient norm", "", walk(1.2, 0.8, 0.1)),
        curve("loop/staleness_mean", "staleness, mean", "versions", walk(0.6, 0.7, 0.1)),
        curve("loop/staleness_max", "staleness, most", "versions", [float(step > 1) for step in steps], bound=1),
        curve("view/no_signal_share", "groups without signal", "share", walk(0.3, 0.42, 0.05)),
        curve("view/truncated_share", "episodes cut by a limit", "share", walk(0.05, 0.01, 0.01)),
        curve("rollout/infra_errors", "infrastructure errors", "episodes", [float(step == 7) * 3 for step in steps]),
        curve("time/step_s", "time of a step", "s", walk(5, 5, 0.4)),
        curve("generator/tokens_per_s", "sampled tokens", "tokens/s", walk(2400, 2500, 90)),
    ]
    return {
        "names": [*(one["key"] for one in found), "train/lr", "train/clip_share"],
        "curves": found,
        "changes": [{"step": 12, "text": "optimizer.lr 0.0001 -> 5e-05"}],
    }


def lanes() -> Answer:
    steps = []
    for step in range(1, STEPS + 1):
        groups = []
        for number in range(9):
            stale = int(step > 1 and number % 3 == 0)
            start = step - 1 - stale
            tokens = [[start, 200], [step - 1, 120]] if stale else [[start, 310]]
            groups.append(
                {
                    "group": step * 16 + number,
                    "start": start,
                    "oldest": start,
                    "newest": step - 1,
                    "staleness": stale,
                    "trained": number != 8,
                    "wait_steps": stale,
                    "tokens": tokens,
                    "episodes": 8,
                    "success": number / 8,
                }
            )
        steps.append({"step": step, "trained_at": step - 1, "groups": groups})
    return {"bound": 1, "steps": steps}


def time_answer() -> Answer:
    steps = list(range(1, STEPS + 1))
    columns = {
        "generate": [3.0 + 0.2 * math.sin(s) for s in steps],
        "sandbox": [0.0] * STEPS,
        "train": [1.8] * STEPS,
        "reference": [0.0] * STEPS,
        "publish": [0.03] * STEPS,
    }
    return {
        "phases": list(columns),
        "steps": steps,
        "step_s": [5.0] * STEPS,
        "columns": columns,
        "idle_s": [0.2] * STEPS,
    }


def compare() -> Answer:
    side = {"run": RUN, "success": 0.51, "low": 0.43, "high": 0.59, "num_tasks": 128, "keys": {"e0": "eval-0-1"}}
    won = [
        {
            "task_id": f"procedural/test/0/{i}",
            "first": 0,
            "second": 2,
            "first_episodes": ["e0", "e1"],
            "second_episodes": ["e0", "e1"],
        }
        for i in range(28)
    ]
    return {
        "first": {**side, "name": "math-1 step 0"},
        "second": {**side, "name": "math-1 step 40", "success": 0.66, "low": 0.58, "high": 0.74},
        "sentence": "b solves 0.150 more [0.080, 0.220], paired over 128 tasks.",
        "success": {
            "mean": 0.15,
            "low": 0.08,
            "high": 0.22,
            "n": 128,
            "better": 28,
            "worse": 7,
            "equal": 93,
            "p": 0.001,
            "smallest": 0.11,
            "clear": True,
        },
        "reward": {"mean": 0.13, "low": 0.05, "high": 0.2, "n": 128},
        "num_pairs": 256,
        "num_unpaired": 0,
        "mismatches": ["seeds: eval.seed is 1 and 2"],
        "won": won,
        "lost": won[:7],
        "configs": [{"field": "loop.steps", "first": "40", "second": "80"}],
    }


def report() -> Answer:
    return {
        "id": "runs:check-math.json",
        "kind": "envs check",
        "title": "math version 2",
        "time": NOW,
        "ok": False,
        "findings": [
            {"kind": "gamed", "where": "candidates", "text": "succeeds in 5 of 16 tasks", "detail": HOSTILE_TEXT}
        ],
        "header": ["probe", "episodes", "reward", "success", "finding", "what was said"],
        "rows": [["oracle", 16, 1.0, 1.0, "", "42"], ["candidates", 16, 0.3, 0.31, "gamed", HOSTILE_TEXT]],
        "notes": ["2 parts were left out"],
        "raw": {"format": 1},
    }


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
ENV = {
    "name": "math",
    "version": 2,
    "summary": "Arithmetic in words.",
    "options": [{"key": "tries", "type": "int", "default": "1", "text": "answers to a question"}],
    "tools": [ADD],
    "max_turns": 2,
    "rewards": [{"name": "success", "weight": 1.0}],
    "sandbox": "",
    "tasks": [
        {
            "task_id": f"procedural/test/0/{i}",
            "split": "test",
            "difficulty": i % 3,
            "prompt": [{"role": "user", "content": f"What is {i} + 25?"}],
            "answer": str(i + 25),
            "needs_sandbox": False,
        }
        for i in range(50)
    ],
    "more": True,
}
PLAY = {
    "id": "p1",
    "env": "math",
    "task_id": "procedural/test/0/0",
    "messages": [{"role": "user", "content": "What is 0 + 25?"}],
    "turn": 0,
    "max_turns": 2,
    "tools": [ADD],
    "tool_calls": [],
    "done": False,
    "stop": None,
    "outcome": None,
    "reward": None,
    "rewards": [],
    "success": None,
    "info": {},
    "error": None,
    "sandbox": "",
    "idle_limit_s": 600,
    "left_s": 580.0,
}
