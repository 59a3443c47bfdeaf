"""One episode for the page: its conversation, its calls, and its tokens in columns with their provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym.rollout.compaction import summary_turns
from agentgym.runs.records import unpack
from agentgym.tables.episode_search import group_of, row
from agentgym.tables.episode_table import Table

MAX_TEXT = 200_000  # characters of one message
NO_TOKENIZER = "no tokenizer is known of this run"
ORIGINS = ("prompt", "environment", "policy")
Texts = Callable[[Sequence[int]], "list[str] | None"]


def episode_json(
    table: Table, key: str, *, weights: Mapping[str, float], texts: Texts | None, text_missing: str = NO_TOKENIZER
) -> dict[str, Any]:
    """`/api/runs/{run}/episodes/{key}`. weights: of the rewards. texts: of token ids. Raises Problem."""
    number, record = table.read(key)
    shown, episode = row(table, number), record["episode"]
    task, calls = episode["task"], episode.get("tool_calls") or []
    return {
        **shown,
        "start_version": record["start_version"],
        "seed": str(episode.get("seed")),  # beyond what JavaScript's numbers hold
        "neighbours": _neighbours(table, number),
        "group_keys": [table.key(one) for one in group_of(table, shown["source"], shown["step"], shown["group"])],
        "task": {**task, "prompt": unpack(task["prompt"]), "answer": unpack(task.get("answer"))},
        "messages": _messages(episode),
        "usage": _usage(table, shown),
        "turns": (turns := _turns(record)),
        "branches": _branches(episode),
        "tokens": _tokens(record, turns, texts, text_missing),
        "tool_calls": [{**call, "arguments": unpack(call.get("arguments"))} for call in calls],
        "sandbox_calls": _sandbox_calls(episode),
        "rewards": [
            {"name": name, "value": value, "weight": weights.get(name)}
            for name, value in (episode.get("rewards") or {}).items()
        ],
        "reward": episode.get("reward"),
        "turn_rewards": episode.get("turn_rewards") or [],
        "timing_s": episode.get("timing_s") or {},
        "error": episode.get("error"),
        "info": (info := unpack(episode.get("info") or {})),
        "agent": info.get("agent") if isinstance(info, Mapping) else None,
    }


def _usage(table: Table, shown: Mapping[str, Any]) -> dict[str, Any] | None:
    """Turns, tokens and cost of a policy behind a server; None for any other. asked: of all prompts."""
    if shown["asked_tokens"] is None:
        return None
    return {
        "turns": shown["turns"],
        "asked": shown["asked_tokens"],
        "cached": shown["cached_tokens"],
        "answered": shown["tokens"],
        "estimated": shown["estimated"],
        "cost": shown["cost"],
        "currency": table.prices.currency if table.prices else "",
    }


def _neighbours(table: Table, number: int) -> dict[str, str | None]:
    return {
        "previous": table.key(number - 1) if number else None,
        "next": table.key(number + 1) if number + 1 < len(table) else None,
    }


def _messages(episode: Mapping[str, Any]) -> list[dict[str, Any]]:
    """turn: of the policy's own messages; trace: of a tool's answer, the call that it answers.

    The conversation is that of the branch with the last turn, whose turns are its last messages of the policy: an
    agent may have put others before them.
    """
    messages: Any = unpack(episode.get("messages") or [])
    prompt: Any = unpack(episode["task"]["prompt"])
    said = [at for at, one in enumerate(messages) if at >= len(prompt) and one.get("role") == "assistant"]
    branches: list[list[int]] = [one["turns"] for one in _branches(episode) if one["turns"]]
    last = max(branches, key=lambda turns: turns[-1], default=[])
    summaries = summary_turns(unpack(episode.get("info") or {}))
    turn_of = dict(zip(reversed(said), reversed([one for one in last if one not in summaries]), strict=False))
    calls, trace = episode.get("tool_calls") or [], 0
    shown = []
    for place, message in enumerate(messages):
        one: dict[str, Any] = {**message, "turn": turn_of.get(place)}
        content = one.get("content")
        if isinstance(content, str) and len(content) > MAX_TEXT:
            one |= {"content": content[:MAX_TEXT], "cut": len(content) - MAX_TEXT}
        if one["turn"] is not None:
            one["calls"] = [at for at, call in enumerate(calls) if call.get("turn") == one["turn"] + 1]
        elif place >= len(prompt) and one.get("role") == "tool" and trace < len(calls):
            one["trace"], trace = trace, trace + 1
        shown.append(one)
    return shown


def _turns(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each with the turn before it, and the range of token columns that it adds to that one's."""
    episode = record["episode"]
    turns, shared = episode["turns"], record.get("advantage") if record.get("trained") else None
    advantages, rewards = episode.get("turn_advantages") or [], episode.get("turn_rewards") or []
    branch_of = {turn: number for number, one in reversed([*enumerate(_branches(episode))]) for turn in one["turns"]}
    parents = _parents(episode)
    shown: list[dict[str, Any]] = []
    first = 0
    for number, turn in enumerate(turns):
        parent = parents[number]
        known = [] if parent is None else [*turns[parent]["prompt_ids"], *turns[parent]["completion_ids"]]
        if turn["prompt_ids"][: len(known)] != known:  # it begins with other tokens: all of it is shown
            parent, known = None, []
        added, count = len(turn["prompt_ids"]) - len(known), len(turn["completion_ids"])
        finite = [value for value in turn["logprobs"] if isinstance(value, (int, float)) and math.isfinite(value)]
        shown.append(
            {
                "n": number + 1,
                "parent": parent,
                "branch": branch_of.get(number, 0),
                "first": first,
                "sampled": first + added,
                "end": first + added + count,
                "finish": turn.get("finish_reason"),
                "masked": bool(turn.get("masked")),
                "advantage": advantages[number] if number < len(advantages) else shared,
                "reward": rewards[number] if number < len(rewards) else None,
                "versions": turn["versions"],
                "mean_logprob": sum(finite) / len(finite) if finite else None,
            }
        )
        first += added + count
    return shown


