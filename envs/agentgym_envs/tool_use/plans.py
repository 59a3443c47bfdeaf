"""A plan: which tools a task needs, where each argument comes from, and which figures the reply ends with.

`Shape` is a plan without names and numbers: the structure that decides a task's split. `Plan` has them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from agentgym.types import Json, Split
from agentgym_envs.tool_use.worlds import BUSY, TOOLS

TEST_ONE_IN: Final = 5  # structures that belong to the test split
Kind: TypeAlias = Literal["read", "act", "then_read", "if", "ask", "none"]
"""read: only look up. act: change the world. then_read: look up what has changed. if: act, or not, as a figure says.
ask: something is missing that only the user knows. none: no tool can do it, so nothing may be done."""
Call: TypeAlias = tuple[str, dict[str, int | str]]
Figure: TypeAlias = tuple[int, str]
"""A figure in the answer to a call: the step that made it, and its field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an argument comes from: `given` in the request, `asked` of the user, a `figure`, or the name that
    another step is about (`same`)."""

    kind: Literal["given", "asked", "figure", "same"]
    step: int = -1
    field: str = ""


GIVEN, ASKED = Source(kind="given"), Source(kind="asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call. sources: of its arguments, in the order in which the tool takes them."""

    tool: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A plan's structure.

    reply: the figures that the final message ends with, in order. guard: of an `if`, the figure that decides
    whether the steps from `guarded` on are made; it is the reply where they are not.
    """

    kind: Kind
    steps: tuple[Step, ...]
    reply: tuple[Figure, ...]
    guard: Figure | None = None
    guarded: int = 0

    @property
    def key(self) -> str:
        """The same for plans that do the same, in whatever order, words, names and numbers.

        It is the kind, the figure that decides, what is done to the worlds as a sorted list of nested calls, and
        what is replied.
        """
        done = sorted(self._call(n) for n, step in enumerate(self.steps) if TOOLS[step.tool].role == "act")
        reported = [self._figure(figure) for figure in self.reply if self.kind != "none"]
        guard = self._figure(self.guard) if self.guard else ""
        return " | ".join((self.kind, guard, ", ".join(done), ", ".join(reported)))

    @property
    def split(self) -> Split:
        """Which split it belongs to, whatever the seed and the level."""
        digest = hashlib.sha256(self.key.encode()).digest()
        return "test" if int.from_bytes(digest[:8], "big") % TEST_ONE_IN == 0 else "train"

    def _call(self, number: int) -> str:
        step = self.steps[number]
        arguments = [self._source(source) for source in step.sources]
        if TOOLS[step.tool].role == "compute":
            arguments.sort()  # a + b is b + a
        return f"{step.tool}({', '.join(arguments)})"

    def _source(self, source: Source) -> str:
        if source.kind == "figure":
            return self._figure((source.step, source.field))
        return "asked" if source.kind == "asked" else "_"

    def _figure(self, figure: Figure) -> str:
        return f"{self._call(figure[0])}.{figure[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A shape with its names and numbers.

    values: those of each step's arguments that are given or asked, in order; None for the others.
    limit: of an `if`, the steps are made where the guard's figure is above it. secret: of the worlds.
    offered: the tools that the agent sees. busy: those whose first call fails.
    """

    shape: Shape
    values: tuple[tuple[int | str | None, ...], ...]
    secret: str
    offered: tuple[str, ...]
    busy: tuple[str, ...] = ()
    limit: int = 0

    @property
    def answer(self) -> int | str | None:
        """What the user answers when asked."""
        for step, values in zip(self.shape.steps, self.values, strict=True):
            for source, value in zip(step.sources, values, strict=True):
                if source.kind == "asked":
                    return value
        return None

    def play(self) -> Generator[Call, str, tuple[int, ...]]:
        """The calls one by one; each is sent what the tool answered. Returns the figures to reply with."""
        shape = self.shape
        texts: dict[int, str] = {}
        for number, step in enumerate(shape.steps):
            if shape.guard and number == shape.guarded and not self.holds(texts):
                return (figure_in(texts, shape.guard),)
            call = (step.tool, self.arguments(number, texts))
            texts[number] = yield call
            if step.tool in self.busy and BUSY in texts[number]:
                texts[number] = yield call
        return tuple(figure_in(texts, figure) for figure in shape.reply)

    def holds(self, texts: Mapping[int, str]) -> bool:
        assert self.shape.guard is not None  # only asked where there is one
        return figure_in(texts, self.shape.guard) > self.limit

    def arguments(self, number: int, texts: Mapping[int, str]) -> dict[str, int | str]:
        """The arguments of a step, given the tools' answers to the steps before it."""
        step, values = self.shape.steps[number], self.values[number]
        found: dict[str, int | str] = {}
        for name, source, value in zip(TOOLS[step.tool].takes, step.sources, values, strict=True):
            if source.kind == "figure":
                value = figure_in(texts, (source.step, source.field))
            elif source.kind == "same":
                value = self.values[source.step][0]
            assert value is not None  # else the plan is not whole
            found[name] = value
        return found

    def to_json(self) -> dict[str, Json]:
        """The plan as JSON, with the structure's key under `structure`."""
        shape = self.shape
        return {
            "structure": shape.key,
            "kind": shape.kind,
            "steps": [[step.tool, [[s.kind, s.step, s.field] for s in step.sources]] for step in shape.steps],
            "reply": [list(figure) for figure in shape.reply],
            "guard": list(shape.guard) if shape.guard else None,
            "guarded": shape.guarded,
            "values": [list(values) for values in self.values],
            "secret": self.secret,
            "offered": list(self.offered),
            "busy": list(self.busy),
            "limit": self.limit,
        }

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        steps = tuple(
            Step(tool=tool, sources=tuple(Source(kind=k, step=n, field=f) for k, n, f in sources))
            for tool, sources in data["steps"]
        )
        shape = Shape(
            kind=data["kind"],
            steps=steps,
            reply=_figures(data["reply"]),
            guard=_figures([data["guard"]])[0] if data["guard"] else None,
            guarded=data["guarded"],
        )
        return cls(
            shape=shape,
            values=tuple(tuple(values) for values in data["values"]),
            secret=data["secret"],
            offered=tuple(data["offered"]),
            busy=tuple(data["busy"]),
            limit=data["limit"],
        )


def figure_in(texts: Mapping[int, str], figure: Figure) -> int:
    """A field's number in what a tool answered; 0 where it is not said."""
    found = re.search(rf"\b{figure[1]} (-?[0-9]+)", texts.get(figure[0], ""))
    return int(found[1]) if found else 0


def _figures(pairs: Sequence[Sequence[Any]]) -> tuple[Figure, ...]:
    return tuple((int(step), str(field)) for step, field in pairs)
