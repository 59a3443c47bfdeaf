"""The two sides of a comparison: evaluations that are saved, and what has to be played for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.cli.evaluating import Policy, find_policy
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.models.resolve import local_folder, weights_mark
from agentgym.recipe import Recipe
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder, RunStatus, runs_in

if TYPE_CHECKING:
    from agentgym.evals.compare import Saved

PLAYED = ("env", "rewards", "rollout", "model.chat_template", "eval.tasks", "eval.samples_per_task", "eval.seed",
          "eval.greedy")  # fmt: skip
"""The sections and fields of a recipe that decide what an evaluation plays, and how."""


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
    if not (path / "status.json").is_file() or (folder := RunFolder.open(path)).checkpoint_steps():
        policy = find_policy(given)
        local_folder(policy.path)  # raises for a path where nothing is
        return Side(given=given, policy=policy)
    steps = folder.episode_steps(evaluation=True)
    saved = Saved.load(folder, steps[-1], given) if steps else None
    if saved is None:
        raise UserError(f"{given!r} has no finished evaluation; continue it: agentgym eval --resume {given}")
    return Side(given=given, policy=None, saved=saved)


def with_saved(side: Side, recipe: Recipe) -> Side:
    """The side with an evaluation that played what the recipe says, if one is finished: the run's own, or another."""
    from agentgym.evals.compare import Saved

    assert side.policy is not None
    for folder in _candidates(side.policy, recipe):
        saved = Saved.load(folder, side.policy.step, side.given)
        if saved is not None:
            return replace(side, saved=saved)
    return side


def unfinished(policy: Policy, recipe: Recipe) -> RunFolder | None:
    """The folder of an evaluation of the same that was interrupted."""
    stopped = (RunStatus.INTERRUPTED, RunStatus.FAILED, RunStatus.LOST)
    folders = (f for f in _candidates(policy, recipe) if not f.checkpoint_steps() and f.status().status in stopped)
    return next(folders, None)


def _candidates(policy: Policy, recipe: Recipe) -> Iterator[RunFolder]:
    """Folders with an evaluation of the policy, finished or not, that plays what the recipe says."""
    wanted = to_mapping(recipe)
    model = local_folder(policy.path)
    if policy.run_dir is not None:
        folder = RunFolder.open(policy.run_dir)
        ends = (0, folder.load_comparison().get("steps"))  # those between the ends play loop.eval_tasks
        if _plays_the_same(folder.load_config(), wanted) and (
            policy.step in ends or _num_tasks(folder, policy.step) == recipe.eval.tasks
        ):
            yield folder
    evals = Path(recipe.logging.evals_dir)
    for name in reversed(runs_in(evals)):
        folder = RunFolder.open(evals / name)
        config, record = folder.load_config(), read_record(folder, policy.step)
        same = _plays_the_same(config, wanted) and _field(config, "model.path") == policy.path
        if same and record and (model is None or record.get("weights") == weights_mark(model)):
            yield folder


def _num_tasks(folder: RunFolder, step: int) -> object:
    setup = read_record(folder, step).get("setup")
    return setup.get("num_tasks") if isinstance(setup, Mapping) else None


def _plays_the_same(config: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    return all(_field(config, key) == _field(wanted, key) for key in PLAYED)


def _field(config: Mapping[str, object], key: str) -> object:
    value: object = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
