"""Evaluations: play a checkpoint, a Hugging Face folder or a served model on held-out tasks, and save the episodes."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.evals.play import (
    EvalResult,
    EvalSetup,
    broken_line,
    cut_line,
    eval_episode,
    eval_seed,
    play_eval,
    summarize,
    task_digest,
)
from agentgym.models.resolve import weights_mark
from agentgym.policies.by_messages import MessagePlayer
from agentgym.policies.outside.cache import AnswerCache
from agentgym.policies.outside.config import PolicyConfig, served_name
from agentgym.policies.outside.openai_server import OpenAIServer
from agentgym.policies.outside.policy import ServedPolicy
from agentgym.policies.outside.prices import Prices, prices_of
from agentgym.recipe import ModelConfig
from agentgym.rollout.agent_faults import agent_faults, dropped_fields, dropped_line
from agentgym.rollout.garbage import swept
from agentgym.rollout.player import Player
from agentgym.rollout.tasks import HeldOut, held_out_tasks
from agentgym.run.engines import started_generators
from agentgym.run.forecast import PlayedForecast
from agentgym.run.gym import Gym
from agentgym.run.metrics import counts_since
from agentgym.run.settle import Settled
from agentgym.run.sinks import Sinks, open_sinks
from agentgym.run.watchdog import watched
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.runs.usage import usage_of
from agentgym.sinks import StepEpisodes
from agentgym.types import Episode, Group, Task


async def evaluate(
    settled: Settled,
    folder: RunFolder,
    reporter: Reporter,
    *,
    step: int = 0,
    name: str = "",
    resume: bool = False,
    sinks: Sinks | None = None,
) -> EvalResult:
    """Success of the model on the first `eval.tasks` held-out tasks, each played `eval.samples_per_task` times.

    step: of the weights, under which the folder has the episodes. name: of the policy in the result. resume: an
    interrupted evaluation of these weights is continued. sinks: of the run; else those that get episodes are opened.
    """
    async with AsyncExitStack() as stack:
        gym = await Gym.open(settled, reporter, training=False)
        stack.push_async_callback(gym.close)
        gym.record_sandbox(folder)
        await stack.enter_async_context(swept())
        await stack.enter_async_context(watched(gym.activity, logs=folder.path / "logs"))
        opening = open_sinks(settled, folder.path, for_episodes=True)
        getting = await stack.enter_async_context(opening) if sinks is None else sinks
        generators = started_generators(
            settled, reporter, name=folder.name, log_dir=folder.path / "logs", activity=gym.activity
        )
        generator = await stack.enter_async_context(generators)
        return await measure(
            gym,
            gym.player(generator),
            folder,
            reporter,
            getting,
            step=step,
            name=name or settled.recipe.model.path,
            weights=weights_mark(settled.model),
            resume=resume,
        )


CACHE = ".answers"


async def evaluate_served(
    settled: Settled, folder: RunFolder, reporter: Reporter, *, name: str = "", resume: bool = False
) -> EvalResult:
    """Evaluates a `model.path` that begins with `openai:`, as `evaluate` does."""
    recipe = settled.recipe
    async with AsyncExitStack() as stack:
        kept = answers_folder(recipe.policy, folder.path, recipe.logging.evals_dir)
        policy = open_policy(
            recipe.model, recipe.policy, AnswerCache(kept, recipe.policy.url, by=folder.name), reporter
        )
        stack.push_async_callback(policy.server.close)
        reporter.phase(f"asking {recipe.policy.url}")
        reporter.note(await policy.check())
        gym = await Gym.open(settled, reporter, training=False)
        stack.push_async_callback(gym.close)
        gym.record_sandbox(folder)
        await stack.enter_async_context(watched(gym.activity))
        player = MessagePlayer(
            environment=gym.environment,
            scorer=gym.scorer,
            config=recipe.rollout,
            sandbox=gym.sandbox,
            activity=gym.activity,
            policy=policy,
        )
        sinks = await stack.enter_async_context(open_sinks(settled, folder.path, for_episodes=True))
        shown = name or recipe.model.path
        result = await measure(gym, player, folder, reporter, sinks, step=0, name=shown, resume=resume)
        for line in report(policy, result):
            reporter.note(line)
        return result


async def check_server(settled: Settled, reporter: Reporter) -> str:
    """Ask the recipe's server for its models, and its model for a few tokens. Raises UserError, InfraError."""
    recipe = settled.recipe
    policy = open_policy(recipe.model, recipe.policy, AnswerCache(None, recipe.policy.url), reporter)
    try:
        return await policy.check(ask=True, max_tokens=recipe.rollout.max_turn_tokens)
    finally:
        await policy.server.close()


def open_policy(given: ModelConfig, config: PolicyConfig, cache: AnswerCache, reporter: Reporter) -> ServedPolicy:
    """Contacts nothing. Raises UserError for a key or package that is missing."""
    model = served_name(given.path)
    assert model is not None
    if not model:
        raise UserError("the model 'openai:' has no name; give one that the server has, as in openai:qwen3-8b")
    variable = config.key_variable
    key = os.environ.get(variable, "") if variable else ""
    if variable and not key:
        raise UserError(
            f"the environment variable {variable} is empty or not set; put the key for {config.url} into it, or name "
            "another one with --api-key-env NAME. Another server than OpenAI's is given with --base-url URL"
        )
    server = OpenAIServer(config.url, key, key_variable=variable, timeout_s=config.timeout_s)
    return ServedPolicy(model=model, config=config, server=server, cache=cache, say=reporter.note)


