"""Why a run has nothing left to learn from, in one line with its advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from agentgym.errors import InfraError
from agentgym.rollout.agent_faults import agent_faults
from agentgym.types import Episode, Group, Outcome, Stop

_ADVICE = {
    "right": "every episode of the last {total} groups succeeded. Choose harder tasks, or another environment",
    "wrong": "no episode of the last {total} groups succeeded. Choose easier tasks, train the model on solved examples "
    "first (agentgym sft --oracle), or add a reward for partial progress",
    "mixed": "all episodes of each of the last {total} groups earned the same ({right} all right, {wrong} all wrong). "
    "Choose tasks between the two, or raise loop.group_size or rollout.temperature",
    "equal": "all episodes of each of the last {total} groups earned the same reward. Add a reward that tells them "
    "apart, or raise loop.group_size or rollout.temperature",
}

_TOKENS: Mapping[Stop | None, str] = {
    Stop.TURN_TOKENS: "rollout.max_turn_tokens",
    Stop.EPISODE_TOKENS: "rollout.max_episode_tokens",
}


def nothing_left(groups: Sequence[Group]) -> str:
    """groups: played in a row, none with signal.

    Raises InfraError where none of their episodes could be scored, the agent's program failed in all, or a limit of
    wall time cut all.
    """
    scored = [_scored(group) for group in groups]
    rewards = [episode.reward for row in scored for episode in row if episode.reward is not None]
    if not rewards:
        episodes = [episode for group in groups for episode in group.episodes]
        causes = Counter(f"{e.error.kind}: {e.error.message}" for e in episodes if e.error is not None)
        often = "; ".join(f"{count} x {cause}" for cause, count in causes.most_common(1))
        raise InfraError(f"none of {len(episodes)} episodes could be scored, so nothing can be learned. {often}")
    played = [episode for row in scored for episode in row]
    if all(episode.stop is Stop.AGENT for episode in played):
        raise InfraError(f"nothing can be learned: {agent_faults(played)}")
    cut = _cut(
        [episode.time_limit for episode in played], "(seconds of wall time): raise it, or make the engine faster"
    )
    if all(episode.time_limit for episode in played):
        raise InfraError(f"nothing can be learned: {cut}")
    kinds = Counter(_kind(row) for row in scored if row)
    kind = next(iter(kinds)) if len(kinds) == 1 else "equal" if kinds["equal"] else "mixed"
    advice = _ADVICE[kind].format(total=kinds.total(), right=kinds["right"], wrong=kinds["wrong"])
    if not cut and kind != "right":
        cut = _cut(
            [_TOKENS.get(episode.stop, "") for episode in played], "(tokens): raise it, or ask for shorter turns"
        )
    if cut:
        advice = f"{cut}. Besides, {advice}"
    return f"nothing is left to learn: {advice}. The mean reward is {sum(rewards) / len(rewards):.3f}"


def _cut(by: Sequence[str], advice: str) -> str:
    """by: the limit that cut each episode; empty is none. Empty where it was less than half of them."""
    limits = Counter(limit for limit in by if limit)
    if limits.total() * 2 < len(by):
        return ""
    [(limit, _)] = limits.most_common(1)
    return f"{limits.total()} of {len(by)} episodes were cut by {limit} {advice}"


def _scored(group: Group) -> list[Episode]:
    return [e for e in group.episodes if e.outcome is not Outcome.INFRA_ERROR and e.reward is not None]


def unanimous(group: Group) -> bool | None:
    """What the environment said of all episodes that could be scored: success or failure; None where they differ."""
    return _agreed(_scored(group))


def _kind(scored: Sequence[Episode]) -> str:
    agreed = _agreed(scored)
    return "equal" if agreed is None else "right" if agreed else "wrong"


def _agreed(scored: Sequence[Episode]) -> bool | None:
    said = [episode.known_success for episode in scored]
    return next((value for value in (True, False) if said and all(one is value for one in said)), None)
