"""What a server of `agentgym view` would answer about one run that learns, with an episode that attacks the page."""

from __future__ import annotations

import math
import random
from typing import Any

RUN = "runs:math-1"
OTHER = "runs:math-2"
STEPS = 40
NOW = 1_795_335_544.0
HOSTILE = "train-40-1"
LONG = "train-40-2"
TOOLS = "train-40-3"
HOSTILE_TEXT = (
    "<script>window.attacked = 'script'</script><img src=x onerror=\"window.attacked='img'\">"
    "<a href=\"javascript:window.attacked='link'\">click</a> javascript:window.attacked='text' "
    "\u202etxt.exe\u202c \x1b[31mred\x1b[0m\x07 </textarea><style>body{display:none}</style> {{7*7}} ${window.attacked=1}"
)

Answer = dict[str, Any]


def run_row(run: str = RUN) -> Answer:
    return {
        "id": run, "root": "runs", "name": run.split(":")[1], "kind": "train", "status": "running" if run == RUN else "done",
        "reason": "", "changed": NOW - 12, "environment": "math", "model": "builtin:tiny", "step": STEPS, "steps": 60,
        "reward": 0.71, "success": 0.68, "held_out": 0.66,
        "gain": None if run == RUN else {"mean": 0.15, "low": 0.08, "high": 0.22, "n": 128},
        "sandbox": "", "unsafe": False, "spark": [0.4 + 0.3 * i / 30 for i in range(30)],
    }  # fmt: skip


def run_answer(run: str = RUN) -> Answer:
    difference = {"to_step": 0, "mean": 0.15, "low": 0.08, "high": 0.22, "n": 128, "better": 28, "worse": 7, "clear": True}
    evaluations = [
        {"step": step, "finished": True, "success": 0.51 + 0.15 * step / 40, "low": 0.43 + 0.15 * step / 40,
         "high": 0.59 + 0.15 * step / 40, "tasks": 128, "episodes": 256, "difference": difference if step else None}
        for step in (0, 20, 40)
    ]  # fmt: skip
    shares = [("generate", 120.1, 0.61), ("sandbox", 0.0, 0.0), ("train", 71.0, 0.36), ("reference", 0.0, 0.0), ("publish", 1.2, 0.006)]
    return {
        **run_row(run),
        "diagnosis": {
            "verdict": "learning", "sentence": "Learning: held-out success rose by 0.150 [0.080, 0.220] over 40 steps.",
            "problems": [{"kind": "no_signal", "text": "42% of groups have no signal: the tasks are too easy", "hint": "Raise env.level."}], "missing": "",
        },
        "first_step": 1, "last_step": STEPS, "time": {"started": NOW - 220, "changed": NOW - 12, "wall_s": 208.0},
        "time_shares": [{"phase": p, "seconds": s, "share": x} for p, s, x in shares], "busy_share": 0.93,
        "infra": {"episodes": 5120, "infra_errors": 3, "unsupported": 0, "prompt_too_long": 0, "retries": 4,
                  "by_source": [{"source": "sandbox", "kind": "TimeoutError", "count": 3, "example": HOSTILE, "message": "no answer within 10 s <b>"}]},
        "evaluations": evaluations, "checkpoints": [0, 20, 40],
        "episodes": {"train": list(range(1, STEPS + 1)), "eval": [0, 20, 40], "count": 5888}, "sandbox_info": {},
        "config": {"loop.steps": {"value": 60, "source": "--loop.steps"}, "env": {"value": "math", "source": "--env"}, "rollout.group_size": {"value": 8, "source": None}},
        "steering": {"able": run == RUN, "why_not": "" if run == RUN else "the run has ended", "requests": []},
    }  # fmt: skip


