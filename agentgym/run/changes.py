"""Settings that change in an open run: what holds now, what a resume makes again, and how each change is applied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from agentgym.errors import UserError
from agentgym.recipe import Recipe
from agentgym.run.settle import Settled, settle_deterministic
from agentgym.runs.changes import Change, Value, read_changes, record_change, values_at
from agentgym.runs.folder import RunFolder
from agentgym.tables.changeable import checked

MOST_SLOTS = 10_000  # groups in flight: more is a typing error


@dataclass(slots=True, kw_only=True)
class Changes:
    """recipe: as it is now. later: changes of an earlier process, which are made again after their steps."""

    folder: RunFolder
    recipe: Recipe
    later: list[Change] = field(default_factory=list)

    def due(self, step: int) -> list[Change]:
        """Those that are made again after this step."""
        found = [one for one in self.later if one.step <= step]
        self.later = [one for one in self.later if one.step > step]
        for one in found:
            self.recipe = with_value(self.recipe, one.setting, one.value)
        return found

    def make(self, step: int, setting: str, given: object) -> Change | None:
        """Change a setting after a step, and record it; None where it has that value already.

        Raises UserError for a value that the recipe can't have, InfraError where the folder can't be written.
        """
        value = checked(setting, given)
        changed = with_value(self.recipe, setting, value)
        check_slots(changed)
        change = Change(step=step, setting=setting, before=_value(self.recipe, setting), value=value)
        later = [one for one in self.later if one.setting != setting]
        if change.before == value and len(later) == len(self.later):
            return None
        record_change(self.folder.path, change)
        self.recipe, self.later = changed, later
        return change


def check_slots(recipe: Recipe) -> None:
    """Raises UserError for more groups in flight than the run has room for."""
    slots, kept = recipe.loop.num_slots, recipe.weights.keep
    if slots > MOST_SLOTS:
        raise UserError(
            f"(loop.max_staleness + 1) * groups_per_step is {slots}, so many groups at once; allowed are {MOST_SLOTS}"
        )
    if recipe.loop.deterministic and slots + 2 > kept:
        raise UserError(
            f"loop.deterministic keeps the weights that each group began with: weights.keep is {kept}, and {slots} "
            f"groups at once need {slots + 2}. Stop the run, and continue it with --weights.keep {slots + 2}"
        )


def with_value(recipe: Recipe, setting: str, value: Value) -> Recipe:
    """The recipe with another value by dotted key. Raises UserError for one that it can't have beside its others."""
    section, _, name = setting.partition(".")
    try:
        return replace(recipe, **{section: replace(getattr(recipe, section), **{name: value})})
    except ValueError as error:
        raise UserError(str(error)) from error


def recipe_at(recipe: Recipe, changes: Sequence[Change], step: int) -> Recipe:
    """The recipe of the step after `step`. Raises UserError for a change that no run could have recorded."""
    for setting, value in values_at(changes, step).items():
        recipe = with_value(recipe, setting, checked(setting, value))
    return recipe


def kept_changes(folder: RunFolder, given: Collection[str]) -> list[Change]:
    """Those that a resume goes on with. given: settings, or sections, that it sets itself in place of their changes."""
    return [
        one
        for one in read_changes(folder.path)
        if one.setting not in given and one.setting.partition(".")[0] not in given
    ]


def go_on(
    settled: Settled, folder: RunFolder, step: int, given: Collection[str], say: Callable[[str], None]
) -> Settled:
    """What a run that goes on after a step begins with; a line for each setting that was changed."""
    known, kept = read_changes(folder.path), kept_changes(folder, given)
    recipe = recipe_at(settled.recipe, kept, step)
    before = values_at(known, step)
    for setting in sorted({one.setting for one in known} - {one.setting for one in kept}):
        change = Change(step=step, setting=setting, before=before[setting], value=_value(recipe, setting))
        record_change(folder.path, change)
    done = {one.setting: one for one in kept if one.step <= step}
    for one in [*done.values(), *(one for one in kept if one.step > step)]:
        when = f"as it was changed after step {one.step}" if one.step <= step else f"again after step {one.step}"
        say(f"{one}, {when}; --{one.setting} VALUE with --resume sets another")
    keep = max(settle_deterministic(recipe_at(recipe, kept, at)).weights.keep for at in [step, *(c.step for c in kept)])
    return replace(settled, recipe=replace(recipe, weights=replace(recipe.weights, keep=keep)))


def _value(recipe: Recipe, setting: str) -> Value:
    section, _, name = setting.partition(".")
    value: Value = getattr(getattr(recipe, section), name)
    return value
