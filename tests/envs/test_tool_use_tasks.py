"""The tasks of `tool_use`: structures kept apart, the same everywhere, short where small policies learn."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from agentgym.tools import Toolbox, ToolError
from agentgym.types import Split, Task
from agentgym_envs.tool_use.drawing import draw, new_worlds, outcome, snapshots
from agentgym_envs.tool_use.environment import ToolUse
from agentgym_envs.tool_use.plans import GIVEN, Plan, Shape, Source, Step
from agentgym_envs.tool_use.requests import SYSTEM
from agentgym_envs.tool_use.shapes import LEVELS
from agentgym_envs.tool_use.worlds import FACTS, TOOLS, WORLD_OF, WORLDS

NAMES = {thing for world in WORLDS.values() for thing in world.things}


def tasks(split: Split, level: int, count: int, seed: int = 0) -> list[Task]:
    return list(islice(ToolUse(levels=[level], test_tasks=count).tasks(split, seed), count))


def plan_of(task: Task) -> Plan:
    return Plan.from_json(task.answer)


def pattern(task: Task) -> str:
    """The request without names and numbers, and whether all tools that it would take are there."""
    words = re.findall(r"[a-z]+|[0-9]+|[.,]", task.prompt[1]["content"].lower())
    plain = ["_" if word in NAMES or word.isdigit() else word for word in words]
    return " ".join([*plain, "cannot" * (plan_of(task).shape.kind == "none")])


@pytest.mark.parametrize("level", LEVELS)
def test_no_structure_and_no_wording_of_it_is_in_both_splits(level: int) -> None:
    """By the key that decides, and by the text alone."""
    train = [task for seed in (0, 1) for task in tasks("train", level, 400, seed)]
    test = [task for seed in (0, 1) for task in tasks("test", level, 150, seed)]
    for describe in (pattern, ToolUse().structure):
        assert not {describe(task) for task in train} & {describe(task) for task in test}
    keys = {pattern(task): plan_of(task).shape.key for task in train + test}
    assert all(keys[pattern(task)] == plan_of(task).shape.key for task in train + test)


@pytest.mark.parametrize("level", [1, 2])
def test_what_the_test_split_needs_was_seen_in_other_structures(level: int) -> None:
    train, test = figures_of(tasks("train", level, 1500)), figures_of(tasks("test", level, 300))
    assert set(test) <= set(train)
    wanted = {(f.name, field) for f in TOOLS.values() if f.role in ("read", "act") for field in f.fields}
    assert set(train) == wanted


def figures_of(some: list[Task]) -> Counter[tuple[str, str]]:
    plans = [plan_of(task) for task in some]
    return Counter((p.shape.steps[n].tool, field) for p in plans for n, field in p.shape.reply)


def test_test_tasks_differ_and_the_same_structure_comes_with_other_worlds() -> None:
    test = list(ToolUse().tasks("test"))
    assert len(test) == 500 == len({task.prompt[1]["content"] for task in test})
    assert set(Counter(task.difficulty for task in test)) == set(LEVELS)
    assert len({plan_of(task).secret for task in test}) == 500
    assert min(Counter(task.difficulty for task in test).values()) > 60


def test_no_training_prompt_is_a_test_prompt_also_where_the_tools_differ() -> None:
    """What can be done and what no tool can do are asked for in the same words: `0/train/1849` is `Put 25 of chair
    aside`, which a test task asks without the tool for it. Only such a task is drawn again."""
    environment = ToolUse()
    test = {task.prompt[1]["content"] for task in environment.tasks("test")}
    name, options = "0/train/1849", (tuple(LEVELS), tuple(WORLDS))
    assert draw("train", name, *options).text in test
    assert environment.unseen("train", draw("train", name, *options), name).text not in test
    for index, task in enumerate(islice(environment.tasks("train"), 60)):
        assert plan_of(task) == draw("train", f"0/train/{index}", *options).plan


def test_every_option_of_worlds_has_tasks_of_every_level_in_both_splits() -> None:
    for world in WORLDS:
        for level in LEVELS:
            for split in ("train", "test"):
                some = list(islice(ToolUse(worlds=[world], levels=[level], test_tasks=5).tasks(split), 5))
                assert len(some) == 5
                assert {tool for task in some for tool in plan_of(task).offered} <= set(FACTS[world])


def test_another_seed_gives_other_tasks() -> None:
    one, other = ([task.answer for task in islice(ToolUse().tasks("train", seed), 60)] for seed in (7, 8))
    assert one != other


def test_the_answer_is_not_in_the_prompt_and_comes_from_the_world() -> None:
    """The same request in another world has another answer."""
    moved = 0
    for level in LEVELS:
        for task in tasks("train", level, 60):
            plan = plan_of(task)
            _, figures = outcome(plan)
            heard = f"{task.prompt[1]['content']} {plan.answer}"
            assert not set(map(str, figures)) & set(re.findall("[0-9]+", heard))
            if plan.shape.kind == "none":
                assert figures == ()
                continue
            assert len(figures) == len(plan.shape.reply) or plan.shape.guard
            first = plan.shape.steps[0]
            elsewhere = new_worlds(Plan.from_json({**task.answer, "secret": "another", "busy": []}))  # type: ignore[dict-item]
            here = new_worlds(replace(plan, busy=()))
            assert snapshots(here) == snapshots(elsewhere)  # nothing is done yet
            world = next(name for name in here if first.tool in FACTS[name])
            if TOOLS[first.tool].role == "read":
                told = [getattr(where[world], first.tool)(plan.values[0][0]) for where in (here, elsewhere)]
                moved += told[0] != told[1]
    assert moved > 100


def test_every_task_offers_what_it_needs_and_the_trap_beside_its_last_tool() -> None:
    for level, rules in LEVELS.items():
        for task in tasks("train", level, 150):
            plan = plan_of(task)
            needed = [step.tool for step in plan.shape.steps]
            offered = set(plan.offered)
            if plan.shape.kind == "none":
                assert needed[-1] not in offered and set(needed[:-1]) <= offered
            else:
                assert set(needed) <= offered
                assert rules.calls[0] <= len(needed) <= rules.calls[1]
            twins = {name for name in TOOLS if TOOLS[name].twin == needed[-1] and TOOLS[name].role != "broken"}
            assert twins <= offered
            assert rules.offered[0] <= len(offered) <= rules.offered[1] or len(offered) <= len(set(needed)) + 1
            assert rules.broken or not any(TOOLS[name].role == "broken" for name in offered)
            assert len(plan.offered) == len(offered)


def test_level_1_and_2_are_short() -> None:
    """In characters; a trained tokenizer has about 5 of them in a token."""
    schemas = {s["function"]["name"]: json.dumps(s) for w in WORLDS.values() for s in Toolbox.of(w).schemas}  # type: ignore[index,call-overload]
    for level, most in ((1, 1150), (2, 1500)):
        for task in tasks("train", level, 300):
            shown = sum(len(schemas[name]) for name in plan_of(task).offered)
            assert len(SYSTEM) + len(task.prompt[1]["content"]) + shown < most


def test_the_facts_of_a_tool_are_those_of_its_method() -> None:
    for name, world in WORLDS.items():
        boxes = {str(s["function"]["name"]): s["function"] for s in Toolbox.of(world).schemas}  # type: ignore[index,call-overload]
        assert set(boxes) == set(FACTS[name])
        for tool, facts in FACTS[name].items():
            described = boxes[tool]
            assert list(described["parameters"]["properties"]) == list(facts.takes)
            if facts.is_trap:
                assert TOOLS[facts.twin].takes == facts.takes and not TOOLS[facts.twin].is_trap
                assert facts.role == "broken" or facts.fields == TOOLS[facts.twin].fields
            if facts.role in ("read", "stale", "act", "harm"):
                given = {"name": world.things[0], "number": 3, "day": 14}
                told = getattr(world("secret"), tool)(*(given[kind] for kind in facts.takes.values()))
                assert tuple(re.findall(r"([a-z]+) [0-9]+", told)) == facts.fields
    assert len(TOOLS) == sum(map(len, FACTS.values()))  # every name once, whatever the world


@pytest.mark.parametrize("tool", [name for name, facts in TOOLS.items() if facts.sets])
def test_an_action_changes_what_another_tool_reads(tool: str) -> None:
    world = WORLDS[WORLD_OF[tool]]("1")
    thing, other = world.things[:2]
    field = TOOLS[tool].sets
    reader = next(name for name in FACTS[WORLD_OF[tool]] if TOOLS[name].role == "read" and field in TOOLS[name].fields)

    def read(name: str) -> int:
        found = re.search(rf"{field} ([0-9]+)", getattr(world, reader)(name))
        assert found is not None
        return int(found[1])

    before, untouched = read(thing), read(other)
    getattr(world, tool)(thing, 3)
    assert read(thing) - before == {"stock": -3, "seats": -3, "lines": -3, "rank": 3, "unread": 1}[field]
    assert read(other) == untouched
    if field in ("stock", "seats", "lines"):
        with pytest.raises(ToolError, match=f"only {before - 3} "):
            getattr(world, tool)(thing, before)


def test_plans_that_do_the_same_in_another_order_have_one_structure() -> None:
    def figure(step: int, field: str) -> Source:
        return Source(kind="figure", step=step, field=field)

    def total(one: Source, other: Source) -> str:
        steps = (
            Step(tool="look", sources=(GIVEN,)),
            Step(tool="stat", sources=(GIVEN,)),
            Step(tool="plus", sources=(one, other)),
        )
        return Shape(kind="read", steps=steps, reply=((2, "sum"),)).key

    price, size = figure(0, "price"), figure(1, "size")
    assert total(price, size) == total(size, price) != total(price, figure(1, "page"))
