"""Observations and actions in words: what the toy environments need to be played by reading."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from agentgym.types import Json

Success: TypeAlias = Literal["reward", "terminated"]
_HIGHLIGHTED: Final = re.compile(r"\x1b\[4[0-9]m(.*?)\x1b\[0m", re.DOTALL)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How one environment is put in words.

    actions: a name for each. success: whether the last step's reward, or just the end, means that the goal was
    reached. kwargs: its settings unless others are given. map_size: of the map drawn for each task; 0 draws none.
    describe: an observation in words, from the environment and the observation; its drawing otherwise.
    """

    task: str
    actions: tuple[str, ...] = ()
    success: Success = "reward"
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    map_size: int = 0
    describe: Callable[[Any, Any], str] | None = None


def drawing(env: Any, observation: Any) -> str:
    """What the environment draws as text, with the highlighted place in brackets, or else the observation itself."""
    drawn = env.render() if env.render_mode == "ansi" else None
    if not isinstance(drawn, str):
        return str(observation)
    text = _COLOUR.sub("", _HIGHLIGHTED.sub(r"[\1]", drawn))
    lines = [line for line in text.splitlines() if line.strip() and not re.fullmatch(r"\s*\(\w+\)\s*", line)]
    return "\n".join(line.rstrip() for line in lines)


def find_action(text: str, actions: Sequence[str]) -> int | None:
    """The action that is named last, by a whole word or by its number; None where none is."""
    names = {name.lower(): number for number, name in enumerate(actions)}
    words = re.findall(r"[^\W_]+(?:[-_ ][^\W_]+)*|[0-9]+", text.lower())
    singles = [part for word in words for part in ([word] if word in names else word.split())]
    for word in reversed(singles):
        if word in names:
            return names[word]
    numbers = [int(word) for word in singles if re.fullmatch("[0-9]{1,6}", word)]
    return numbers[-1] if numbers and numbers[-1] < len(actions) else None


def _taxi(env: Any, observation: Any) -> str:
    row, column, passenger, destination = env.unwrapped.decode(int(observation))
    places = ("R (row 0, column 0)", "G (row 0, column 4)", "Y (row 4, column 0)", "B (row 4, column 3)")
    where = "in the taxi" if passenger == 4 else f"at {places[passenger]}"
    plain = _COLOUR.sub("", env.render()) if env.render_mode == "ansi" else ""
    lines = [line for line in plain.splitlines() if line.startswith(("+", "|"))]
    person = f"The passenger is {where} and wants to go to {places[destination]}."
    return "\n".join([*lines, f"The taxi is in row {row}, column {column}. {person}"])


def _cliff(env: Any, observation: Any) -> str:
    return f"You are in row {int(observation) // 12}, column {int(observation) % 12}."


def _blackjack(env: Any, observation: Any) -> str:
    mine, dealers, ace = observation
    return f"Your sum is {mine}{' with a usable ace' if ace else ''}. The dealer shows {dealers}."


WORDINGS: Final[Mapping[str, Wording]] = {
    "FrozenLake": Wording(
        task="Walk over a frozen lake from S to G. F is safe ice; whoever steps on a hole H has lost. You are at the "
        "place in brackets.",
        actions=("left", "down", "right", "up"),
        kwargs={"is_slippery": False},
        map_size=4,
    ),
    "Taxi": Wording(
        task="Drive the taxi to the passenger, pick the passenger up, drive to the destination and drop the passenger "
        "off. A wall | cannot be passed; a : can.",
        actions=("south", "north", "east", "west", "pickup", "dropoff"),
        describe=_taxi,
    ),
    "CliffWalking": Wording(
        task="A grid has 4 rows and 12 columns. Walk from row 3, column 0 to row 3, column 11. The places between them "
        "in row 3 are a cliff, from which you fall back to the start.",
        actions=("up", "right", "down", "left"),
        success="terminated",
        describe=_cliff,
    ),
    "Blackjack": Wording(
        task="Play blackjack: come nearer to 21 than the dealer without going over it.",
        actions=("stick", "hit"),
        describe=_blackjack,
    ),
}
"""By the name without its version."""