def answers_folder(config: PolicyConfig, evaluation: Path, evals_dir: str) -> Path | None:
    """Where answers are kept. A server in this network may hold another model tomorrow, at the same address."""
    if config.cache == "off":
        return None
    if config.cache != "auto":
        return Path(config.cache)
    return evaluation / "answers" if config.is_near else Path(evals_dir) / CACHE


def report(policy: ServedPolicy, result: EvalResult) -> list[str]:
    """What asking took, where something is worth a word."""
    counts = policy.counts
    lines = []
    if counts["retries"] or counts["lost"]:
        lines.append(f"{counts['retries']} requests were sent again, {counts['lost']} had no answer in the end")
    if result.usage.get("turns_estimated"):
        lines.append("the server does not count tokens: those of the table are estimated from characters")
    return lines


NUM_REPORTS = 10  # of progress, in one evaluation


async def measure(
    gym: Gym,
    player: Player,
    folder: RunFolder,
    reporter: Reporter,
    sinks: Sinks,
    *,
    step: int,
    name: str,
    num_tasks: int | None = None,
    weights: str = "",
    resume: bool = False,
    forecast: PlayedForecast | None = None,
) -> EvalResult:
    """Play with a policy as it is now.

    num_tasks: instead of eval.tasks. weights: what identifies them, if a file holds them. forecast: learns from what
    is played how long the run will take. The rest: see `evaluate`.
    """
    config = gym.settled.recipe.eval
    tasks = held_out_tasks(gym.environment, num_tasks or config.tasks)
    while await gym.make_images(tasks, reporter):  # others take the place of those that are left out
        tasks = held_out_tasks(gym.environment, num_tasks or config.tasks)
    held_out = HeldOut.of(gym.environment, num_tasks or config.tasks, len(tasks))
    setup = EvalSetup.of(
        gym.environment,
        tasks,
        samples_per_task=config.samples_per_task,
        seed=config.seed,
        greedy=config.greedy,
        shard=config.shard,
    )
    if not setup.numbers:
        raise UserError(f"the shard {config.shard} has no task: only {len(tasks)} are played; give fewer shards")
    gym.expect(tasks[number] for number in setup.numbers)
    files = EvaluationFiles(folder, step, weights)
    known = the_same(files.begin(setup.to_mapping(), resume=resume), tasks, setup)
    total = len(setup.numbers) * config.samples_per_task
    done = len(known)
    of_all = f" (shard {config.shard} of {len(tasks)})" if config.shard else ""
    reporter.phase(
        f"measuring {name} on {len(setup.numbers)} held-out tasks{of_all}, {config.samples_per_task} times each"
    )
    if known:
        reporter.note(f"{len(known)} of {total} episodes were played before")

    def ended(number: int, sample: int, episode: Episode) -> None:
        nonlocal done
        files.add(number, sample, episode)
        done += 1
        if forecast is not None:
            forecast.add(episode)
        if done * NUM_REPORTS // total > (done - 1) * NUM_REPORTS // total and done < total:
            reporter.phase(f"{done} of {total} episodes played")  # no success: short episodes end first

    if forecast is not None:
        forecast.begin(total - done, evaluating=True)
    with gym.activity.doing("evaluate"):
        rows = await play_eval(player, tasks, setup, known=known, ended=ended, scores_cuts=config.scores_cuts)
    files.save_episodes(rows, setup.numbers)
    numbered = list(zip(setup.numbers, rows, strict=True))
    sinks.log_episodes(lambda: StepEpisodes(step=step, source="eval", groups=[_group(step, *one) for one in numbered]))
    played = [episode for row in rows for episode in row]
    for line in (agent_faults(played), dropped_line(dropped_fields(played)), broken_line(played)):
        if line:
            reporter.note(line)
    if held_out.warning and held_out.warning not in gym.noted:
        gym.noted.add(held_out.warning)
        reporter.note(held_out.warning)
    result = replace(summarize(rows, name), num_asked=held_out.missing and held_out.asked, split_note=held_out.note)
    if cut := cut_line(result):
        reporter.note(cut)
    if gym.backend is not None:
        metrics = gym.sandbox_metrics()
        metrics |= counts_since(metrics, {})
        result = replace(result, sandbox=gym.backend.name, sandbox_metrics=metrics)
    result = with_usage(result, rows, prices_of(to_mapping(gym.settled.recipe), folder.path), known)
    files.save_result(setup.to_mapping(), result.to_mapping())
    return result


def _group(step: int, number: int, episodes: Sequence[Episode]) -> Group:
    nobody: list[float | None] = [None] * len(episodes)
    return Group(group_id=number, task=episodes[0].task, start_version=step, episodes=[*episodes], advantages=nobody)


def the_same(known: Mapping[str, Episode], tasks: Sequence[Task], setup: EvalSetup) -> dict[str, Episode]:
    """The episodes that a setup would play again, of those that were played before."""
    plan = {
        eval_episode(number, sample): (tasks[number], eval_seed(setup, number, sample))
        for number in setup.numbers
        for sample in range(setup.samples_per_task)
    }
    return {
        name: episode
        for name, episode in known.items()
        if name in plan and episode.seed == plan[name][1] and task_digest(episode.task) == task_digest(plan[name][0])
    }


def with_usage(
    result: EvalResult, rows: Sequence[Sequence[Episode]], prices: Prices | None, known: Container[str]
) -> EvalResult:
    """Adds what its episodes used of a server; unchanged if none was called. known: ids of those played before."""
    total: dict[str, float] = {}
    for episode in (episode for row in rows for episode in row):
        for name, value in usage_of(episode.info, kept=episode.episode_id in known).items():
            total[name] = total.get(name, 0) + value
    if not total:
        return result
    return replace(result, usage=total).priced(prices)
