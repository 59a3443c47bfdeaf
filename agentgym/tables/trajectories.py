"""Saved episodes as trajectories in ATIF, the Agent Trajectory Interchange Format of Harbor, token for token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentgym.rollout.compaction import NOTE, summary_turns
from agentgym.runs.records import SavedEpisode
from agentgym.types import Episode, Turn

VERSION = "ATIF-v1.8"


def to_atif(saved: SavedEpisode, *, agent: str, model: str, version: str) -> dict[str, Any]:
    """One trajectory as JSON, which `harbor.models.trajectories.Trajectory` accepts.

    agent, model: what played the episode; version: of this library. Each message is a step, and a tool's answer an
    observation of the step that called it. A step that was sampled has its turn's token ids and log-probabilities as
    metrics, with the weights' versions in `extra`. The messages of other branches, and summaries,
    are not in the conversation: the metrics of their turns are `other_turns` in the trajectory's `extra`.
    """
    episode = saved.episode
    counts = {
        "total_prompt_tokens": sum(len(turn.prompt_ids) for turn in episode.turns),
        "total_completion_tokens": episode.num_sampled_tokens,
    }
    steps = _steps(episode)
    return {
        "schema_version": VERSION,
        "session_id": episode.episode_id,
        "trajectory_id": f"{episode.episode_id}-{saved.step}",
        "agent": {"name": agent, "version": version, "model_name": model},
        "steps": steps,
        "final_metrics": {**(counts if episode.turns else {}), "total_steps": len(steps)},
        "extra": _about(saved),
    }


def _about(saved: SavedEpisode) -> dict[str, Any]:
    """What ATIF has no field for."""
    episode = saved.episode
    in_steps = set(_spoken(episode))
    return {
        "task_id": episode.task.task_id,
        "training_step": saved.step,
        "group": saved.group_id,
        "seed": str(episode.seed),
        "outcome": episode.outcome,
        "success": episode.known_success,
        "stop": episode.stop,
        "reward": episode.reward,
        "rewards": episode.rewards,
        "advantage": saved.advantage,
        "trained": saved.trained,
        "error": None if episode.error is None else str(episode.error),
        "branches": [list(branch) for branch in episode.branches],
        "branch_reasons": episode.branch_reasons,
        "compactions": episode.info.get(NOTE, []),
        "other_turns": {
            str(number): _metrics(turn) for number, turn in enumerate(episode.turns) if number not in in_steps
        },
    }


def _steps(episode: Episode) -> list[dict[str, Any]]:
    turn_of = _turns_by_message(episode)
    steps: list[dict[str, Any]] = []
    for place, message in enumerate(episode.messages):
        role, content = message["role"], message["content"] or ""
        if role == "tool" and steps and steps[-1]["source"] == "agent":
            known = [call["tool_call_id"] for call in steps[-1].get("tool_calls", ())]
            result = {"content": content}
            if (call_id := message.get("tool_call_id")) in known:
                result["source_call_id"] = str(call_id)
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
            continue
        source = {"assistant": "agent", "system": "system"}.get(role, "user")
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": source, "message": content}
        if calls := message.get("tool_calls"):
            step["tool_calls"] = [_call(call, f"call-{place}-{n}") for n, call in enumerate(calls)]
        if (turn := turn_of.get(place)) is not None:
            step |= {"metrics": _metrics(episode.turns[turn]), "llm_call_count": 1, "extra": {"turn": turn}}
        steps.append(step)
    return steps or [{"step_id": 1, "source": "system", "message": str(episode.error or "nothing was said")}]


def _turns_by_message(episode: Episode) -> dict[int, int]:
    """The turns of the last branch by the places of their messages, which are the policy's last ones."""
    first = len(episode.task.prompt)
    said = [n for n, one in enumerate(episode.messages) if n >= first and one["role"] == "assistant"]
    return dict(zip(reversed(said), reversed(_spoken(episode)), strict=False))


def _spoken(episode: Episode) -> list[int]:
    """The turns of the last branch that are messages of the conversation."""
    summaries = summary_turns(episode.info)
    return [turn for turn in episode.last_branch if turn not in summaries]


def _call(call: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    function = call.get("function", {})
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = {"text": given}
    arguments = given if isinstance(given, Mapping) else {} if given is None else {"value": given}
    return {
        "tool_call_id": str(call.get("id") or call_id),
        "function_name": str(function.get("name", "")),
        "arguments": dict(arguments),
    }


def _metrics(turn: Turn) -> dict[str, Any]:
    versions = [(span.version, span.start, span.end) for span in turn.versions]
    return {
        "prompt_tokens": len(turn.prompt_ids),
        "completion_tokens": len(turn.completion_ids),
        "prompt_token_ids": list(turn.prompt_ids),
        "completion_token_ids": list(turn.completion_ids),
        "logprobs": list(turn.logprobs),
        "extra": {"versions": versions, "finish_reason": turn.finish_reason, "masked": turn.masked},
    }
