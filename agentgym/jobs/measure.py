"""The part of an evaluation that all policies share: what is played, what is saved, what is counted."""

from __future__ import annotations

from dataclasses import replace

from agentgym.evals.play import EvalResult, EvalSetup, play_eval, summarize
from agentgym.jobs.gym import Gym
from agentgym.jobs.metrics import counts_since
from agentgym.rollout.player import Player
from agentgym.rollout.tasks import held_out_tasks
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.types import Episode

NUM_REPORTS = 10  # of progress, in one evaluation


async def measure(
    gym: Gym,
    player: Player,
    folder: RunFolder,
    reporter: Reporter,
    *,
    step: int,
    name: str,
    num_tasks: int | None = None,
    weights: str = "",
    resume: bool = False,
) -> EvalResult:
    """Play with a policy as it is now.

    num_tasks: instead of eval.tasks. weights: what identifies them, if a file holds them. The rest: see
    `evaluate.evaluate`.
    """
    config = gym.recipe.eval
    tasks = held_out_tasks(gym.environment, num_tasks or config.tasks)
    setup = EvalSetup.of(
        gym.environment, tasks, samples_per_task=config.samples_per_task, seed=config.seed, greedy=config.greedy
    )
    files = EvaluationFiles(folder, step, weights)
    known = files.begin(setup.to_mapping(), resume=resume)
    total = len(tasks) * config.samples_per_task
    done = len(known)
    reporter.phase(f"measuring {name} on {len(tasks)} held-out tasks, {config.samples_per_task} times each")
    if known:
        reporter.note(f"{len(known)} of {total} episodes were played before")

    def ended(number: int, sample: int, episode: Episode) -> None:
        nonlocal done
        files.add(number, sample, episode)
        done += 1
        if done * NUM_REPORTS // total > (done - 1) * NUM_REPORTS // total and done < total:
            reporter.phase(f"{done} of {total} episodes played")  # no success: short episodes end first

    rows = await play_eval(player, tasks, setup, known=known, ended=ended)
    files.save_episodes(rows)
    result = summarize(rows, name)
    if gym.backend is not None:
        metrics = gym.sandbox_metrics()
        metrics |= counts_since(metrics, {})
        result = replace(result, sandbox=gym.backend.name, sandbox_metrics=metrics)
    files.save_result(setup.to_mapping(), result.to_mapping())
    return result
