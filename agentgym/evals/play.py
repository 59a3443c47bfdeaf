"""Measures a policy: plays held-out tasks with fixed seeds and counts successes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias, cast

from agentgym.env import Environment
from agentgym.errors import InfraError
from agentgym.evals.measures import (
    Measured,
    TaskFigures,
    environment_measures,
    read_measured,
    success_by_category,
    task_figures,
)
from agentgym.evals.shard import Shard
from agentgym.evals.statistics import (
    PairedDifference,
    TaskScores,
    mean_interval,
    paired_difference,
    pass_at_k,
    success_interval,
    success_share,
    unrecorded,
)
from agentgym.policies.outside.prices import Prices, with_cost
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.player import Player
from agentgym.runs.records import pack
from agentgym.types import COUNTED_APART, Episode, ErrorRecord, Json, Outcome, Task

Measure: TypeAlias = Literal["success", "reward"]
NUM_FIRST = 8  # episodes in the order of the tasks, so that those which break soon are not the only ones counted


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSetup:
    """What an evaluation plays. Two policies with equal setups play the same tasks with the same seeds.

    version: the environment's. data_hash: of all tasks, with their prompts and answers. greedy: the likeliest
    token is taken. shard: the part of the tasks that is played, see `Shard`; empty is all.
    """

    environment: str
    version: int
    data_hash: str
    num_tasks: int
    samples_per_task: int
    seed: int
    greedy: bool
    shard: str = ""

    @classmethod
    def of(cls, environment: Environment[Any], tasks: Sequence[Task], *, samples_per_task: int, seed: int,
           greedy: bool, shard: str = "") -> Self:  # fmt: skip
        return cls(
            environment=environment.name,
            version=environment.version,
            data_hash=digest("".join(map(task_digest, tasks))),
            num_tasks=len(tasks),
            samples_per_task=samples_per_task,
            seed=seed,
            greedy=greedy,
            shard=shard,
        )

    @property
    def numbers(self) -> range:
        """The numbers of the tasks that are played."""
        return Shard.read(self.shard).tasks(self.num_tasks)

    def to_mapping(self) -> dict[str, Json]:
        found = asdict(self)
        return found if self.shard else {key: value for key, value in found.items() if key != "shard"}

    @classmethod
    def from_mapping(cls, saved: Mapping[str, Json]) -> Self:
        """The inverse. Raises TypeError for what another version wrote."""
        return cls(**saved)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtK:
    """The share of tasks that at least one of k samples solves, with its 95% interval. difficulty: None is all."""

    k: int
    difficulty: int | None
    value: float
    low: float
    high: float
    num_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """success: see `success_share`; [low, high]: its 95% interval; None where all were cut, or no success is known.
    by_task: successes of each task, None for an episode that could not be counted; so are rewards, in reward_by_task.
    num_cut: episodes that a limit of wall time ended, and cut_by: the limit that ended the most, as
    "rollout.generate_timeout_s = 60". pass_at: over all tasks, then by difficulty. by_category: success, where
    the tasks have several; measures: what the environment measures beside success; tasks: each one's own figures.
    sandbox: what ran the code, where some was run, and its metrics at the end. usage: of a policy behind a server,
    what all episodes took: requests, tokens, and where prices are known `cost` and `paid_cost` in `currency`, see
    `usage_of` and `with_cost`. num_asked: eval.tasks where the split has fewer tasks, else 0. split_note: what the
    environment says of its split, as `split_note` gives it."""

    checkpoint: str
    success: float | None
    low: float | None
    high: float | None
    reward_mean: float | None
    num_tasks: int
    num_episodes: int
    num_unsupported: int
    num_too_long: int = 0  # prompts that left no token of rollout.max_episode_tokens
    num_infra_errors: int
    num_cut: int = 0
    cut_by: str = ""
    by_task: tuple[tuple[bool | None, ...], ...]
    reward_low: float | None = None
    reward_high: float | None = None
    reward_by_task: tuple[tuple[float | None, ...], ...] = ()
    pass_at: tuple[PassAtK, ...] = ()
    by_category: tuple[Measured, ...] = ()
    measures: tuple[Measured, ...] = ()
    tasks: tuple[TaskFigures, ...] = ()
    sandbox: str = ""
    sandbox_metrics: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    currency: str = ""
    num_asked: int = 0
    split_note: str = ""

    @property
    def shown(self) -> str:
        """Success for a person."""
        if self.success is not None:
            return f"{self.success:.3f}"
        if not self.num_episodes:
            return "not measured, all cut by time"
        return "unknown" + (f" (reward {self.reward_mean:.3f})" if self.reward_mean is not None else "")

    @property
    def measure(self) -> Measure:
        """What evaluations like this one are compared by."""
        return "reward" if self.success is None and self.reward_mean is not None else "success"

    def priced(self, prices: Prices | None) -> Self:
        """With the cost of its tokens by these prices, and by no others."""
        return replace(self, usage=with_cost(self.usage, prices), currency=prices.currency if prices else "")

    def beside(self, first: EvalResult) -> tuple[TaskScores, TaskScores]:
        """The scores of `first` and of this one, of tasks and samples that both played (a prefix)."""
        both = [one.by_task if self.measure == "success" else one.reward_by_task for one in (first, self)]
        pairs = [(a[: len(b)], b[: len(a)]) for a, b in zip(*both, strict=False)]
        return [a for a, _ in pairs], [b for _, b in pairs]

    def difference_from(self, first: EvalResult) -> PairedDifference:
        """The change of `measure`, paired by task. Raises ValueError where fewer than two tasks are in both."""
        return paired_difference(*self.beside(first), shares=self.measure == "success")

    def to_mapping(self) -> dict[str, Json]:
        return cast("dict[str, Json]", asdict(self))

    @classmethod
    def from_mapping(cls, saved: Mapping[str, Json]) -> Self:
        """The inverse. Raises TypeError or KeyError for what another version wrote."""
        rows = cast("list[list[bool | None]]", saved["by_task"])
        shares = cast("list[dict[str, Any]]", saved["pass_at"])
        rewards = cast("list[list[float | None]]", saved.get("reward_by_task", ()))  # older ones have none
        read = {
            "by_task": tuple(map(tuple, rows)),
            "reward_by_task": tuple(map(tuple, rewards)),
            "pass_at": tuple(PassAtK(**one) for one in shares),
            "by_category": read_measured(saved.get("by_category", ())),  # older ones have none
            "measures": read_measured(saved.get("measures", ())),
            "tasks": tuple(TaskFigures(**one) for one in cast("list[dict[str, Any]]", saved.get("tasks", ()))),
        }
        return cls(**{**saved, **read})  # type: ignore[arg-type]


async def play_eval(
    player: Player,
    tasks: Sequence[Task],
    setup: EvalSetup,
    *,
    known: Mapping[str, Episode],
    ended: Callable[[int, int, Episode], None],
    scores_cuts: bool = False,
) -> list[list[Episode]]:
    """One row of episodes for each task of the setup's shard.

    The same tasks and seed give the same prompts and sampling seeds, whatever the policy. known: episodes by id
    that were played before. ended: is called with every other one, with the numbers of its task and sample.
    scores_cuts: what a limit of wall time ended is scored like the rest; otherwise it is left out.
    Raises InfraError once each of the first episodes broke: an environment that never works is not played to the end.
    """
    player = replace(player, greedy=setup.greedy)
    broken = 0

    async def play(number: int, sample: int) -> Episode:
        episode_id = eval_episode(number, sample)
        if episode_id in known:
            return known[episode_id]
        seed = eval_seed(setup, number, sample)
        episode = await player.play(tasks[number], episode_id=episode_id, seed=seed)
        if not scores_cuts:
            _leave_out_cut(episode)
        ended(number, sample, episode)
        if (
            setup.numbers.index(number) * setup.samples_per_task + sample < NUM_FIRST
            and episode.outcome is Outcome.INFRA_ERROR
        ):
            nonlocal broken
            broken += episode.error is not None and episode.error.kind not in COUNTED_APART
            if broken == NUM_FIRST:
                raise InfraError(f"each of the first {NUM_FIRST} episodes broke; the last error: {episode.error}")
        return episode

    async with asyncio.TaskGroup() as playing:
        plays = [
            [playing.create_task(play(number, sample)) for sample in range(setup.samples_per_task)]
            for number in setup.numbers
        ]
    return [[one.result() for one in row] for row in plays]


def eval_episode(number: int, sample: int) -> str:
    """The id of an episode, by the numbers of its task and sample."""
    return f"eval-{number:04d}-{sample:02d}"


def eval_seed(setup: EvalSetup, number: int, sample: int) -> int:
    return derive_seed("eval", setup.seed, number, sample)


def _leave_out_cut(episode: Episode) -> None:
    """What the policy did is scored; that the machine was too slow for it is not."""
    broken = episode.error is not None and episode.error.source != "episode"
    if episode.time_limit and not broken:
        message = f"{episode.time_limit} s of wall time were over before the policy had finished"
        if episode.error is not None:
            message = episode.error.message
        episode.outcome, episode.reward = Outcome.INFRA_ERROR, None
        episode.error = ErrorRecord(source="episode", kind="cut", message=message)


def summarize(episodes: Sequence[Sequence[Episode]], checkpoint: str) -> EvalResult:
    """Count successes. Infrastructure errors, unsupported code, prompts that are too long and episodes that a limit of
    wall time cut are left out, and counted separately.

    Raises InfraError when nothing could be counted, unless episodes were cut.
    """
    flat = [episode for row in episodes for episode in row]
    counted = [e for e in flat if e.outcome is not Outcome.INFRA_ERROR]
    missing = unrecorded(e.known_success for e in counted)
    by_task = tuple(tuple(counted_success(episode, missing) for episode in row) for row in episodes)
    rewards = tuple(tuple(None if e.outcome is Outcome.INFRA_ERROR else e.reward for e in row) for row in episodes)
    kinds = [e.error.kind for e in flat if e.error is not None and e.outcome is Outcome.INFRA_ERROR]
    unsupported, too_long, cut = (kinds.count(kind) for kind in COUNTED_APART)
    if not counted and not cut:
        first = next((e.error for e in flat if e.error is not None), None)
        raise InfraError(f"none of {len(flat)} episodes could be counted; the first error: {first}")
    low, high = (None, None) if missing is None else success_interval(by_task)
    scored = any(value is not None for row in rewards for value in row)
    reward_low, reward_high = mean_interval(rewards)
    limits = Counter(e.time_limit for e in flat if e.error is not None and e.error.kind == "cut")
    return EvalResult(
        checkpoint=checkpoint,
        success=None if missing is None else success_share(by_task),
        low=low,
        high=high,
        reward_mean=success_share(rewards) if scored else None,
        num_tasks=len(by_task),
        num_episodes=len(counted),
        num_unsupported=unsupported,
        num_too_long=too_long,
        num_infra_errors=len(flat) - len(counted) - unsupported - too_long - cut,
        num_cut=cut,
        cut_by=limits.most_common(1)[0][0] if limits else "",
        by_task=by_task,
        reward_low=reward_low,
        reward_high=reward_high,
        reward_by_task=rewards,
        pass_at=pass_shares(by_task, [row[0].task.difficulty for row in episodes]),
        by_category=success_by_category(by_task, [row[0].task.category for row in episodes]),
        measures=environment_measures(episodes),
        tasks=task_figures(episodes, by_task),
    )


def broken_line(episodes: Sequence[Episode]) -> str:
    """What broke the episodes that infrastructure errors left out, by the first of them; empty where there are none."""
    left_out = {*COUNTED_APART}
    broken = [(e.task.task_id, e.error) for e in episodes if e.outcome is Outcome.INFRA_ERROR and e.error is not None]
    broken = [(name, error) for name, error in broken if error.kind not in left_out]
    if not broken:
        return ""
    name, error = broken[0]
    tasks = len({task for task, _ in broken})
    return (
        f"{len(broken)} episodes of {tasks} tasks were broken by infrastructure and are not counted; the first is of "
        f"{name}: {error.source}: {error.message[:1000]}"
    )


def cut_line(result: EvalResult) -> str:
    """What to say loudly where episodes were cut by wall time, with the limit and how to raise it; empty otherwise."""
    if not result.num_cut:
        return ""
    name, _, value = result.cut_by.partition(" = ")
    played = result.num_cut + result.num_episodes
    return (
        f"CUT BY TIME: {result.num_cut} of {played} episodes of {result.checkpoint} reached {result.cut_by} (seconds "
        "of wall time) before the policy had finished. They are not counted, since they measure this machine; what is "
        f"left favours short answers. Raise the limit (--{name} {4 * float(value):g}) or make the engine faster, and "
        "measure again. eval.scores_cuts: true counts them as they ended"
    )


def pass_shares(by_task: Sequence[Sequence[bool | None]], difficulties: Sequence[int]) -> tuple[PassAtK, ...]:
    """pass@k for k = 1, 2, 4, ... and the number of samples: over all tasks, then for each difficulty.

    A task counts for the k for which it has as many counted samples. For k > 1 each task is one number in [0, 1],
    for which the interval of a share is conservative.
    """
    rows = [[value for value in row if value is not None] for row in by_task]
    most = max(map(len, rows))
    several = sorted(set(difficulties))
    found = []
    for difficulty in [None, *(several if len(several) > 1 else ())]:
        chosen = [row for row, one in zip(rows, difficulties, strict=True) if row and difficulty in (None, one)]
        for k in sorted({most, *(2**power for power in range(most.bit_length()))}):
            values = [pass_at_k(len(row), sum(row), k) for row in chosen if len(row) >= k]
            if values:
                low, high = success_interval(chosen if k == 1 else [[value] for value in values])
                mean = math.fsum(values) / len(values)
                place = {"k": k, "difficulty": difficulty, "num_tasks": len(values)}
                found.append(PassAtK(**place, value=mean, low=low, high=high))
    return tuple(found)


def counted_success(episode: Episode, missing: bool | None) -> bool | None:
    """missing: what an episode without a recorded success counts as. None: not counted."""
    if episode.outcome is Outcome.INFRA_ERROR:
        return None
    return missing if episode.known_success is None else episode.known_success


def task_digest(task: Task) -> str:
    """Changes with anything that the policy or its grading sees of a task."""
    return digest(json.dumps([task.task_id, pack([*task.prompt]), pack(task.answer)], sort_keys=True))


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
