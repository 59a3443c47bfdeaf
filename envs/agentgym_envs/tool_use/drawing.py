"""Makes tasks from a seed: a structure, then names, numbers and worlds in which it can be done."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from agentgym.tools import ToolError
from agentgym.types import Split
from agentgym_envs.tool_use.plans import Plan, Shape
from agentgym_envs.tool_use.requests import request, worlds_of
from agentgym_envs.tool_use.shapes import LEVELS, Level, draw_shape
from agentgym_envs.tool_use.worlds import BUSY, FACTS, TOOLS, WORLD_OF, WORLDS, World, snapshot

_FRUITLESS_DRAWS = 300  # in a row; after that a small level has no new task left
_TRIES = 8  # of names, numbers and worlds for one structure


class Question:
    """A task before it is one: the plan, its words, its level."""

    __slots__ = ("level", "plan", "text")

    def __init__(self, plan: Plan, text: str, level: int) -> None:
        self.plan, self.text, self.level = plan, text, level


def questions(
    split: Split, seed: int | str, levels: Sequence[int], worlds: Sequence[str], limit: int | None = None
) -> Iterator[Question]:
    """The same on every machine. Test has no text twice; limit: how many, None is endless."""
    seen: set[str] = set()
    made = index = fruitless = 0
    while (limit is None or made < limit) and fruitless < _FRUITLESS_DRAWS:
        drawn = draw(split, f"{seed}/{split}/{index}", levels, worlds)
        index += 1
        if split == "test":
            if drawn.text in seen:
                fruitless += 1
                continue
            seen.add(drawn.text)
        fruitless = 0
        made += 1
        yield drawn


def draw(split: Split, name: str, levels: Sequence[int], worlds: Sequence[str]) -> Question:
    """The task that follows from a name."""
    rng = random.Random(int.from_bytes(hashlib.sha256(name.encode()).digest(), "big"))
    level = rng.choice(list(levels))
    while True:
        shape = draw_shape(level, worlds, rng)
        if shape.split != split:
            continue
        for _ in range(_TRIES):
            plan = _filled(shape, LEVELS[level], rng)
            text = request(plan, rng)
            if _is_sound(plan, text):
                return Question(plan, text, level)


def new_worlds(plan: Plan) -> dict[str, World]:
    """The worlds that a plan is about, as they are before anything is done."""
    return {name: WORLDS[name](f"{plan.secret}/{name}", plan.busy) for name in worlds_of(plan)}


def outcome(plan: Plan) -> tuple[dict[str, object], tuple[int, ...]]:
    """What the worlds are when the plan is done, and the figures to reply with.

    Where no tool can do it: unchanged worlds and no figures. Raises ToolError for a plan that cannot be done.
    """
    worlds = new_worlds(plan)
    if plan.shape.kind == "none":
        return snapshots(worlds), ()
    playing = plan.play()
    answered: str | None = None
    while True:
        try:
            tool, arguments = playing.send(answered) if answered is not None else next(playing)
        except StopIteration as ended:
            return snapshots(worlds), ended.value
        method = getattr(worlds[WORLD_OF[tool]], tool)
        try:
            answered = method(**arguments)
        except ToolError as error:
            if BUSY not in str(error):
                raise
            answered = str(error)


def snapshots(worlds: Mapping[str, World]) -> dict[str, object]:
    return {name: snapshot(world) for name, world in worlds.items()}


def _filled(shape: Shape, level: Level, rng: random.Random) -> Plan:
    names = {world: rng.sample(kind.things, len(kind.things)) for world, kind in WORLDS.items()}
    numbers, days = rng.sample(range(2, 40), 12), rng.sample(range(10, 29), 8)
    values: list[tuple[int | str | None, ...]] = []
    for step in shape.steps:
        drawn: list[int | str | None] = []
        for source, kind in zip(step.sources, TOOLS[step.tool].takes.values(), strict=True):
            if source.kind not in ("given", "asked"):
                drawn.append(None)
            elif kind == "name":
                drawn.append(names[WORLD_OF[step.tool]].pop())
            else:
                drawn.append((days if kind == "day" else numbers).pop())
        values.append(tuple(drawn))
    needed = [step.tool for step in shape.steps]
    return Plan(
        shape=shape,
        values=tuple(values),
        secret=f"{rng.getrandbits(64):016x}",
        offered=_offered(shape, needed, level, rng),
        busy=(rng.choice(needed),) if level.busy and rng.random() < 0.5 else (),
        limit=rng.randint(30, 80) if shape.guard else 0,
    )


def _offered(shape: Shape, needed: Sequence[str], level: Level, rng: random.Random) -> tuple[str, ...]:
    """What is needed, the traps beside it, and other tools of its worlds, in any order.

    Where no tool can do it, the last one that would be needed is missing.
    """
    kept = list(dict.fromkeys(needed))
    last = kept[-1]
    missing = last if shape.kind == "none" else ""
    possible = [
        facts
        for world in sorted({WORLD_OF[tool] for tool in kept})
        for facts in FACTS[world].values()
        if facts.name not in (*kept, missing) and (level.broken or facts.role != "broken")
    ]
    kept = [tool for tool in kept if tool != missing]
    size = max(len(kept) + 1, rng.randint(*level.offered))
    traps = [facts.name for facts in possible if facts.twin == last and facts.role != "broken"]
    twins = [facts.name for facts in possible if facts.twin in needed and facts.name not in traps]
    others = [facts.name for facts in possible if facts.name not in (*traps, *twins)]
    rng.shuffle(twins)
    rng.shuffle(others)
    mixed = twins + others if level.broken else _shuffled(twins + others, rng)
    offered = [*kept, *traps, *mixed][: max(size, len(kept) + len(traps))]
    rng.shuffle(offered)
    return tuple(offered)


def _shuffled(names: list[str], rng: random.Random) -> list[str]:
    return rng.sample(names, len(names))


def _is_sound(plan: Plan, text: str) -> bool:
    """It can be done, and no figure of the reply can be read off the request or the user's answer.

    What is made on a condition can be done whether it holds or not: else to try it anyway would cost nothing.
    """
    try:
        outcome(replace(plan, limit=0))
        _, figures = outcome(plan)
    except ToolError:
        return False
    said = {int(word) for word in "".join(c if c.isdigit() else " " for c in f"{text} {plan.answer}").split()}
    return len(set(figures)) == len(figures) and not said & set(figures)
