"""Puts a plan into words: what the user asks for, answers and is told at the end."""

from __future__ import annotations

import random
from typing import Final

from agentgym_envs.tool_use.plans import Figure, Plan, Shape
from agentgym_envs.tool_use.worlds import TOOLS, WORLD_OF

SYSTEM: Final = (
    "Use the tools. Ask if something is missing. If no tool can do it, do nothing and say cannot. "
    "End with the numbers asked for, in order."
)
CANNOT: Final = "I cannot do that."
QUESTIONS: Final = {"name": "Which one?", "number": "How many?", "day": "Which day?"}
_ENDS: Final = ("{request}. Give {figures}.", "{request} and give {figures}.")
_READS: Final = ("Tell me {figures}.", "Give {figures}.")


def request(plan: Plan, rng: random.Random) -> str:
    """The request of a plan; the generator chooses among wordings."""
    shape = plan.shape
    wanted = _figures(plan, shape.reply)
    unguarded = range(shape.guarded if shape.guard else len(shape.steps))
    sentences = [_sentence(plan, number, rng) for number in unguarded if _is_act(shape, number)]
    if shape.guard:
        does = " and ".join(_sentence(plan, n, rng) for n in range(shape.guarded, len(shape.steps)))
        guard = _figure(plan, shape.guard)
        sentences.append(f"if {guard} is above {plan.limit}, {does} and give {wanted}. If not, give {guard}")
        return _joined(sentences) + "."
    if not sentences:
        return rng.choice(_READS).format(figures=wanted)
    end = _ENDS[0] if "where" in sentences[-1] else rng.choice(_ENDS)
    return end.format(request=_joined(sentences), figures=wanted)


def question(plan: Plan) -> str:
    """What a good agent asks the user; empty where nothing is missing."""
    for step in plan.shape.steps:
        for source, kind in zip(step.sources, TOOLS[step.tool].takes.values(), strict=True):
            if source.kind == "asked":
                return QUESTIONS[kind]
    return ""


def final(figures: tuple[int, ...]) -> str:
    """What a good agent says at the end."""
    return ", ".join(map(str, figures))


def _joined(sentences: list[str]) -> str:
    first, *others = sentences
    return ". Then ".join([first[:1].upper() + first[1:], *others])


def _is_act(shape: Shape, number: int) -> bool:
    return TOOLS[shape.steps[number].tool].role == "act"


def _sentence(plan: Plan, number: int, rng: random.Random) -> str:
    """An action in the imperative. A figure stands for a number as N, and is said after it."""
    step, values = plan.shape.steps[number], plan.values[number]
    facts = TOOLS[step.tool]
    unknown = "someone" if "person" in facts.takes else "something"
    name = str(values[0]) if step.sources[0].kind == "given" else unknown
    source = step.sources[1]
    if source.kind == "asked":
        return facts.vague.format(name=name)
    said = rng.choice(facts.asked)
    if source.kind == "given":
        return said.format(name=name, number=values[1])
    return f"{said.format(name=name, number='N')}, where N is {_figure(plan, (source.step, source.field))}"


def _figures(plan: Plan, figures: tuple[Figure, ...]) -> str:
    """Such as `the price and the stock of lamp`; where one is a sum of others, with `then` between them."""
    between = ", then " if any(TOOLS[plan.shape.steps[n].tool].role == "compute" for n, _ in figures) else " and "
    parts: list[str] = []
    for at, (step, field) in enumerate(figures):
        follows = figures[at + 1][0] if at + 1 < len(figures) else None
        together = follows == step and between == " and "
        parts.append(f"the {field}" if together else _figure(plan, (step, field)))
    return between.join(parts)


def _figure(plan: Plan, figure: Figure) -> str:
    number, field = figure
    step = plan.shape.steps[number]
    role = TOOLS[step.tool].role
    if role == "act":
        return f"the {field}"
    if role == "compute":
        one, other = (_figure(plan, (source.step, source.field)) for source in step.sources)
        return f"the {field} of {one} and {other}"
    if step.sources[0].kind == "same":
        return f"the {field} of {plan.values[step.sources[0].step][0]} after that"
    return f"the {field} of {plan.values[number][0]}"


def worlds_of(plan: Plan) -> list[str]:
    """The worlds that its tools belong to."""
    return sorted({WORLD_OF[tool] for tool in plan.offered} | {WORLD_OF[step.tool] for step in plan.shape.steps})
