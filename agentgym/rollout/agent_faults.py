"""What went wrong with agents' programs in many episodes, and what they asked for and did not get, in one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agentgym.types import Episode, Stop

MAX_CHARS = 500
_DROPPED = "dropped "
DROPPED = "rollout/dropped_"  # begins the metric of each field


def agent_faults(episodes: Sequence[Episode]) -> str:
    """How many episodes the program failed in, and what it did most often; empty where it failed in none."""
    failed = [episode for episode in episodes if episode.stop is Stop.AGENT]
    if not failed:
        return ""
    [(often, count)] = Counter(map(_fault, failed)).most_common(1)
    return f"the agent's program failed in {len(failed)} of {len(episodes)} episodes; {count} x {often[:MAX_CHARS]}"


def dropped_fields(episodes: Iterable[Episode]) -> Counter[str]:
    """What was dropped of the programs' requests, by name, and how often."""
    found: Counter[str] = Counter()
    for episode in episodes:
        notes = episode.info.get("agent")
        counts = notes.get("not_honoured") if isinstance(notes, dict) else None
        for name, count in counts.items() if isinstance(counts, dict) else ():
            if name.startswith(_DROPPED) and isinstance(count, int):
                found[name.removeprefix(_DROPPED)] += count
    return found


def dropped_line(fields: Mapping[str, float]) -> str:
    """What `dropped_fields` found, for a person; empty where nothing was dropped."""
    shown = ", ".join(f"{count:g} x {name}" for name, count in sorted(fields.items()))
    return f"dropped of what the agent's program asked for, unseen by it: {shown}" if fields else ""


def never_asked(episode: Episode) -> bool:
    """Whether the program failed before it asked the policy for anything: that is no policy's doing."""
    return episode.stop is Stop.AGENT and not episode.turns


def _fault(episode: Episode) -> str:
    notes = episode.info.get("agent")
    failure = notes.get("failure") if isinstance(notes, dict) else None
    if not isinstance(failure, dict):
        return "without a reason"
    return f"{failure.get('kind')}: {str(failure.get('message')).strip()[-MAX_CHARS:]}"
