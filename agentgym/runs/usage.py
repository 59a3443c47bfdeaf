"""What an episode used of a server: its turns and tokens as the server counted them, from the episode's `info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

RECORD: Final = "policy"
"""Where an episode's `info` has what the server said besides the messages: a mapping. turns: one mapping for each turn.
again: those of attempts that broke, after which the episode was played again."""
COUNTED: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


def usage_of(info: Mapping[str, Any], *, kept: bool = False) -> dict[str, float]:
    """Sums over the answers of an episode, also over those that could not be used; empty where no server was asked.

    kept: the evaluation was resumed, and this episode is of before. paid_*: without what others have paid for.
    turns_from_cache: those not asked for since.
    """
    turns, again = turns_of(info), turns_of(info, "again")
    found: dict[str, float] = {}
    for turn in (*turns, *again):
        for name in COUNTED:
            tokens = turn[name] + turn.get("lost", {}).get(name, 0)
            found[name] = found.get(name, 0) + tokens
            found[f"paid_{name}"] = found.get(f"paid_{name}", 0) + tokens * bool(turn["paid"])
    if found:
        found["turns"] = len(turns)
        found["turns_from_cache"] = sum(kept or turn.get("from_cache", not turn["paid"]) for turn in turns)
        found["turns_estimated"] = sum(turn["estimated"] for turn in turns)
    return found


def turns_of(info: Mapping[str, Any], name: str = "turns") -> list[Mapping[str, Any]]:
    """The records of the turns that a server took; empty where none was asked."""
    record = info.get(RECORD)
    turns = record.get(name) if isinstance(record, Mapping) else None
    return turns if isinstance(turns, list) else []