def _branches(episode: Mapping[str, Any]) -> list[dict[str, Any]]:
    branches = episode.get("branches") or [list(range(len(episode["turns"])))]
    reasons = ["", *(episode.get("branch_reasons") or [])]
    return [
        {"turns": list(turns), "reason": reasons[number] if number < len(reasons) else ""}
        for number, turns in enumerate(branches)
    ]


def _parents(episode: Mapping[str, Any]) -> list[int | None]:
    parents: list[int | None] = [None] * len(episode["turns"])
    for branch in _branches(episode):
        for before, turn in zip(branch["turns"], branch["turns"][1:], strict=False):
            parents[turn] = before
    return parents


def _tokens(
    record: Mapping[str, Any], shown: Sequence[Mapping[str, Any]], texts: Texts | None, text_missing: str
) -> dict[str, Any]:
    turns, trained = record["episode"]["turns"], bool(record.get("trained"))
    saved = record.get("trainer_logprobs") or []
    has_trainer = len(saved) == len(turns) and bool(turns)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("id", "origin", "mask", "logprob", "trainer_logprob", "advantage", "version", "turn")
    }
    for number, (turn, place) in enumerate(zip(turns, shown, strict=True)):
        added, count = place["sampled"] - place["first"], len(turn["completion_ids"])
        counted = trained and not place["masked"] and place["advantage"] is not None
        of_trainer = saved[number] if has_trainer and len(saved[number]) == count else [None] * count
        columns["id"] += [*turn["prompt_ids"][len(turn["prompt_ids"]) - added :], *turn["completion_ids"]]
        columns["origin"] += [0 if place["parent"] is None else 1] * added + [2] * count
        columns["mask"] += [0] * added + [int(counted)] * count
        columns["logprob"] += [None] * added + turn["logprobs"]
        columns["trainer_logprob"] += [None] * added + list(of_trainer)
        columns["advantage"] += [None] * added + [place["advantage"] if counted else None] * count
        columns["version"] += [None] * added + [v for v, start, end in turn["versions"] for _ in range(start, end)]
        columns["turn"] += [number] * (added + count)
    ratio = [
        None if new is None or old is None else math.exp(min(50.0, new - old))
        for new, old in zip(columns["trainer_logprob"], columns["logprob"], strict=True)
    ]
    missing = "" if has_trainer else "the run did not record the trainer's log-probabilities (logging.trainer_logprobs)"
    found = texts(columns["id"]) if texts is not None else None
    return {
        "count": len(columns["id"]),
        **columns,
        "text": found,
        "text_missing": text_missing if found is None else "",
        "origins": ORIGINS,
        "trainer_logprob": columns["trainer_logprob"] if has_trainer else None,
        "ratio": ratio if has_trainer else None,
        "ratio_missing": missing,
    }


def _sandbox_calls(episode: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The verdicts that environments with a sandbox record, one a turn."""
    verdicts = unpack((episode.get("info") or {}).get("verdicts"))
    if not isinstance(verdicts, list):
        return []
    return [
        {
            "turn": number,
            "status": one.get("status"),
            "seconds": one.get("wall_s"),
            "error": one.get("error") or "",
            "detail": {key: value for key, value in one.items() if key not in ("status", "wall_s", "error")},
        }
        for number, one in enumerate(verdicts, start=1)
        if isinstance(one, Mapping)
    ]
