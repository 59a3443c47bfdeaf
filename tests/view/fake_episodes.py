"""What a server of `agentgym view` would answer about episodes: one attacks the page, one is long, one calls tools."""

from __future__ import annotations

import math
import random
from typing import Any

STEPS = 40
HOSTILE = "train-40-1"
LONG = "train-40-2"
TOOLS = "train-40-3"
BRANCHED = "train-40-4"
HOSTILE_TEXT = (
    "<script>window.attacked = 'script'</script><img src=x onerror=\"window.attacked='img'\">"
    "<a href=\"javascript:window.attacked='link'\">click</a> javascript:window.attacked='text' "
    "\u202etxt.exe\u202c \x1b[31mred\x1b[0m\x07 </textarea><style>body{display:none}</style> {{7*7}} "
    "${window.attacked=1}"
)

Answer = dict[str, Any]


def row(step: int, n: int) -> Answer:
    success = (step + n) % 3 != 0
    return {
        "key": f"train-{step}-{n}",
        "source": "train",
        "step": step,
        "n": n,
        "episode_id": f"g{step:06d}-e{n:02d}",
        "group": step * 16 + (n - 1) // 8,
        "index": (n - 1) % 8,
        "task_id": f"procedural/train/0/{step * 16 + (n - 1) // 8}" + (HOSTILE_TEXT if (step, n) == (40, 1) else ""),
        "difficulty": n % 4,
        "outcome": "infra_error" if (step, n) == (7, 3) else "scored",
        "success": success,
        "stop": "done" if n % 5 else "turn_tokens",
        "reward": 1.0 if success else 0.12,
        "rewards": {"success": float(success), "format": None if n % 7 == 0 else 0.6},
        "advantage": 0.61 if success else -1.22,
        "trained": n % 8 != 0,
        "turns": 1 + n % 2,
        "prompt_tokens": 34,
        "tokens": 20 + n,
        "staleness": n % 2,
        "oldest": step - 2,
        "newest": step - 1,
        "tool_calls": n % 3,
        "tool_errors": int(n % 9 == 0),
        "branches": 1,
        "retries": 0,
        "error": "TimeoutError" if (step, n) == (7, 3) else "",
        "seconds": 0.31 + n / 100,
    }


ROWS = [row(step, n) for step in range(STEPS, 0, -1) for n in range(1, 129)]


