"""Draws the structure of a task: what each level asks for."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from agentgym_envs.tool_use.plans import ASKED, GIVEN, Figure, Kind, Shape, Source, Step
from agentgym_envs.tool_use.worlds import FACTS, WORLD_OF, ToolFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """calls: how many a task needs, at least and at most. worlds: how many it is about, at most.

    kinds: the share of each. offered: how many tools the agent sees, at least and at most. turns: the agent's.
    broken, busy: whether there are tools that always fail, and tools that fail once.
    """

    calls: tuple[int, int]
    worlds: int
    kinds: dict[Kind, float]
    offered: tuple[int, int]
    turns: int
    broken: bool = False
    busy: bool = False


_LONG: Final[dict[Kind, float]] = {"read": 1, "act": 4, "then_read": 1, "if": 2, "ask": 1, "none": 1}
LEVELS: Final[dict[int, Level]] = {
    1: Level(calls=(1, 1), worlds=1, kinds={"read": 1, "act": 1}, offered=(2, 3), turns=3),
    2: Level(
        calls=(1, 2),
        worlds=1,
        kinds={"read": 2, "act": 3, "then_read": 1, "if": 2, "ask": 1, "none": 1},
        offered=(3, 4),
        turns=5,
    ),
    3: Level(calls=(3, 3), worlds=2, kinds=_LONG, offered=(5, 6), turns=7, broken=True),
    4: Level(calls=(4, 5), worlds=3, kinds=_LONG, offered=(8, 10), turns=10, broken=True, busy=True),
    5: Level(
        calls=(6, 8),
        worlds=5,
        kinds={"act": 2, "then_read": 1, "if": 4, "ask": 4, "none": 1},
        offered=(14, 18),
        turns=16,
        broken=True,
        busy=True,
    ),
}


def draw_shape(level: int, worlds: Sequence[str], rng: random.Random) -> Shape:
    """A structure of this level over at most as many of these worlds as the level has."""
    rules = LEVELS[level]
    kind = rng.choices(list(rules.kinds), list(rules.kinds.values()))[0]
    while True:
        chosen = rng.sample(list(worlds), min(rules.worlds, len(worlds)))
        building = _Building(rng=rng, worlds=chosen)
        with contextlib.suppress(_NoToolLeft):  # few worlds have few actions
            if level == 1:
                return building.one_call(kind)
            if level == 2:
                return building.two_calls(kind)
            return building.many_calls(kind, rng.randint(*rules.calls))


class _NoToolLeft(Exception):
    """Every action of these worlds is in the plan already."""


@dataclass(slots=True, kw_only=True)
class _Building:
    rng: random.Random
    worlds: Sequence[str]
    steps: list[Step] = field(default_factory=list)
    replies: list[Figure] = field(default_factory=list)

    def one_call(self, kind: Kind) -> Shape:
        number = self.read() if kind == "read" else self.act(GIVEN)
        return self.shape(kind, self.some_of(number))

    def two_calls(self, kind: Kind) -> Shape:
        guard: Figure | None = None
        match kind:
            case "read":
                reply = [self.one_of(self.read()), self.one_of(self.read())]
            case "act":
                reply = self.some_of(self.act_on_figure())
            case "then_read":
                reply = [self.then_read()]
                if self.rng.random() < 0.7:
                    reply.insert(self.rng.randrange(2), self.one_of(0))
            case "if":
                guard = self.one_of(self.read())
                reply = [self.one_of(self.act(GIVEN))]
            case "ask":
                reply = self.some_of(self.act_asking())
            case "none":
                reply = self.some_of(self.act(GIVEN))
        return self.shape(kind, reply, guard=guard, guarded=1 if guard else 0)

    def many_calls(self, kind: Kind, calls: int) -> Shape:
        """Sentences until there are enough calls; the last one depends on the kind."""
        if kind == "read":
            while len(self.steps) < calls:
                room = calls - len(self.steps)
                number = self.compute() if room >= 3 and self.has_calculator() else self.read()
                self.replies.append(self.one_of(number))
            return self.shape(kind, self.replies)
        if kind == "none":  # one action alone: else it is not clear whether the others are wanted
            figure = self.one_of(self.compute() if calls > 3 and self.has_calculator() else self.read())
            return self.shape(kind, self.some_of(self.act(Source(kind="figure", step=figure[0], field=figure[1]))))
        if kind == "ask":
            self.replies.append(self.one_of(self.act_asking()))
        if kind == "then_read":
            self.replies.append(self.then_read())
        last = 2 if kind == "if" or (kind == "ask" and calls > 5) else 0  # calls of the condition
        while len(self.steps) < calls - last:
            self.replies.append(self.sentence(calls - last - len(self.steps), kept=1 if last else 0))
        guard, guarded = None, 0
        if last:
            guard = self.one_of(self.read())
            guarded = len(self.steps)
            self.replies.append(self.one_of(self.act(GIVEN)))
        return self.shape(kind, self.needed_replies(self.rng.randint(1, 3)), guard=guard, guarded=guarded)

    def needed_replies(self, last: int) -> list[Figure]:
        """The last ones, and whatever is looked up for its own sake."""
        kept = self.replies[-last:]
        return [reply for reply in self.replies if reply in kept or self.facts(reply[0]).role != "act"]

    def sentence(self, room: int, kept: int) -> Figure:
        """An action with what it needs before it, in at most this many calls; a figure where no action is left.

        kept: how many actions must be left over.
        """
        if self.num_left() <= kept:
            return self.one_of(self.read())
        if room >= 4 and self.has_calculator() and self.rng.random() < 0.5:
            return self.one_of(self.act(self.from_figure(self.one_of(self.compute()))))
        if room >= 2 and self.rng.random() < 0.75:
            return self.one_of(self.act_on_figure())
        if self.replies and self.rng.random() < 0.6:
            return self.one_of(self.act(self.from_figure(self.rng.choice(self.replies)), takes=("number",)))
        return self.one_of(self.act(GIVEN) if self.rng.random() < 0.8 else self.read())

    def read(self) -> int:
        return self.add(self.choose("read"), GIVEN)

    def act(self, number: Source, takes: tuple[str, ...] = ("number", "day")) -> int:
        """An action on a given name. A figure that is no day is no day of a calendar."""
        if number.kind == "figure" and number.field != "day":
            takes = ("number",)
        return self.add(self.choose("act", takes), GIVEN, number)

    def act_on_figure(self) -> int:
        return self.act(self.from_figure(self.one_of(self.read())))

    def act_asking(self) -> int:
        facts = self.choose("act")
        return self.add(facts, *self.rng.choice(((ASKED, GIVEN), (GIVEN, ASKED))))

    def then_read(self) -> Figure:
        """Change a figure, then look it up."""
        facts = self.choose("act", changing=True)
        changed = self.add(facts, GIVEN, GIVEN)
        reader = next(f for f in FACTS[WORLD_OF[facts.name]].values() if f.role == "read" and facts.sets in f.fields)
        return self.add(reader, Source(kind="same", step=changed)), facts.sets

    def compute(self) -> int:
        one, other = self.one_of(self.read()), self.one_of(self.read())
        return self.add(self.choose("compute"), self.from_figure(one), self.from_figure(other))

    def num_left(self) -> int:
        """How many actions are not in the plan yet."""
        all_facts = (facts for world in self.worlds for facts in FACTS[world].values())
        return sum(facts.role == "act" for facts in all_facts) - sum(
            self.facts(n).role == "act" for n in range(len(self.steps))
        )

    def has_calculator(self) -> bool:
        return "units" in self.worlds

    def choose(self, role: str, takes: tuple[str, ...] = ("number", "day"), *, changing: bool = False) -> ToolFacts:
        """A tool of a role. No action twice, so that `the order` is one alone."""
        used = {step.tool for step in self.steps} if role == "act" else set()
        fit = [
            facts
            for world in self.worlds
            for facts in FACTS[world].values()
            if facts.role == role and facts.name not in used
            if role != "act" or any(facts.takes_kind(kind) for kind in takes)
            if facts.sets or not changing
        ]
        if not fit:
            raise _NoToolLeft
        return self.rng.choice(fit)

    def add(self, facts: ToolFacts, *sources: Source) -> int:
        self.steps.append(Step(tool=facts.name, sources=sources))
        return len(self.steps) - 1

    def one_of(self, number: int) -> Figure:
        return number, self.rng.choice(self.facts(number).fields)

    def some_of(self, number: int) -> list[Figure]:
        """One field or two, in any order."""
        fields = self.facts(number).fields
        return [(number, name) for name in self.rng.sample(fields, self.rng.choice((1, min(2, len(fields)))))]

    def facts(self, number: int) -> ToolFacts:
        tool = self.steps[number].tool
        return FACTS[WORLD_OF[tool]][tool]

    @staticmethod
    def from_figure(figure: Figure) -> Source:
        return Source(kind="figure", step=figure[0], field=figure[1])

    def shape(self, kind: Kind, reply: Sequence[Figure], guard: Figure | None = None, guarded: int = 0) -> Shape:
        return Shape(kind=kind, steps=tuple(self.steps), reply=tuple(reply), guard=guard, guarded=guarded)
