"""The sides of a comparison: evaluations that are saved, and what has to be played for the others."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.cli.evaluating import Policy, base_recipe, find_policy
from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import Finished, finish
from agentgym.config import to_mapping
from agentgym.errors import UserError, nearest
from agentgym.models.resolve import local_folder, weights_mark
from agentgym.policies.outside.config import served_name
from agentgym.recipe import Recipe
from agentgym.rollout.tasks import HeldOut
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder, RunStatus, runs_in
from agentgym.yaml import value_at

if TYPE_CHECKING:
    from agentgym.evals.compare import Saved

SCORED = ("rewards",)
PLAYED = ("env", "agent", "rollout", "model.chat_template", "eval.tasks", "eval.samples_per_task", "eval.seed",
          "eval.greedy")  # fmt: skip
"""The sections and fields of a recipe that decide what an evaluation plays, and how."""
ASKED = ("policy.base_url", "policy.omit", "policy.options", "policy.return_reasoning")
"""The same, of a policy behind a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """policy: None for the folder of an evaluation, which is always `saved`."""

    given: str
    policy: Policy | None
    saved: Saved | None = None

    @property
    def config_of(self) -> Path | None:
        """The folder whose config this side has."""
        return self.saved.folder.path if self.saved else self.policy.run_dir if self.policy else None


def find_side(given: str) -> Side:
    """Raises UserError for what is not there, and for an evaluation that is not finished."""
    from agentgym.evals.compare import Saved

    path = Path(given)
    folder = RunFolder.open(path) if (path / "status.json").is_file() else None
    if folder is None or folder.checkpoint_steps() or not folder.is_evaluation:
        policy = find_policy(given)
        if served_name(given) is None:
            local_folder(policy.path)  # raises for a path where nothing is
        return Side(given=given, policy=policy)
    steps = folder.episode_steps(evaluation=True)
    saved = Saved.load(folder, steps[-1], given) if steps else None
    if saved is None:
        running = folder.status().status is RunStatus.RUNNING
        advice = (
            f"how far it is: agentgym status {given}" if running else f"continue it: agentgym eval --resume {given}"
        )
        raise UserError(f"{given!r} has no finished evaluation; {advice}")
    return Side(given=given, policy=None, saved=saved)


def ordered(given: Sequence[str], against: str | None) -> list[str]:
    """The sides as they were given, the one to compare with first. Raises UserError for names that are not clear."""
    if twice := [name for name in given if given.count(name) > 1]:
        raise UserError(f"{twice[0]!r} is given twice; a side counts once")
    if against is None:
        return [*given]
    found = [name for name in given if against in (name, *name.split(","))]
    found = found or [name for name in given if Path(name).name == against]
    if len(found) != 1:
        how = "is none of the sides" if not found else f"may be {' or '.join(found)}"
        raise UserError(f"--against {against} {how}; give one of {', '.join(given)}.{nearest(against, given)}")
    return [*found, *(name for name in given if name != found[0])]


def find_rows(given: Sequence[str]) -> list[list[Side]]:
    """One row with all sides; where they are several runs with commas between them, a row of each training seed.

    A side that no run made is every run's partner. Raises UserError for runs that can't be paired.
    """
    sides = [[find_side(one) for one in _listed(some)] for some in given]
    most = max(map(len, sides))
    for index, some in enumerate(sides):
        if len(some) == 1 < most and some[0].policy and not some[0].config_of:
            sides[index] = [find_side(given[index])] * most
    if most == 1:
        return [[some[0] for some in sides]]
    if len({len(some) for some in sides}) > 1:
        counts = " and ".join(str(len(some)) for some in sides)
        raise UserError(f"{counts} runs: give as many on each side, trained with the same seeds")
    seeds = [[training_seed(side) for side in some] for some in sides]
    known = [sorted(seed for seed in some if seed is not None) for some in seeds]
    if any(some != known[0] for some in filter(None, known)) and known[0]:
        shown = " and ".join(", ".join(map(str, some)) for some in known)
        raise UserError(f"the runs have the seeds {shown} (loop.seed): give runs with the same seeds on all sides")
    for some in sides:
        some.sort(key=lambda side: training_seed(side) or 0)
    return [list(row) for row in zip(*sides, strict=True)]


