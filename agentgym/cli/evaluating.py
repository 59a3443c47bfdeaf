"""An evaluation in a folder of its own: what is measured, and the record of how it went."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from agentgym.cli.logs import warnings_to
from agentgym.cli.recipes import Finished, finish, read_recipe
from agentgym.cli.recording import Drive, default_name, recorded
from agentgym.cli.trust import trusted
from agentgym.commands.shell import Shell
from agentgym.commands.text import few
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.models.resolve import check_local
from agentgym.policies.outside.config import PREFIX, PolicyConfig, served_name
from agentgym.recipe import Recipe, without_sft
from agentgym.rollout.tasks import HeldOut
from agentgym.runs.folder import RunFolder, RunStatus, StatusRecord
from agentgym.runs.report import Reporter
from agentgym.yaml import read_yaml

if TYPE_CHECKING:
    from agentgym.cli.jobs import Jobs
    from agentgym.evals.play import EvalResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What can be measured. run_dir: of the run that made it, if one did."""

    path: str
    run_dir: Path | None

    @property
    def step(self) -> int:
        """The step of the weights; 0 if no run made them."""
        found = re.fullmatch(r"step-(\d+)", Path(self.path).name)
        return int(found[1]) if found and self.run_dir is not None else 0

    @property
    def name(self) -> str:
        """The name of a folder: its run and step, or the last part of its path."""
        last = Path(self.path).name if self.run_dir is None else f"{self.run_dir.resolve().name}-step-{self.step:06d}"
        return re.sub(r"[^\w.+=-]", "-", last.removeprefix("builtin:").removeprefix(PREFIX)).lstrip("-._=+") or "model"


def find_policy(given: str) -> Policy:
    """A run's last checkpoint for a run, else what is given. Raises UserError for a run without checkpoints."""
    path = Path(given)
    if (path / "status.json").is_file():
        folder = RunFolder.open(path)
        steps = folder.checkpoint_steps()
        if not steps:
            raise UserError(f"run {given!r} has no checkpoint yet")
        return Policy(path=str(folder.checkpoint_dir(steps[-1])), run_dir=path)
    for parent in path.absolute().parents:
        if (parent / "status.json").is_file() and (parent / "config.yaml").is_file():
            place = path.parent if path.name == "hf" else path  # a checkpoint's weights are in its `hf`
            if place.absolute().parent == parent / "checkpoints" and not re.fullmatch(r"step-\d+", place.name):
                _refuse_unnamed(given, parent)
            if path.absolute() == parent / "checkpoints":
                _refuse_unnamed(given, parent)
            return Policy(path=str(place) if place.is_dir() else given, run_dir=parent)
    return Policy(path=given, run_dir=None)


def _refuse_unnamed(given: str, run: Path) -> NoReturn:
    names = [f"step-{step:06d}" for step in RunFolder.open(run).checkpoint_steps()]
    raise UserError(
        f"{given!r} does not name the step of a checkpoint; this run has {few(names) or 'none yet'}. Give one of those "
        "folders, the run for its last, or the run and --every-checkpoint; a folder of another name can be measured "
        "outside of the run"
    )


def base_recipe(
    recipe: str | None, run_dir: Path | None, *, trust: bool, shell: Shell | None = None
) -> tuple[dict[str, object], str]:
    """The mapping of a recipe file, else of the run's own config, and what to call it in errors.

    trust, shell: as `trusted` takes them.
    """
    if recipe is None and run_dir is not None:
        config = run_dir / "config.yaml"
        settings = read_yaml(config)
        trusted(run_dir, settings, trust=trust, shell=shell)
        return without_sft(settings), str(config)
    return read_recipe(recipe)


def check_playable(finished: Finished, *, count: bool = False) -> HeldOut:
    """How many tasks would be played. Starts nothing, and raises UserError for what the model can't play.

    count: draw all of them, to know how many there are.
    """
    from agentgym.data_sets import OutOfReach
    from agentgym.run.gym import refuse_long_prompts

    recipe, _, registry = finished
    here = served_name(recipe.model.path) is None
    if here:
        check_local(recipe.model.path)
    try:
        return refuse_long_prompts(recipe, registry, training=False, here=here, count=count)
    except OutOfReach:
        return HeldOut(asked=recipe.eval.tasks)


def finish_for(
    policy: Policy, flags: Mapping[str, object], arguments: argparse.Namespace, shell: Shell, *, served: bool = False
) -> Finished:
    """The recipe of a command that opens one policy: what it was trained with, or --recipe, with the flags."""
    base, where = base_recipe(arguments.recipe, policy.run_dir, trust=arguments.trust, shell=shell)
    own = {"model.path": policy.path, "model.random_weights": False, "env.name": arguments.env}
    return finish(base, {**own, **flags}, arguments, where, shell, served=served)


def new_name(policy: Policy, recipe: Recipe) -> str:
    """A new folder's name: policy, environment, date and time."""
    shard = f"-{recipe.eval.shard.replace('/', 'of')}" if recipe.eval.shard else ""
    return f"{policy.name}-{default_name(recipe)}{shard}"


def server_lines(config: PolicyConfig) -> list[str]:
    """The lines of a plan about a served policy: its address, how it is called and the cost."""
    limits = [
        f"{limit} {what} a minute"
        for limit, what in ((config.requests_per_minute, "requests"), (config.tokens_per_minute, "tokens"))
        if limit
    ]
    key = f"the key in {config.key_variable}" if config.key_variable else "no key"
    lines = [
        f"server       {config.url}, {key}",
        f"asked        {', '.join([f'{config.concurrency} requests at once', *limits])}",
        f"answers      kept: {config.cache}",
    ]
    if config.price_prompt or config.price_completion:
        lines.append(
            f"prices       {config.price_prompt:g} {config.currency} a million tokens of prompts, "
            f"{config.price_completion:g} of completions"
        )
    return lines


def run_evaluation(
    recipe: Recipe,
    sources: Mapping[str, str],
    folder: RunFolder,
    registry: PluginRegistry,
    reporter: Reporter,
    jobs: Jobs,
    drive: Drive[EvalResult],
    *,
    before: StatusRecord | None = None,
) -> EvalResult:
    """Measure recipe.model; whatever ends it is raised and recorded.

    before: the status of the evaluation that is resumed. A new one that is refused leaves no folder.
    """
    with recorded(to_mapping(recipe), sources, folder, before), warnings_to(reporter.note):
        step, resume = find_policy(recipe.model.path).step, before is not None
        job = jobs.evaluate(recipe, folder, reporter, step=step, resume=resume, registry=registry)
        result = drive(job, reporter.note)
        folder.set_status(RunStatus.DONE)
        return result
