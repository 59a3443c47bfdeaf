"""The part of an evaluation that all policies share: what is played, what is saved, what is counted."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from agentgym.evals.play import EvalResult, EvalSetup, cut_line, play_eval, summarize
from agentgym.policies.by_messages import usage_of
from agentgym.policies.outside.config import PolicyConfig
from agentgym.rollout.agent_faults import agent_faults
from agentgym.rollout.player import Player
from agentgym.rollout.tasks import held_out_tasks
from agentgym.run.gym import Gym
from agentgym.run.metrics import counts_since
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
    config = gym.settled.recipe.eval
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

    with gym.activity.doing("evaluate"):
        rows = await play_eval(player, tasks, setup, known=known, ended=ended, scores_cuts=config.scores_cuts)
    files.save_episodes(rows)
    if faults := agent_faults([episode for row in rows for episode in row]):
        reporter.note(faults)
    result = summarize(rows, name)
    if cut := cut_line(result):
        reporter.note(cut)
    if gym.backend is not None:
        metrics = gym.sandbox_metrics()
        metrics |= counts_since(metrics, {})
        result = replace(result, sandbox=gym.backend.name, sandbox_metrics=metrics)
    result = with_usage(result, rows, gym.settled.recipe.policy, known)
    files.save_result(setup.to_mapping(), result.to_mapping())
    return result


def with_usage(
    result: EvalResult, rows: Sequence[Sequence[Episode]], policy: PolicyConfig, known: Container[str]
) -> EvalResult:
    """Adds what its episodes used of a server; unchanged if none was called. known: ids of those played before."""
    total: dict[str, float] = {}
    for episode in (episode for row in rows for episode in row):
        for name, value in usage_of(episode, kept=episode.episode_id in known).items():
            total[name] = total.get(name, 0) + value
    if not total:
        return result
    paid = {name.removeprefix("paid_"): value for name, value in total.items() if name.startswith("paid_")}
    total |= {"cost": policy.cost(total), "paid_cost": policy.cost(paid)}
    return replace(result, usage=total, currency=policy.currency)
