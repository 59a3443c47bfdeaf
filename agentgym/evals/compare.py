"""Compares saved evaluations: episodes are paired by task and seed, and tasks are the independent draws."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from agentgym.errors import UserError
from agentgym.evals.play import EvalResult, EvalSetup, Measure, counted_success, task_digest
from agentgym.evals.statistics import PairedDifference, holm, paired_difference, simultaneous, unrecorded
from agentgym.policies.outside.prices import prices_of
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder
from agentgym.types import Episode, Json, Outcome
from agentgym.yaml import value_at

CHECKPOINT = re.compile(r"checkpoints/step-\d+/?$")
"""Ends the path of weights that a run made."""
ROUNDING = 1e-6  # weighted sums that differ by less are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One episode. counted: whether nothing broke. success, reward: None where not counted, or not known.

    scores: the reward's parts, by name.
    """

    episode_id: str
    counted: bool
    success: bool | None
    reward: float | None
    scores: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A finished evaluation in a folder, and the config that it was saved with. plays: by task and seed. digests: of
    the tasks, which are of `split`."""

    name: str
    folder: RunFolder
    step: int
    setup: EvalSetup
    result: EvalResult
    config: Mapping[str, Any] = field(repr=False)
    plays: dict[str, dict[int, Play]] = field(repr=False)
    digests: dict[str, str] = field(repr=False)
    split: str

    @property
    def is_trained(self) -> bool:
        """Whether a run made the weights: otherwise the config's training settings say nothing about them."""
        path = str(value_at(self.config, "model.path"))
        return not self.folder.only_evaluates or CHECKPOINT.search(path) is not None

    @property
    def weights(self) -> Mapping[str, float]:
        """Of the rewards, as the config gives them; empty for the environment's own."""
        given = value_at(self.config, "rewards")
        return given if isinstance(given, Mapping) else {}

    @property
    def scores(self) -> list[str]:
        """The names of the rewards that its episodes were scored with."""
        return sorted({name for row in self.plays.values() for play in row.values() for name in play.scores})

    @classmethod
    def load(cls, folder: RunFolder, step: int, name: str) -> Saved | None:
        """None when the folder has no finished evaluation of the step. Raises UserError for one that is damaged."""
        try:
            record = read_record(folder, step)
            setup = cast("dict[str, Json]", record.get("setup") or {})
            if shard := setup.get("shard"):
                raise UserError(
                    f"{folder.path} is shard {shard} of an evaluation; make one of all shards first: "
                    "agentgym eval merge SHARD... --output FOLDER"
                )
            if not record.get("result"):
                return None
            episodes = [saved.episode for saved in folder.read_episodes(step, evaluation=True)]
            plan = EvalSetup.from_mapping(setup)
            if len(episodes) != plan.num_tasks * plan.samples_per_task:
                raise ValueError(f"it has {len(episodes)} of {plan.num_tasks * plan.samples_per_task} episodes")
            result = EvalResult.from_mapping(cast("dict[str, Json]", record["result"]))
            return cls.of(
                episodes, plan, result, folder=folder, step=step, name=name, config=folder.load_config()
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, OSError, EOFError, zlib.error) as error:
            if isinstance(error, UserError):
                raise
            where = folder.episode_file(step, evaluation=True)
            raise UserError(
                f"the evaluation {name!r} could not be read, of {where} and the .json beside it: {error}. "
                f"`agentgym runs audit {folder.path}` lists what is damaged"
            ) from error

    @classmethod
    def of(cls, episodes: Sequence[Episode], setup: EvalSetup, result: EvalResult, *, folder: RunFolder, step: int,
           name: str, config: Mapping[str, Any]) -> Saved:  # fmt: skip
        plays: dict[str, dict[int, Play]] = {}
        missing = unrecorded(e.known_success for e in episodes if e.outcome is not Outcome.INFRA_ERROR)
        for one in episodes:
            counted = one.outcome is not Outcome.INFRA_ERROR
            plays.setdefault(one.task.task_id, {})[one.seed] = Play(
                episode_id=one.episode_id,
                counted=counted,
                success=counted_success(one, missing),
                reward=one.reward if counted else None,
                scores=one.rewards,
            )
        return cls(
            name=name,
            folder=folder,
            step=step,
            setup=setup,
            result=result.priced(prices_of(config, folder.path)),
            config=config,
            plays=plays,
            digests={one.task.task_id: task_digest(one.task) for one in episodes},
            split=", ".join(sorted({one.task.split for one in episodes})),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """One task of both: the successes among its pairs of episodes, and their ids, which are the same on both sides
    where the evaluations numbered the tasks alike."""

    task_id: str
    num_pairs: int
    first: int
    second: int
    first_episodes: tuple[str, ...]
    second_episodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Second minus first. success: None where one side's environment recorded none. reward: None where tasks were not
    given one, or by other rewards, which other_rewards says. num_unpaired: episodes that the other side has no partner
    for, or that could not be counted. won, lost: tasks that the second solved more or less often."""

    success: PairedDifference | None
    reward: PairedDifference | None
    other_rewards: str
    num_pairs: int
    num_unpaired: int
    won: tuple[TaskPair, ...]
    lost: tuple[TaskPair, ...]

    @property
    def main(self) -> PairedDifference:
        """The difference that decides: of success, or of the reward where success is unknown."""
        found = self.success or self.reward
        assert found is not None
        return found

    @property
    def measure(self) -> Measure:
        """What `main` is of."""
        return "success" if self.success else "reward"


def compare_all(against: Saved, others: Sequence[Saved]) -> list[Comparison]:
    """Compares each with the first one; all that is clear of any of them is so together, at 95%.

    The intervals are simultaneous, and the p-values (`chance`) are adjusted by Holm's method, for success and for the
    reward. Raises as `compare` does.
    """
    found = [compare(against, other, simultaneous(len(others))) for other in others]
    for what in ("success", "reward"):
        known = [number for number, one in enumerate(found) if getattr(one, what) is not None]
        chances = holm([getattr(found[number], what).chance for number in known])
        for number, chance in zip(known, chances, strict=True):
            found[number] = replace(found[number], **{what: replace(getattr(found[number], what), chance=chance)})
    return found


def compare(first: Saved, second: Saved, confidence: float = 0.95) -> Comparison:
    """Compares the tasks that both played.

    Raises UserError when fewer than two tasks are left, or neither success nor reward is known of them.
    """
    tasks = [task for task in first.plays if task in second.plays]
    pairs = [_pairs(first.plays[task], second.plays[task]) for task in tasks]
    kept = [(task, a, b) for task, (a, b) in zip(tasks, pairs, strict=True) if a and b]
    if len(kept) < 2:
        raise UserError(
            f"{len(kept)} tasks have counted episodes on both sides, {first.name!r} and {second.name!r}, which share "
            f"{len(tasks)} tasks; a comparison needs at least 2"
        )
    plays = [play for _, a, b in kept for play in (*a, *b)]
    known, scored = (all(getattr(play, name) is not None for play in plays) for name in ("success", "reward"))
    others = other_rewards(first, second) if scored else ""
    if not known and (others or not scored):
        why = f"the rewards are not the same: {others}" if others else "no reward is known of all episodes"
        raise UserError(f"success is unknown and {why}, so there is nothing to compare")
    moved = [
        TaskPair(
            task_id=task,
            num_pairs=min(len(a), len(b)),
            first=sum(play.success is True for play in a),
            second=sum(play.success is True for play in b),
            first_episodes=tuple(play.episode_id for play in a),
            second_episodes=tuple(play.episode_id for play in b),
        )
        for task, a, b in kept
    ]
    share = [(one.first / len(one.first_episodes), one.second / len(one.second_episodes)) for one in moved]
    return Comparison(
        success=paired_difference([[x] for x, _ in share], [[y] for _, y in share], confidence, shares=True)
        if known
        else None,
        reward=paired_difference(
            [[p.reward for p in a] for _, a, _ in kept], [[p.reward for p in b] for _, _, b in kept], confidence
        )
        if scored and not others
        else None,
        other_rewards=others,
        num_pairs=sum(one.num_pairs for one in moved),
        num_unpaired=sum(len(row) for side in (first, second) for row in side.plays.values()) - len(plays),
        won=tuple(one for one, (x, y) in zip(moved, share, strict=True) if y > x),
        lost=tuple(one for one, (x, y) in zip(moved, share, strict=True) if y < x),
    )


def rewards_text(side: Saved) -> str:
    """The rewards that scored it, with their weights."""
    if side.weights:
        return ", ".join(f"{name}={weight:g}" for name, weight in sorted(side.weights.items()))
    return f"the environment's own ({', '.join(side.scores) or 'none'})"


def other_rewards(first: Saved, second: Saved) -> str:
    """Both sides' rewards where they are not the same; empty where they are.

    The environment's own are the same as weights that explain each of its episodes.
    """
    a, b = ({name: weight for name, weight in side.weights.items() if weight} for side in (first, second))
    if a == b and (a or first.scores == second.scores):
        return ""
    plays = [play for side in (first, second) for row in side.plays.values() for play in row.values()]
    known = {*first.scores} & {*second.scores}
    if bool(a) != bool(b) and (a or b).keys() <= known and all(_explains(a or b, play) for play in plays):
        return ""
    return f"{rewards_text(first)} and {rewards_text(second)}"


def _explains(weights: Mapping[str, float], play: Play) -> bool:
    parts = [weight * (play.scores.get(name) or 0.0) for name, weight in weights.items()]
    return play.reward is None or abs(play.reward - sum(parts)) < ROUNDING


def _pairs(first: Mapping[int, Play], second: Mapping[int, Play]) -> tuple[list[Play], list[Play]]:
    """The counted episodes of one task: pairs with the same seed, or all where no seed is in both."""
    if seeds := [seed for seed in first if seed in second]:
        seeds = [seed for seed in seeds if first[seed].counted and second[seed].counted]
        return [first[seed] for seed in seeds], [second[seed] for seed in seeds]
    a, b = ([play for play in side.values() if play.counted] for side in (first, second))
    return a, b