def _listed(given: str) -> list[str]:
    names = [given] if Path(given).exists() else [name for name in given.split(",") if name]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{given!r} has {name} twice: a run counts once")
    return names or [given]


def training_seed(side: Side) -> int | None:
    """The seed of the training run; None for what no run made."""
    if side.config_of is None:
        return None
    config = RunFolder.open(side.config_of).load_config()
    seed = value_at(config, "sft.seed" if "sft" in config else "loop.seed")
    return seed if isinstance(seed, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A side, and the recipe by which it is played if nothing is saved."""

    side: Side
    finished: Finished | None

    @property
    def what(self) -> str:
        if self.finished is None or self.side.saved:
            return "nothing"
        recipe = self.finished[0]
        how = "greedily" if recipe.eval.greedy else f"at temperature {recipe.rollout.temperature:g}"
        return (
            f"{HeldOut(asked=recipe.eval.tasks)} of {recipe.env.name}, {recipe.eval.samples_per_task} times each, {how}"
        )


def plan_sides(
    sides: Sequence[Side], flags: Mapping[str, object], arguments: argparse.Namespace, shell: JobShell
) -> list[Plan]:
    """Decides for each side what is read from its folder, or how it is played: with the tasks, seeds and environment
    of the first side that is saved, or else of the first that a run made.

    A side that no run made is played by the config of another, with its own model. With --reward, what is saved is
    taken whatever its rewards: it is scored again.
    """
    options = [value for key, value in flags.items() if key.startswith("eval.")]
    given = [one for one in (*options, arguments.env, arguments.recipe) if one is not None]
    fixed = next((side.given for side in sides if side.policy is None), None)
    if fixed and (given or arguments.overrides or arguments.again):
        raise UserError(
            f"{fixed!r} is a saved evaluation, which is taken as it is; give its checkpoint to play it again"
        )

    def plan(side: Side, tasks_of: Side) -> Plan:
        configured = [one for one in (tasks_of, *sides) if one is not side and one.config_of]
        return _plan(side, tasks_of, configured[0] if configured else tasks_of, flags, arguments, shell)

    plans = [plan(side, side) for side in sides]
    made = (one for one in plans if one.side.config_of)
    leading = next((one for one in plans if one.side.saved), next(made, plans[0]))
    return [one if one is leading or one.side.saved else plan(one.side, leading.side) for one in plans]


def _plan(
    side: Side, tasks_of: Side, other: Side, flags: Mapping[str, object], arguments: argparse.Namespace, shell: JobShell
) -> Plan:
    """tasks_of: whose tasks, seeds and environment are played. other: whose config this side has without its own."""
    if side.policy is None:
        return Plan(side=side, finished=None)
    own = side.config_of or (None if arguments.recipe else other.config_of)
    base, where = base_recipe(arguments.recipe, own, trust=arguments.trust, shell=shell)
    if tasks_of is not side and tasks_of.config_of is not None and not arguments.recipe:
        theirs = base_recipe(None, tasks_of.config_of, trust=arguments.trust, shell=shell)[0]
        base = {**base, **{key: theirs[key] for key in ("env", "rewards", "eval") if key in theirs}}
        if tasks_of.saved and tasks_of.policy and tasks_of.saved.folder.path == tasks_of.policy.run_dir:
            setting = base.get("eval")
            given = setting if isinstance(setting, Mapping) else {}
            base["eval"] = {**given, "tasks": tasks_of.saved.setup.num_tasks}  # eval --every-checkpoint played so many
    model = {"model.path": side.policy.path, "model.random_weights": False}
    finished = finish(base, {**model, "env.name": arguments.env, **flags}, arguments, where, shell, served=True)
    if not arguments.again:
        exactly = flags.get("eval.tasks") is not None
        side = with_saved(side, finished, exactly=exactly)
        if arguments.reward and not side.saved:
            side = with_saved(side, finished, rescored=True, exactly=exactly)
    return Plan(side=side, finished=finished)


def with_saved(side: Side, finished: Finished, *, rescored: bool = False, exactly: bool = False) -> Side:
    """The side with an evaluation that played what the recipe says, if one is finished: the run's own, or another.

    One that an older version of the environment played is left out. rescored: whatever rewards scored it. exactly: a
    run's own of more tasks is not taken.
    """
    from agentgym.evals.compare import Saved

    assert side.policy is not None
    recipe, _, registry = finished
    version = getattr(registry.environment(recipe.env.name), "version", None)
    for folder in _candidates(side.policy, recipe, PLAYED if rescored else PLAYED + SCORED, exactly=exactly):
        try:
            saved = Saved.load(folder, side.policy.step, side.given)
        except UserError:  # it is damaged
            continue
        if saved is not None and version in (None, saved.setup.version):
            return replace(side, saved=saved)
    return side


def unfinished(policy: Policy, recipe: Recipe) -> RunFolder | None:
    """The folder of an evaluation of the same that was interrupted."""
    stopped = (RunStatus.INTERRUPTED, RunStatus.FAILED, RunStatus.LOST)
    folders = (f for f in _candidates(policy, recipe) if not f.checkpoint_steps() and f.status().status in stopped)
    return next(folders, None)


def _candidates(
    policy: Policy, recipe: Recipe, played: Sequence[str] = PLAYED + SCORED, *, exactly: bool = False
) -> Iterator[RunFolder]:
    """Folders with an evaluation of the policy, finished or not, that plays what the recipe says in `played`."""
    wanted = to_mapping(recipe)
    served = served_name(policy.path) is not None
    model = None if served else local_folder(policy.path)
    evals = Path(recipe.logging.evals_dir)
    for name in reversed(runs_in(evals)):
        folder = RunFolder.open(evals / name)
        if not (folder.path / "config.yaml").is_file():  # its process ended at once
            continue
        config, record = folder.load_config(), read_record(folder, policy.step)
        same = _plays_the_same(config, wanted, [key for key in played if key != "eval.tasks"])
        setup = record.get("setup")
        num_tasks = setup.get("num_tasks") if isinstance(setup, Mapping) else None  # a split may have fewer than asked
        same = same and recipe.eval.tasks in (num_tasks, value_at(config, "eval.tasks"))
        same = same and value_at(config, "model.path") == policy.path
        if served:  # the same name is another policy at another server
            same = same and all(value_at(config, key) == value_at(wanted, key) for key in ASKED)
        if same and record and (model is None or record.get("weights") == weights_mark(model)):
            yield folder
    if policy.run_dir is not None:
        folder = RunFolder.open(policy.run_dir)
        if _is_its_own(folder, policy.step, recipe, played, exactly=exactly):
            yield folder


def _is_its_own(folder: RunFolder, step: int, recipe: Recipe, played: Sequence[str], *, exactly: bool) -> bool:
    """Whether a run's evaluation of a step played what the recipe says. `agentgym eval RUN --every-checkpoint` may have
    played more tasks than the run's config has; those between the ends play loop.eval_tasks, which are fewer."""
    config, wanted, setup = folder.load_config(), to_mapping(recipe), read_record(folder, step).get("setup")
    if not isinstance(setup, Mapping) or not _plays_the_same(
        config, wanted, [key for key in played if not key.startswith("eval.")]
    ):
        return False
    if any(setup.get(key) != value_at(wanted, f"eval.{key}") for key in ("samples_per_task", "seed", "greedy")):
        return False
    num = setup.get("num_tasks")
    if not isinstance(num, int) or num >= recipe.eval.tasks:
        return num == recipe.eval.tasks or not exactly
    is_end = step in (0, folder.load_comparison().get("steps"))
    return is_end and value_at(config, "eval.tasks") == recipe.eval.tasks  # the split has no more


def _plays_the_same(config: Mapping[str, object], wanted: Mapping[str, object], played: Sequence[str]) -> bool:
    config = {"agent": {"name": "chat"}, **config}  # of a version without other agents
    return all(value_at(config, key) == value_at(wanted, key) for key in played)
