"""Token by token: who produced it, at which version of the weights, and how likely it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.commands.shell import Paint
from agentgym.runs.decoder import Decode
from agentgym.types import Episode, Turn


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """One token of an episode. version, logprob: None where the policy did not sample it."""

    token_id: int
    turn: int  # the turn that it belongs to, from 1; a prompt's tokens belong to the turn they come before
    version: int | None = None
    logprob: float | None = None

    @property
    def is_sampled(self) -> bool:
        return self.version is not None


def token_origins(episode: Episode, branch: Sequence[int]) -> list[TokenOrigin]:
    """All tokens of one of the episode's branches in order, each once.

    Raises ValueError when a turn does not begin with the exact tokens of the turn before.
    """
    origins: list[TokenOrigin] = []
    for number in branch:
        turn = episode.turns[number]
        known = [origin.token_id for origin in origins]
        if list(turn.prompt_ids[: len(known)]) != known:
            raise ValueError(f"turn {number + 1} of {episode.episode_id} does not begin with the turn before it")
        origins += [TokenOrigin(token_id, number + 1) for token_id in turn.prompt_ids[len(known) :]]
        versions = [span.version for span in turn.versions for _ in range(span.start, span.end)]
        sampled = zip(turn.completion_ids, versions, turn.logprobs, strict=True)
        origins += [TokenOrigin(token_id, number + 1, version, logprob) for token_id, version, logprob in sampled]
    return origins


def coloured(origins: Sequence[TokenOrigin], decode: Decode, paint: Paint) -> str:
    """The text: dim where template or environment wrote it, green or yellow (unlikely) where the policy did."""
    parts = []
    for origin in origins:
        text = decode(origin.token_id)
        if not origin.is_sampled:
            parts.append(paint.dim(text))
        elif origin.logprob is not None and origin.logprob < math.log(0.1):
            parts.append(paint.yellow(text))
        else:
            parts.append(paint.green(text))
    legend = (
        f"{paint.dim('template and environment, masked')}  {paint.green('sampled by the policy, trained')}  "
        f"{paint.yellow('the same, at a probability below 0.1')}"
    )
    return f"{legend}\n\n{''.join(parts)}"


def token_rows(origins: Sequence[TokenOrigin], decode: Decode | None) -> list[tuple[str, ...]]:
    """position, turn, id, text, who, version, logprob: for a table."""
    return [
        (
            str(position),
            str(origin.turn),
            str(origin.token_id),
            repr(decode(origin.token_id)) if decode else "?",
            "policy" if origin.is_sampled else "context",
            str(origin.version) if origin.is_sampled else "-",
            f"{origin.logprob:.4f}" if origin.logprob is not None else "-",
        )
        for position, origin in enumerate(origins)
    ]


def version_text(turn: Turn) -> str:
    """For example `v3`, or `v3 to token 20, then v4`."""
    if len(turn.versions) == 1:
        return f"v{turn.versions[0].version}"
    parts = [f"v{span.version} to token {span.end}" for span in turn.versions[:-1]]
    return ", ".join([*parts, f"then v{turn.versions[-1].version}"]) if turn.versions else "no tokens"