def episode(key: str) -> Answer:
    _, step, n = key.split("-")
    found = row(int(step), int(n))
    words = _words(key)
    prompt = [
        "<|im_start|>",
        "user",
        "\n",
        "What",
        " is",
        " 17",
        " +",
        " 25",
        "?",
        "<|im_end|>",
        "\n",
        "<|im_start|>",
        "assistant",
        "\n",
    ]
    source = random.Random(int(n))
    texts = prompt + words
    sampled = [False] * len(prompt) + [True] * len(words)
    logprobs = [-source.expovariate(2.0) if own else None for own in sampled]
    first = len(prompt)
    turn = {
        "n": 1,
        "parent": None,
        "branch": 0,
        "first": 0,
        "sampled": first,
        "end": len(texts),
        "finish": "stop",
        "masked": False,
        "advantage": found["advantage"],
        "reward": None,
        "versions": [[38, 0, 10], [39, 10, len(words)]],
        "mean_logprob": -0.4,
    }
    turns, branches = [turn], [{"turns": [0], "reason": ""}]
    if key == BRANCHED:
        later = {"n": 2, "parent": 0, "branch": 1, "first": 24, "sampled": 26}
        turns = [{**turn, "end": 24}, {**turn, **later}]
        branches.append({"turns": [0, 1], "reason": "message removed"})
    calls = [
        {"turn": 1, "name": "add", "arguments": {"a": 17, "b": 25}, "result": "42", "error": "", "seconds": 0.012},
        {
            "turn": 1,
            "name": "<i>add</i>",
            "arguments": '{"a": <b>',
            "result": HOSTILE_TEXT,
            "error": "malformed",
            "seconds": 0.0,
        },
    ]
    messages: list[Answer] = [
        {"role": "user", "content": HOSTILE_TEXT if key == HOSTILE else "What is 17 + 25?", "turn": None},
        {"role": "assistant", "content": "".join(words), "turn": 0, "calls": [0, 1] if key in (TOOLS, HOSTILE) else []},
    ]
    if key == HOSTILE:
        messages.append({"role": "user", "content": "x" * 200_000, "turn": None})
    return {
        **found,
        "start_version": 38,
        "seed": 7595,
        "neighbours": {
            "previous": None if n == "1" else f"train-{step}-{int(n) - 1}",
            "next": f"train-{step}-{int(n) + 1}",
        },
        "group_keys": [one["key"] for one in ROWS if one["group"] == found["group"]],
        "task": {
            "task_id": found["task_id"],
            "split": "train",
            "difficulty": 2,
            "prompt": [messages[0]],
            "answer": "42",
            "sandbox": None,
        },
        "messages": messages,
        "turns": turns,
        "branches": branches,
        "tokens": {
            "count": len(texts),
            "id": [1000 + i % 700 for i in range(len(texts))],
            "text": texts,
            "origin": [2 if own else 0 for own in sampled],
            "origins": ["prompt", "environment", "policy"],
            "mask": [int(own) for own in sampled],
            "logprob": logprobs,
            "trainer_logprob": [None if value is None else value + source.gauss(0, 0.05) for value in logprobs],
            "ratio": [None if value is None else math.exp(source.gauss(0, 0.08)) for value in logprobs],
            "advantage": [found["advantage"] if own else None for own in sampled],
            "version": [38 + (i >= first + 10) if own else None for i, own in enumerate(sampled)],
            "turn": [0] * len(texts),
        },
        "tool_calls": calls if key in (TOOLS, HOSTILE) else [],
        "sandbox_calls": [
            {
                "turn": 1,
                "status": "ok",
                "seconds": 0.004,
                "error": "",
                "detail": {"visible_passed": 1, "hidden_passed": 3},
            }
        ]
        if key == TOOLS
        else [],
        "rewards": [{"name": "success", "value": 1.0, "weight": 1.0}, {"name": "format", "value": None, "weight": 0.2}],
        "turn_rewards": [],
        "timing_s": {"generate_s": 0.3, "environment_s": 0.02, "episode_s": 0.35},
        "info": {"success": True, "said": HOSTILE_TEXT} if key == HOSTILE else {"success": True},
        "error": None,
        "agent": None,
    }


def _words(key: str) -> list[str]:
    if key == HOSTILE:
        return [
            "<script>",
            "window.attacked=1",
            "</script>",
            "\u202e",
            "\x1b[31m",
            "<img src=x onerror=window.attacked=1>",
            "\n",
            " [a](javascript:window.attacked=1)",
        ]
    if key == LONG:
        return [f" word{i}" + ("\n" if i % 40 == 39 else "") for i in range(12_000)]
    return [
        "Seven",
        "teen",
        " plus",
        " twenty",
        "-",
        "five",
        ":",
        "\n",
        " 17",
        " +",
        " 25",
        " =",
        " 42",
        ".",
        "\n",
        "The",
        " answer",
        " is",
        " 42",
        "<|im_end|>",
    ]


def group(step: int, number: int) -> Answer:
    rows = [one for one in ROWS if one["step"] == step and one["group"] == number]
    finals = {
        one["key"]: "17 + 25 = 42. The answer is 42." if one["success"] else "I think that it is 41." for one in rows
    }
    return {
        "source": "train",
        "step": step,
        "group": number,
        "task_id": rows[0]["task_id"],
        "prompt": [{"role": "user", "content": "What is 17 + 25?"}],
        "rows": rows,
        "finals": finals,
        "neighbours": {"previous": number - 1, "next": number + 1},
    }


def diff(a: str, b: str) -> Answer:
    parts = [["=", "17 + 25 = "], ["-", "41"], ["+", "42"], ["=", ". <script>window.attacked=1</script>"]]
    return {
        "a": row(40, 1),
        "b": row(40, 3),
        "same_task": True,
        "first_difference": {"message": 1, "token": 12},
        "messages": [
            {"role": "user", "at": 0, "same": True, "parts": []},
            {"role": "assistant", "at": 1, "same": False, "parts": parts},
        ],
        "cut": False,
    }
