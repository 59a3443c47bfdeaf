"""What a run of supervised fine-tuning learns from: found, written as tokens, split, and kept in the run's folder."""

from __future__ import annotations

import random
from array import array
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast

from agentgym.errors import UserError
from agentgym.rl.demonstrations import Demonstration, Written
from agentgym.rl.sft_config import SftConfig
from agentgym.rollout.environments import build_environment
from agentgym.rollout.sandboxes import choose_sandbox, make_images
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.tasks import drawn
from agentgym.run.demonstrations import Collection, Found, read_episodes, read_file, write_all
from agentgym.run.gym import open_renderer
from agentgym.run.oracle import solve_tasks
from agentgym.run.settle import Settled
from agentgym.runs.files import read_json_lines, write_json_lines
from agentgym.runs.folder import RunFolder
from agentgym.runs.records import pack, unpack
from agentgym.runs.report import Reporter
from agentgym.types import Json, Message

FILE = "demonstrations.jsonl.gz"  # in the run's folder; a row is also one that --data reads
NUM_REPORTS = 10
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Lessons:
    """Conversations as tokens."""

    trained: list[Written]
    held_out: list[Written]

    def summary(self, config: SftConfig, steps: int) -> str:
        tokens = sum(map(len, self.trained))
        imitated = sum(sum(one.trained) for one in self.trained)
        return (
            f"{len(self.trained)} conversations of {tokens} tokens, {imitated} of them trained, "
            f"{len(self.held_out)} more held out; {steps} steps of {config.batch_size}, "
            f"{steps * config.batch_size / len(self.trained):.3g} epochs"
        )


async def collect(settled: Settled, folder: RunFolder, reporter: Reporter) -> Lessons:
    """All that the recipe names; it is also kept in the folder.

    Raises UserError, with a report, where too much of it can't be used.
    """
    recipe, config = settled.recipe, settled.recipe.fine_tuning
    collection = Collection(max_skipped_share=config.max_skipped_share)
    for path in config.data:
        read_file(path, collection)
    for path in config.episodes:
        read_episodes(path, config.min_reward, collection)
    if config.oracle_tasks:
        solved, note = await _solved(settled, reporter)
        collection.found += [Found(demonstration=one) for one in solved]
        collection.notes.append(note)
    for note in collection.notes:
        reporter.note(note)
    collection.check()
    reporter.phase(f"writing {len(collection.found)} conversations as tokens")
    renderer = open_renderer(recipe.model, settled.model, settled.registry)
    made = write_all(collection, renderer, recipe.trainer.seq_len)
    collection.check()
    if collection.faults:
        reporter.note(f"{len(collection.faults)} conversations are left out; the first: {collection.faults[0]}")
    trained, held_out = split(made, config)
    rows = [_row(*one, held_out=False) for one in trained] + [_row(*one, held_out=True) for one in held_out]
    write_json_lines(folder.path / FILE, rows)
    return Lessons(trained=[one for one, _ in trained], held_out=[one for one, _ in held_out])


def split(made: list[T], config: SftConfig) -> tuple[list[T], list[T]]:
    """Splits into trained and held-out conversations, at least one of each if a share is to be held out."""
    order = random.Random(f"{config.seed}/held-out").sample(made, len(made))
    count = round(config.held_out_share * len(made))
    if config.held_out_share and len(made) > 1:
        count = min(max(count, 1), len(made) - 1)
    return order[count:], order[:count]


def load_lessons(folder: RunFolder) -> Lessons:
    """What `collect` kept. Raises UserError where it is gone."""
    path = folder.path / FILE
    if not path.is_file():
        raise UserError(f"{path} is gone, so the run can't go on with what it learned from")
    parts: tuple[list[Written], list[Written]] = ([], [])
    for row in read_json_lines(path):
        made = cast(Any, row)
        one = Written(name=made["name"], token_ids=array("i", made["token_ids"]), trained=_mask(made["trained"]))
        parts[bool(made["held_out"])].append(one)
    return Lessons(trained=parts[0], held_out=parts[1])


def load_messages(folder: RunFolder) -> list[list[Message]]:
    """The messages of the conversations that are trained, in the order of `Lessons.trained`."""
    rows = (cast(Any, row) for row in read_json_lines(folder.path / FILE))
    return [cast(Any, unpack(row["messages"])) for row in rows if not row["held_out"]]


def _row(one: Written, demonstration: Demonstration, *, held_out: bool) -> dict[str, Json]:
    return {
        "name": one.name,
        "messages": pack(list(demonstration.messages)),
        "tools": pack(list(demonstration.tools)),
        "held_out": held_out,
        "token_ids": list(one.token_ids),
        "trained": "".join(map(str, one.trained)),
    }


def _mask(text: str) -> bytes:
    return bytes(map(int, text))


async def _solved(settled: Settled, reporter: Reporter) -> tuple[list[Demonstration], str]:
    """Played by the environment's oracle, in the recipe's sandbox where the tasks need one."""
    recipe, registry, config = settled.recipe, settled.registry, settled.recipe.fine_tuning
    count, done = config.oracle_tasks, 0
    environment = build_environment(registry, recipe.env.name, recipe.env.options)
    tasks = list(islice(drawn(environment, "train", config.seed), count))
    if not tasks:
        raise UserError(f"environment {environment.name!r} has no training tasks with these options")

    def progress(number: int) -> None:
        nonlocal done
        if number * NUM_REPORTS // len(tasks) > done:
            done = number * NUM_REPORTS // len(tasks)
            reporter.phase(f"the oracle has played {number} of {len(tasks)} tasks")

    async with AsyncExitStack() as stack:
        scorer = Scorer.of(environment, registry, recipe.rewards)
        stack.push_async_callback(scorer.close)
        backend = await choose_sandbox(recipe.sandbox.name, recipe.sandbox.options, tasks, registry, reporter.note)
        if backend is not None:
            stack.push_async_callback(backend.close)
            reporter.phase(f"starting the {backend.name} sandbox")
            await backend.start()
            left_out = await make_images(backend, environment, tasks)
            tasks = [task for task in tasks if task.task_id not in left_out]
        reporter.phase(f"the oracle plays {len(tasks)} tasks of {environment.name}")
        return await solve_tasks(
            environment, tasks, scorer=scorer, sandbox=backend, config=recipe.rollout, progress=progress
        )