def curves() -> Answer:
    source = random.Random(3)
    steps = list(range(1, STEPS + 1))

    def walk(start: float, end: float, noise: float) -> list[float]:
        return [max(0.0, start + (end - start) * i / STEPS + source.gauss(0, noise)) for i in range(STEPS)]

    def curve(key: str, label: str, unit: str, values: list[float], at: list[int] = steps, around: float = 0.0, **more: object) -> Answer:
        low = [value - around for value in values] if around else None
        high = [value + around for value in values] if around else None
        return {"key": key, "label": label, "unit": unit, "steps": at, "values": values, "low": low, "high": high,
                "n": [16] * len(at) if around else None, "n_of": "groups", "thinned": False, **more}  # fmt: skip

    held_out = curve("eval/success", "held-out success", "share", [0.51, 0.6, 0.66], [0, 20, 40], 0.08, n=[128] * 3, n_of="tasks")
    found = [
        held_out,
        curve("eval/difference", "held-out success against step 0, paired by task", "share", [0.09, 0.15], [20, 40], 0.07, n=[128] * 2, n_of="tasks"),
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
    return {"names": [*(one["key"] for one in found), "train/lr", "train/clip_share"], "curves": found}


def lanes() -> Answer:
    steps = []
    for step in range(1, STEPS + 1):
        groups = []
        for number in range(9):
            stale = int(step > 1 and number % 3 == 0)
            start = step - 1 - stale
            tokens = [[start, 200], [step - 1, 120]] if stale else [[start, 310]]
            groups.append({"group": step * 16 + number, "start": start, "oldest": start, "newest": step - 1, "staleness": stale,
                           "trained": number != 8, "wait_steps": stale, "tokens": tokens, "episodes": 8, "success": number / 8})  # fmt: skip
        steps.append({"step": step, "trained_at": step - 1, "groups": groups})
    return {"bound": 1, "steps": steps}


def time_answer() -> Answer:
    steps = list(range(1, STEPS + 1))
    columns = {"generate": [3.0 + 0.2 * math.sin(s) for s in steps], "sandbox": [0.0] * STEPS, "train": [1.8] * STEPS, "reference": [0.0] * STEPS, "publish": [0.03] * STEPS}
    return {"phases": list(columns), "steps": steps, "step_s": [5.0] * STEPS, "columns": columns, "idle_s": [0.2] * STEPS}


def row(step: int, n: int) -> Answer:
    success = (step + n) % 3 != 0
    return {
        "key": f"train-{step}-{n}", "source": "train", "step": step, "n": n, "episode_id": f"g{step:06d}-e{n:02d}", "group": step * 16 + (n - 1) // 8,
        "index": (n - 1) % 8, "task_id": f"procedural/train/0/{step * 16 + (n - 1) // 8}" + (HOSTILE_TEXT if (step, n) == (40, 1) else ""),
        "difficulty": n % 4, "outcome": "infra_error" if (step, n) == (7, 3) else "scored", "success": success, "stop": "done" if n % 5 else "turn_tokens",
        "reward": 1.0 if success else 0.12, "rewards": {"success": float(success), "format": None if n % 7 == 0 else 0.6}, "advantage": 0.61 if success else -1.22,
        "trained": n % 8 != 0, "turns": 1 + n % 2, "prompt_tokens": 34, "tokens": 20 + n, "staleness": n % 2, "oldest": step - 2, "newest": step - 1,
        "tool_calls": n % 3, "tool_errors": int(n % 9 == 0), "branches": 1, "retries": 0, "error": "TimeoutError" if (step, n) == (7, 3) else "", "seconds": 0.31 + n / 100,
    }  # fmt: skip


ROWS = [row(step, n) for step in range(STEPS, 0, -1) for n in range(1, 129)]


def episode(key: str) -> Answer:
    _, step, n = key.split("-")
    found = row(int(step), int(n))
    words = _words(key)
    prompt = ["<|im_start|>", "user", "\n", "What", " is", " 17", " +", " 25", "?", "<|im_end|>", "\n", "<|im_start|>", "assistant", "\n"]
    source = random.Random(int(n))
    texts = prompt + words
    sampled = [False] * len(prompt) + [True] * len(words)
    logprobs = [-source.expovariate(2.0) if own else None for own in sampled]
    first = len(prompt)
    turn = {"n": 1, "parent": None, "branch": 0, "first": 0, "sampled": first, "end": len(texts), "finish": "stop", "masked": False,
            "advantage": found["advantage"], "reward": None, "versions": [[38, 0, 10], [39, 10, len(words)]], "mean_logprob": -0.4}  # fmt: skip
    calls = [{"turn": 1, "name": "add", "arguments": {"a": 17, "b": 25}, "result": "42", "error": "", "seconds": 0.012},
             {"turn": 1, "name": "<i>add</i>", "arguments": "{\"a\": <b>", "result": HOSTILE_TEXT, "error": "malformed", "seconds": 0.0}]  # fmt: skip
    messages: list[Answer] = [
        {"role": "user", "content": HOSTILE_TEXT if key == HOSTILE else "What is 17 + 25?", "turn": None},
        {"role": "assistant", "content": "".join(words), "turn": 0, "calls": [0, 1] if key in (TOOLS, HOSTILE) else []},
    ]
    if key == HOSTILE:
        messages.append({"role": "user", "content": "x" * 200_000, "turn": None})
    return {
        **found, "start_version": 38, "seed": 7595, "neighbours": {"previous": None if n == "1" else f"train-{step}-{int(n) - 1}", "next": f"train-{step}-{int(n) + 1}"},
        "group_keys": [one["key"] for one in ROWS if one["group"] == found["group"]],
        "task": {"task_id": found["task_id"], "split": "train", "difficulty": 2, "prompt": [messages[0]], "answer": "42", "sandbox": None},
        "messages": messages, "turns": [turn], "branches": [{"turns": [0], "reason": ""}],
        "tokens": {
            "count": len(texts), "id": [1000 + i % 700 for i in range(len(texts))], "text": texts, "origin": [2 if own else 0 for own in sampled],
            "origins": ["prompt", "environment", "policy"], "mask": [int(own) for own in sampled], "logprob": logprobs,
            "trainer_logprob": [None if value is None else value + source.gauss(0, 0.05) for value in logprobs],
            "ratio": [None if value is None else math.exp(source.gauss(0, 0.08)) for value in logprobs],
            "advantage": [found["advantage"] if own else None for own in sampled],
            "version": [38 + (i >= first + 10) if own else None for i, own in enumerate(sampled)], "turn": [0] * len(texts),
        },
        "tool_calls": calls if key in (TOOLS, HOSTILE) else [],
        "sandbox_calls": [{"turn": 1, "status": "ok", "seconds": 0.004, "error": "", "detail": {"visible_passed": 1, "hidden_passed": 3}}] if key == TOOLS else [],
        "rewards": [{"name": "success", "value": 1.0, "weight": 1.0}, {"name": "format", "value": None, "weight": 0.2}], "turn_rewards": [],
        "timing_s": {"generate_s": 0.3, "environment_s": 0.02, "episode_s": 0.35}, "info": {"success": True, "said": HOSTILE_TEXT} if key == HOSTILE else {"success": True},
        "error": None, "agent": None,
    }  # fmt: skip


def _words(key: str) -> list[str]:
    if key == HOSTILE:
        return ["<script>", "window.attacked=1", "</script>", "\u202e", "\x1b[31m", "<img src=x onerror=window.attacked=1>", "\n", " [a](javascript:window.attacked=1)"]
    if key == LONG:
        return [f" word{i}" + ("\n" if i % 40 == 39 else "") for i in range(12_000)]
    return ["Seven", "teen", " plus", " twenty", "-", "five", ":", "\n", " 17", " +", " 25", " =", " 42", ".", "\n", "The", " answer", " is", " 42", "<|im_end|>"]


def group(step: int, number: int) -> Answer:
    rows = [one for one in ROWS if one["step"] == step and one["group"] == number]
    finals = {one["key"]: "17 + 25 = 42. The answer is 42." if one["success"] else "I think that it is 41." for one in rows}
    return {"source": "train", "step": step, "group": number, "task_id": rows[0]["task_id"], "prompt": [{"role": "user", "content": "What is 17 + 25?"}],
            "rows": rows, "finals": finals, "neighbours": {"previous": number - 1, "next": number + 1}}  # fmt: skip


def diff(a: str, b: str) -> Answer:
    parts = [["=", "17 + 25 = "], ["-", "41"], ["+", "42"], ["=", ". <script>window.attacked=1</script>"]]
    return {"a": row(40, 1), "b": row(40, 3), "same_task": True, "first_difference": {"message": 1, "token": 12},
            "messages": [{"role": "user", "at": 0, "same": True, "parts": []}, {"role": "assistant", "at": 1, "same": False, "parts": parts}], "cut": False}  # fmt: skip


def compare() -> Answer:
    side = {"run": RUN, "success": 0.51, "low": 0.43, "high": 0.59, "reward_mean": 0.5, "tasks": 128, "episodes": 256}
    won = [{"task_id": f"procedural/test/0/{i}", "a": "0/2", "b": "2/2", "a_keys": [f"eval-0-{i + 1}"], "b_keys": [f"eval-40-{i + 1}"]} for i in range(28)]
    return {
        "a": {**side, "step": 0, "name": "math-1 step 0"}, "b": {**side, "step": 40, "name": "math-1 step 40", "success": 0.66, "low": 0.58, "high": 0.74},
        "sentence": "b solves 0.150 more [0.080, 0.220], paired over 128 tasks.", "clear": True,
        "success": {"mean": 0.15, "low": 0.08, "high": 0.22, "n": 128, "better": 28, "worse": 7, "equal": 93, "p": 0.001, "smallest": 0.11},
        "reward": {"mean": 0.13, "low": 0.05, "high": 0.2, "n": 128}, "num_pairs": 256, "num_unpaired": 0, "mismatches": ["seeds: eval.seed is 1 and 2"],
        "won": won, "lost": won[:7], "config": [{"key": "loop.steps", "a": "40", "b": "80"}],
    }  # fmt: skip


def report() -> Answer:
    return {
        "id": "runs:check-math.json", "kind": "envs check", "title": "math version 2", "time": NOW, "ok": False,
        "findings": [{"kind": "gamed", "where": "candidates", "message": "succeeds in 5 of 16 tasks", "detail": HOSTILE_TEXT}],
        "header": ["probe", "episodes", "reward", "success", "finding", "what was said"],
        "rows": [["oracle", 16, 1.0, 1.0, "", "42"], ["candidates", 16, 0.3, 0.31, "gamed", HOSTILE_TEXT]], "notes": ["2 parts were left out"], "raw": {"format": 1},
    }  # fmt: skip


ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}
ENV = {
    "name": "math", "version": 2, "summary": "Arithmetic in words.", "options": [], "tools": [ADD], "max_turns": 2, "rewards": [{"name": "success", "weight": 1.0}], "sandbox": "",
    "tasks": [{"task_id": f"procedural/test/0/{i}", "split": "test", "difficulty": i % 3, "prompt": [{"role": "user", "content": f"What is {i} + 25?"}], "answer": str(i + 25), "needs_sandbox": False} for i in range(50)],
    "more": True,
}  # fmt: skip
PLAY = {
    "id": "p1", "env": "math", "task_id": "procedural/test/0/0", "messages": [{"role": "user", "content": "What is 0 + 25?"}], "turn": 0, "max_turns": 2, "tools": [ADD], "tool_calls": [],
    "done": False, "stop": None, "outcome": None, "reward": None, "rewards": [], "success": None, "info": {}, "error": None, "sandbox": "", "idle_limit_s": 600, "left_s": 580.0,
}  # fmt: skip
