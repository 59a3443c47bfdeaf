"""The settings that may change while a run goes on: the one table that the run, the commands and the page go by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentgym.config import build, describe
from agentgym.errors import UserError, nearest
from agentgym.rl.config import LoopConfig
from agentgym.runs.changes import Change, Value, is_value, value_of
from agentgym.trainer.config import OptimizerConfig

AppliedBy: TypeAlias = Literal["loop", "checkpoints", "trainer"]
"""What a change is handed to: the loop reads its config at each step, `Checkpoints` has its number, the trainer is
called."""


SECTIONS: Mapping[str, type] = {"loop": LoopConfig, "optimizer": OptimizerConfig}
NEXT_STEP = "from the next step on"


@dataclass(frozen=True, slots=True)
class Changeable:
    """A setting, what applies it, and when a change takes effect. A new value must pass the check of its section."""

    key: str
    applied_by: AppliedBy
    effect: str = NEXT_STEP


TABLE = (
    Changeable("optimizer.lr", "trainer", f"{NEXT_STEP}; warm-up and decay stay, as shares of it"),
    Changeable("loop.max_staleness", "loop", f"{NEXT_STEP}; groups that are too old for a lower bound are skipped"),
    Changeable("loop.groups_per_step", "loop", f"{NEXT_STEP}; with fewer, groups that wait too long are skipped"),
    Changeable("loop.eval_every", "loop"),
    Changeable("loop.eval_tasks", "loop", "in the next evaluation"),
    Changeable("loop.checkpoint_every", "loop"),
    Changeable("loop.keep_checkpoints", "checkpoints", "with the next checkpoint"),
    Changeable("loop.check_sync_every", "loop"),
)


def changeable(key: str) -> Changeable:
    """Raises UserError for a setting that can't change, with those that can."""
    for one in TABLE:
        if one.key == key:
            return one
    known = [one.key for one in TABLE]
    hint = nearest(key, known).partition(" Available")[0]
    these = ", ".join(known)
    section = key.partition(".")[0]
    if section in SECTIONS and key not in {one.key for one in describe(SECTIONS[section], f"{section}.")}:
        raise UserError(f"there is no setting {key[:100]!r}.{hint} These can change: {these}.")
    raise UserError(
        f"{key[:100]!r} can't change while a run goes on. These can: {these}. For another, stop the run and "
        f"continue it: agentgym train --resume RUN --{key[:100] or 'section.field'} VALUE"
    )


def checked(key: str, value: object) -> Value:
    """The value as its section has it. Raises UserError for one that is not allowed, with what is."""
    section, _, name = changeable(key).key.partition(".")
    found = getattr(build(SECTIONS[section], {name: value}, key), name)
    if not is_value(found):
        raise UserError(f"{key} is {found!r}; give a finite number")
    result: Value = found
    return result


def changeable_json(config: Mapping[str, object], changes: Sequence[Change]) -> list[dict[str, Any]]:
    """A row for each setting: its present value, type, meaning, and when a change takes effect."""
    docs = {one.key: one for name, section in SECTIONS.items() for one in describe(section, f"{name}.")}
    return [
        {
            "key": one.key,
            "value": value_of(config, changes, one.key),
            "type": docs[one.key].type_name,
            "text": docs[one.key].text,
            "effect": one.effect,
        }
        for one in TABLE
    ]
