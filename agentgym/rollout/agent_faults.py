"""What went wrong with agents' programs in many episodes, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentgym.types import Episode, Stop

MAX_CHARS = 500


def agent_faults(episodes: Sequence[Episode]) -> str:
    """How many episodes the program failed in, and what it did most often; empty where it failed in none."""
    failed = [episode for episode in episodes if episode.stop is Stop.AGENT]
    if not failed:
        return ""
    [(often, count)] = Counter(map(_fault, failed)).most_common(1)
    return f"the agent's program failed in {len(failed)} of {len(episodes)} episodes; {count} x {often[:MAX_CHARS]}"


def never_asked(episode: Episode) -> bool:
    """Whether the program failed before it asked the policy for anything: that is no policy's doing."""
    return episode.stop is Stop.AGENT and not episode.turns


def _fault(episode: Episode) -> str:
    notes = episode.info.get("agent")
    failure = notes.get("failure") if isinstance(notes, dict) else None
    if not isinstance(failure, dict):
        return "without a reason"
    return f"{failure.get('kind')}: {str(failure.get('message')).strip()[-MAX_CHARS:]}"
