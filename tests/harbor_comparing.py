"""Our reading of task.toml and reward files in the shape in which harbor_reference.py answers."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from harbor_samples import reward_file, task_toml

from agentgym_envs.harbor.rewards import NoReward, read_rewards
from agentgym_envs.harbor.task_config import parse_task


def question(kind: str, seed: int) -> dict[str, Any]:
    if kind == "toml":
        return {"toml": task_toml(seed)}
    name, data = reward_file(seed)
    return {"file": name, "data": data.hex()}


def disagreement(asked: dict[str, Any], answer: dict[str, Any]) -> str:
    """What we read otherwise than Harbor does; refusing what it accepts is no disagreement, if a name is given."""
    try:
        if "toml" in asked:
            ours: Any = _plain(parse_task(asked["toml"]))
        else:
            ours = read_rewards(asked["file"], bytes.fromhex(asked["data"]))
    except (NoReward, ValueError) as error:
        return "" if str(error).split()[0].isprintable() else "a refusal without a name"
    if "refused" in answer:
        return f"accepted, and Harbor says {answer['refused']}"
    theirs = answer["value"]
    return "" if _cut(ours, theirs) == theirs else f"{_cut(ours, theirs)} is not {theirs}"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _cut(ours: Any, theirs: Any, key: str = "") -> Any:
    """What is ours alone is left out, and hosts have no order."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return {name: _cut(ours.get(name, "missing"), one, name) for name, one in theirs.items()}
    if isinstance(theirs, list) and isinstance(ours, list):
        if key == "network":
            return sorted(ours)
        pairs = [_cut(one, other) for one, other in zip(ours, theirs, strict=False)]
        return [*pairs, *ours[len(theirs) :]]
    return ours
