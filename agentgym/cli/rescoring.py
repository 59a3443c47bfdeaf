"""Saved episodes scored again: which rewards do it, and the evaluation that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import full_weights, given_weights
from agentgym.cli.trust import trusted
from agentgym.commands.shell import Shell
from agentgym.commands.stopping import run_until_stopped
from agentgym.runs.evaluations import EvaluationFiles, read_record
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.notes import write_note
from agentgym.runs.own import mark_run
from agentgym.runs.records import SavedEpisode
from agentgym.types import Episode, Json
from agentgym.yaml import value_at

if TYPE_CHECKING:
    from agentgym.evals.compare import Saved
    from agentgym.evals.play import EvalResult
    from agentgym.evals.rescore import Rescored
    from agentgym.rollout.scoring import Scorer


def scorer_of(
    folder: RunFolder, given: Sequence[str] | None, shell: Shell, *, trust: bool
) -> tuple[Scorer, dict[str, float]]:
    """A scorer of the environment that the folder's recipe names, as it is installed now, and the rewards' weights as a
    recipe has them.

    given: words of --reward; None takes the recipe's.
    """
    from agentgym.env import default_weights
    from agentgym.recipe import build_recipe
    from agentgym.rollout.environments import build_environment
    from agentgym.rollout.scoring import Scorer

    config = folder.load_config()
    trusted(folder.path, config, trust=trust, shell=shell)
    recipe = build_recipe(config, str(folder.path), shell.plugins)
    registry = shell.plugins(recipe.plugins.disabled)
    environment = build_environment(registry, recipe.env.name, recipe.env.options)
    found = full_weights(given_weights(given), environment, registry)
    weights = found or dict(recipe.rewards) or default_weights(environment)
    return Scorer.of(environment, registry, weights), weights


def score_again(
    saved: Sequence[SavedEpisode],
    scorer: Scorer,
    shell: JobShell,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    evaluation: bool,
) -> list[Rescored]:
    """Runs `agentgym.evals.rescore.rescore` to its end, and closes the scorer."""
    from agentgym.evals.rescore import rescore

    async def job() -> list[Rescored]:
        async with scorer:
            return await rescore(saved, scorer, progress, evaluation=evaluation)

    return run_until_stopped(job(), shell.warn)


def scored_by(side: Saved, given: Sequence[str], shell: JobShell, *, trust: bool) -> Saved:
    """The side as these rewards score it; its folder is left as it is. Raises UserError."""
    from agentgym.evals.compare import Saved
    from agentgym.evals.rescore import as_evaluation

    scorer, weights = scorer_of(side.folder, given, shell, trust=trust)
    config: Mapping[str, object] = {**side.config, "rewards": weights}
    saved = [*side.folder.read_episodes(side.step, evaluation=True)]
    scored = score_again(saved, scorer, shell, evaluation=True)
    rows, result = as_evaluation(saved, scored, side.result)
    episodes = [episode for row in rows for episode in row]
    return Saved.of(
        episodes, side.setup, result, folder=side.folder, step=side.step, name=side.name, config=config
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredEvaluation:
    """A finished evaluation as it was saved, and as other rewards score it. rows: its episodes, by task."""

    step: int
    before: EvalResult
    after: EvalResult
    rows: list[list[Episode]]


def rescored_evaluations(folder: RunFolder, scored: Sequence[Rescored], saved: Sequence[SavedEpisode]
                         ) -> list[RescoredEvaluation]:  # fmt: skip
    """Of the steps that the episodes are of; one that is not finished is left out."""
    from agentgym.evals.play import EvalResult
    from agentgym.evals.rescore import as_evaluation

    found = []
    for step in sorted({one.step for one in saved}):
        result = read_record(folder, step).get("result")
        if isinstance(result, Mapping):
            before = EvalResult.from_mapping(result)
            own = [one for one in saved if one.step == step]
            rows, after = as_evaluation(own, [one for one in scored if one.saved.step == step], before)
            found.append(RescoredEvaluation(step=step, before=before, after=after, rows=rows))
    return found


def save_rescored(
    folder: RunFolder, evaluations: Sequence[RescoredEvaluation], weights: Mapping[str, float], name: str
) -> Path:
    """Save them as evaluations in a new folder, beside those of the folder that they are from.

    name: of the folder; empty makes one of the rewards' names. Raises UserError for a name that is taken.
    """
    from agentgym.evals.play import EvalSetup

    config = folder.load_config()
    where = folder.path.parent if folder.only_evaluates else Path(str(value_at(config, "logging.evals_dir") or "evals"))
    rewards = "+".join(key.rpartition(":")[2] for key in weights)
    with RunFolder.create(where, name or f"{folder.name}-rescored-{rewards}", numbered=not name) as made:
        made.save_config({**config, "rewards": dict(weights)}, folder.load_sources() | {"rewards": "runs rescore"})
        mark_run(made.path)
        for one in evaluations:
            record = read_record(folder, one.step)
            setup = cast("Mapping[str, Json]", record["setup"])
            files = EvaluationFiles(made, one.step, str(record.get("weights") or ""))
            files.begin(setup, resume=False)
            files.save_episodes(one.rows, EvalSetup.from_mapping(setup).numbers)
            files.save_result(setup, one.after.to_mapping())
        write_note(made.path, step=None, text=f"{folder.path}, scored again", add=(), remove=())
        made.set_status(RunStatus.DONE)
    return made.path
